//! The cache of the Hub on disk, in the layout of the `huggingface_hub` package.

use super::OnDownload;
use super::client::{Client, Located};
use super::error::HubError;
use super::name::{HubName, RepoKind};
use crate::disk;
use sha1::{Digest, Sha1};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Room that a download leaves on the disk.
const SPARE: u64 = 16 << 20;

/// `HF_HOME`, or the usual folder.
pub(super) fn home() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty());
    if let Some(home) = variable("HF_HOME") {
        return home.into();
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("huggingface")
}

/// The folder of repositories.
pub(super) fn hub_folder(home: &Path) -> PathBuf {
    let given = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]
        .into_iter()
        .find_map(|name| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from));
    given.unwrap_or_else(|| home.join("hub"))
}

/// Whether a variable of the environment is set to yes.
pub(super) fn is_set(name: &str) -> bool {
    let text = std::env::var(name).unwrap_or_default().to_ascii_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&text.as_str())
}

/// A folder of repositories.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache in a folder, which need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `models--org--name`.
    fn repo(&self, name: &HubName) -> PathBuf {
        let kind = match name.kind {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
        };
        self.folder.join(format!("{kind}--{}--{}", name.owner, name.name))
    }

    /// The files of a commit.
    pub fn snapshot(&self, name: &HubName, commit: &str) -> PathBuf {
        self.repo(name).join("snapshots").join(commit)
    }

    /// The commit of a revision, if known.
    pub fn commit(&self, name: &HubName) -> Option<String> {
        let revision = &name.revision;
        if self.snapshot(name, revision).is_dir() && !revision.contains('/') {
            return Some(revision.clone());
        }
        let text = fs::read_to_string(self.repo(name).join("refs").join(revision)).ok()?;
        let commit = text.trim();
        commit.chars().all(|c| c.is_ascii_hexdigit()).then(|| commit.to_string())
    }

    /// Remembers the commit of a revision.
    pub fn save_ref(&self, name: &HubName, commit: &str) -> Result<(), HubError> {
        if name.revision == commit {
            return Ok(());
        }
        let path = self.repo(name).join("refs").join(&name.revision);
        if fs::read_to_string(&path).is_ok_and(|known| known.trim() == commit) {
            return Ok(());
        }
        make_folder(disk::folder_of(&path))?;
        disk::write(&path, commit.as_bytes()).map_err(|error| HubError::Io { path, error })?;
        Ok(())
    }

    /// Downloads a file of a commit, unless its blob is there, and links it; its path.
    pub fn store(
        &self,
        name: &HubName,
        commit: &str,
        file: &Located,
        client: &Client,
        on_download: OnDownload<'_>,
    ) -> Result<PathBuf, HubError> {
        let repo = self.repo(name);
        let (blobs, locks) = (repo.join("blobs"), self.folder.join(".locks"));
        let locks = locks.join(repo.file_name().unwrap_or_default());
        make_folder(&blobs)?;
        make_folder(&locks)?;
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error| HubError::Io { path, error }
        };
        // Another process may be downloading the same file.
        let lock_path = locks.join(format!("{}.lock", file.hash));
        let lock = File::create(&lock_path).map_err(io(&lock_path))?;
        lock.lock().map_err(io(&lock_path))?;

        let blob = blobs.join(&file.hash);
        let there = fs::metadata(&blob).is_ok_and(|found| found.len() == file.size);
        if !there {
            let partial = blobs.join(format!("{}.incomplete", file.hash));
            let begun = fs::metadata(&partial).map_or(0, |found| found.len());
            let needed = file.size.saturating_sub(begun) + SPARE;
            if let Some(free) = disk::free(&blobs).filter(|&free| free < needed) {
                return Err(HubError::Space { path: blobs, needed, free });
            }
            client.download(name, file, &partial, on_download)?;
            if let Err(error) = check_hash(file, &partial)? {
                // What an earlier download left may be to blame; otherwise start over once.
                fs::remove_file(&partial).map_err(io(&partial))?;
                if begun == 0 {
                    return Err(error);
                }
                client.download(name, file, &partial, on_download)?;
                if let Err(error) = check_hash(file, &partial)? {
                    fs::remove_file(&partial).map_err(io(&partial))?;
                    return Err(error);
                }
            }
            fs::rename(&partial, &blob).map_err(io(&blob))?;
            disk::sync_folder(&blob).map_err(io(&blob))?;
        }
        let target = self.snapshot(name, commit).join(&file.path);
        make_folder(disk::folder_of(&target))?;
        link(&blob, &target, file).map_err(io(&target))?;
        Ok(target)
    }
}

fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(|error| HubError::Io { path: path.to_path_buf(), error })
}

/// Compares the hash of a downloaded file: SHA-256 of large files, git's SHA-1 of others.
/// The outer error is of the disk.
fn check_hash(file: &Located, path: &Path) -> Result<Result<(), HubError>, HubError> {
    let io = |error| HubError::Io { path: path.to_path_buf(), error };
    let (kind, found) = match file.hash.len() {
        64 => ("SHA-256", disk::sha256_of(path).map_err(io)?),
        40 => ("git hash", git_hash(path).map_err(io)?),
        // A server that names no hash.
        _ => return Ok(Ok(())),
    };
    let (url, wanted) = (file.url.clone(), file.hash.clone());
    Ok(if found == wanted { Ok(()) } else { Err(HubError::Hash { url, kind, found, wanted }) })
}

/// The hash by which git knows a file: SHA-1 of `blob LENGTH\0` and the contents.
fn git_hash(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", file.metadata()?.len()));
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Puts a blob in a snapshot: a relative link, or, where links are not possible, a copy.
fn link(blob: &Path, target: &Path, file: &Located) -> std::io::Result<()> {
    if fs::metadata(target).is_ok_and(|found| found.len() == file.size) {
        return Ok(());
    }
    // A link to a blob that is gone.
    if fs::symlink_metadata(target).is_ok() {
        fs::remove_file(target)?;
    }
    // From snapshots/COMMIT/a/b to blobs/HASH.
    let up = "../".repeat(2 + file.path.matches('/').count());
    let relative = PathBuf::from(format!("{up}blobs/{}", file.hash));
    match symlink(&relative, target) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::hard_link(blob, target).or_else(|_| fs::copy(blob, target).map(drop)),
    }
}

#[cfg(unix)]
fn symlink(from: &Path, to: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

/// Elsewhere links need rights that users rarely have.
#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_hashes_are_those_of_git() {
        let folder = tempfile::tempdir().expect("a folder");
        for (content, want) in [
            ("", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
            ("hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"),
        ] {
            let path = folder.path().join("file");
            fs::write(&path, content).expect("a file");
            assert_eq!(git_hash(&path).expect("a hash"), want);
        }
    }
}
