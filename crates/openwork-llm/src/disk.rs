//! Atomic, durable file writes, and bounded reads.
//!
//! A file is written under a temporary name in the same folder, synced, renamed,
//! and the folder is synced: at every moment the name refers to the old file or
//! to the complete new one, also after a crash or power failure. [`read`] accepts
//! regular files only.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Suffix of the temporary names.
pub const UNFINISHED: &str = ".unfinished";

/// Free space in bytes on the file system of a path, which need not exist yet;
/// `None` if the system does not report it.
pub fn free(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find(|ancestor| ancestor.exists())?;
    #[cfg(unix)]
    {
        let stat = rustix::fs::statvfs(there).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = there;
        None
    }
}

/// Reads a regular file of at most `limit` bytes. Pipes, which could block, and
/// devices, which may never end, are refused.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if found.len() > limit {
        let why = format!("{} bytes exceed the limit of {limit} bytes", found.len());
        return Err(io::Error::other(why));
    }
    fs::read(path)
}

/// A file being written under a temporary name, which is removed on drop.
#[derive(Debug)]
pub struct PendingFile {
    path: PathBuf,
    /// The temporary path; `None` for a device or a pipe.
    unfinished: Option<PathBuf>,
    file: Option<BufWriter<File>>,
    hash: Sha256,
    bytes: u64,
}

/// The length and hash of a written file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

impl PendingFile {
    /// Starts writing the file `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
        if path.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        // A device or a pipe cannot be replaced, and has no contents to lose.
        let regular = fs::metadata(path).map_or(true, |found| found.is_file());
        let (file, unfinished) = match regular {
            true => {
                let mut name = name.to_os_string();
                name.push(UNFINISHED);
                let unfinished = path.with_file_name(name);
                // Left by a killed process, or a link to another file.
                let _ = fs::remove_file(&unfinished);
                (File::create_new(&unfinished)?, Some(unfinished))
            }
            false => (File::options().write(true).open(path)?, None),
        };
        let file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { path: path.to_path_buf(), unfinished, file, hash: Sha256::new(), bytes: 0 })
    }

    /// Syncs the file and renames it to its final path.
    pub fn finish(mut self) -> io::Result<Written> {
        // `file` stays set until the rename, so that an error removes the temporary file.
        let file =
            self.file.as_mut().ok_or_else(|| io::Error::other("the file is already finished"))?;
        file.flush()?;
        if let Some(unfinished) = &self.unfinished {
            file.get_ref().sync_all()?;
            fs::rename(unfinished, &self.path)?;
        }
        self.file = None;
        if self.unfinished.is_some() {
            sync_folder(&self.path)?;
        }
        let hash = std::mem::take(&mut self.hash);
        Ok(Written { bytes: self.bytes, sha256: hex(&hash.finalize()) })
    }
}

impl Write for PendingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file =
            self.file.as_mut().ok_or_else(|| io::Error::other("the file is already finished"))?;
        let count = file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if self.file.take().is_some()
            && let Some(unfinished) = &self.unfinished
        {
            // A failure to clean up cannot be handled here.
            let _ = fs::remove_file(unfinished);
        }
    }
}

/// Writes `bytes` to `path` atomically.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("text");
/// let written = openwork_llm::disk::write(&path, b"abc")?;
/// assert_eq!(std::fs::read(&path)?, b"abc");
/// assert!(written.sha256.starts_with("ba7816bf"));
/// # Ok(())
/// # }
/// ```
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<Written> {
    let mut file = PendingFile::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// SHA-256 of a file, in hexadecimal.
pub fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// SHA-256 of some bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Syncs the folder of `path`, so that a rename survives a power failure. Errors
/// of systems that cannot sync folders are ignored: the file itself is complete.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    // Only Unix can open folders.
    let sync = || if cfg!(unix) { File::open(folder_of(path))?.sync_all() } else { Ok(()) };
    match sync() {
        Err(error) if ![InvalidInput, PermissionDenied, Unsupported].contains(&error.kind()) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_finished_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path, b"old").unwrap();
        let mut next = PendingFile::create(&path).unwrap();
        next.write_all(b"new").unwrap();
        drop(next);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let written = write(&path, b"new").unwrap();
        assert_eq!(sha256_of(&path).unwrap(), written.sha256);
        assert_eq!((written.bytes, sha256(b"new")), (3, written.sha256));
    }

    #[test]
    fn a_file_that_cannot_get_its_name_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut next = PendingFile::create(&path).unwrap();
        next.write_all(b"new").unwrap();
        // In the way of the name.
        fs::create_dir(&path).unwrap();
        assert!(next.finish().is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_that_is_not_there_yet_is_on_the_disk_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let found = free(&folder.path().join("not/there/yet"));
        assert_eq!(found.is_some(), cfg!(unix));
    }

    #[test]
    fn folders_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path(), b"").is_err());
        assert!(write(&folder.path().join("no/file"), b"").is_err());
    }
}
