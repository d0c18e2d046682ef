//! Files that appear whole or not at all, and stay when the power goes.
//!
//! A file is written under another name in the same folder, brought to the
//! disk, renamed, and its folder brought to the disk: at every moment there is
//! the old file or the new one under the name. [`read`] takes regular files only.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// What the names of unfinished files end with.
pub const UNFINISHED: &str = ".unfinished";

/// Bytes that are free for us on the disk that a path is on, or will be on;
/// nothing where the system does not say.
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

/// The bytes of the regular file `path`, at most `most`: a pipe could keep us
/// waiting, and a device has no end.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.len() > most {
        let why = format!("it has {} bytes, and no more than {most} are believed", found.len());
        return Err(io::Error::other(why));
    }
    fs::read(path)
}

/// A file that does not have its name yet. Dropped, it is gone.
#[derive(Debug)]
pub struct Pending {
    path: PathBuf,
    /// Its name until it is whole; none for a device or a pipe.
    unfinished: Option<PathBuf>,
    file: Option<BufWriter<File>>,
    hash: Sha256,
    bytes: u64,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its length.
    pub bytes: u64,
    /// Of its bytes, in hexadecimal digits.
    pub sha256: String,
}

impl Pending {
    /// Begins to write the file `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
        if path.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        // A device or a pipe cannot be replaced, and holds nothing to lose.
        let regular = fs::metadata(path).map_or(true, |found| found.is_file());
        let (file, unfinished) = match regular {
            true => {
                let mut name = name.to_os_string();
                name.push(UNFINISHED);
                let unfinished = path.with_file_name(name);
                // What a killed run left; a link would lead elsewhere.
                let _ = fs::remove_file(&unfinished);
                (File::create_new(&unfinished)?, Some(unfinished))
            }
            false => (File::options().write(true).open(path)?, None),
        };
        let file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { path: path.to_path_buf(), unfinished, file, hash: Sha256::new(), bytes: 0 })
    }

    /// Gives the file its name, once it is on the disk.
    pub fn finish(mut self) -> io::Result<Written> {
        // It stays in its place until it has its name, so that else it goes with us.
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("it is finished already"))?;
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

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("it is finished already"))?;
        let count = file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.file.take().is_some()
            && let Some(unfinished) = &self.unfinished
        {
            // There may be nothing to remove; nobody could do more.
            let _ = fs::remove_file(unfinished);
        }
    }
}

/// Writes `bytes` to `path`, whole or not at all.
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
    let mut file = Pending::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// The sha256 of a file's bytes, in hexadecimal digits.
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

/// The sha256 of some bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Brings the folder of `path`, that is its list of names, to the disk. Some
/// systems and file systems cannot; the file is there all the same.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    // Only Unix opens folders.
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
        let mut next = Pending::create(&path).unwrap();
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
        let mut next = Pending::create(&path).unwrap();
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
