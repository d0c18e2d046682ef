//! A folder that appears under its name only when it is complete.
//!
//! It is written as `NAME.unfinished` next to its final place and renamed at the
//! end. A lock in it tells a running process from one that was killed: what a
//! killed process left behind is replaced, everything else is refused.

use crate::disk::{self, UNFINISHED};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The file that marks a staging folder as ours and is locked while it is written.
const LOCK: &str = ".openwork-lock";

/// Why a folder cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The final name is taken.
    #[error("{}: already exists; choose another --out or remove it first", .0.display())]
    Exists(PathBuf),
    /// The path does not end in a name.
    #[error("{}: does not name a new folder", .0.display())]
    Name(PathBuf),
    /// Another process is writing the same folder.
    #[error("{}: another openwork process is writing it; wait for it to finish", .0.display())]
    Busy(PathBuf),
    /// The staging name is taken by something else.
    #[error(
        "{} exists and was not created by openwork, but `{}` is written under this name until it is complete; move it away or choose another --out",
        staging.display(),
        out.display()
    )]
    Foreign {
        /// The final path.
        out: PathBuf,
        /// The temporary name.
        staging: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A folder being written. Dropped before [`publish`](Self::publish), it is removed.
#[derive(Debug)]
pub struct StagedFolder {
    out: PathBuf,
    staging: PathBuf,
    _lock: File,
}

impl StagedFolder {
    /// Creates the staging folder for `out`, which must be new or an empty folder.
    pub fn create(out: &Path) -> Result<Self, StageError> {
        let empty = || fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
        if fs::symlink_metadata(out).is_ok() && (out.is_symlink() || !empty()) {
            return Err(StageError::Exists(out.to_path_buf()));
        }
        let name = out.file_name().ok_or_else(|| StageError::Name(out.to_path_buf()))?;
        let mut name = name.to_os_string();
        name.push(UNFINISHED);
        let staging = out.with_file_name(name);
        let io = |error| StageError::Io { path: staging.clone(), error };
        if fs::symlink_metadata(&staging).is_ok() {
            let foreign = || StageError::Foreign { out: out.into(), staging: staging.clone() };
            // An empty folder is what a process killed before it took the lock leaves.
            match File::open(staging.join(LOCK)) {
                Ok(lock) => match lock.try_lock() {
                    Ok(()) if !staging.is_symlink() => {
                        fs::remove_dir_all(&staging).map_err(io)?;
                    }
                    Err(TryLockError::WouldBlock) => return Err(StageError::Busy(out.into())),
                    _ => return Err(foreign()),
                },
                Err(_) => fs::remove_dir(&staging).map_err(|_| foreign())?,
            }
        }
        fs::create_dir_all(&staging).map_err(io)?;
        let lock = File::create(staging.join(LOCK)).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { out: out.to_path_buf(), staging, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StageError::Busy(out.into())),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Where files go until the folder is complete.
    pub fn path(&self) -> &Path {
        &self.staging
    }

    /// Gives the folder its name.
    pub fn publish(self) -> Result<(), StageError> {
        let io = |error| StageError::Io { path: self.out.clone(), error };
        fs::remove_file(self.staging.join(LOCK)).map_err(io)?;
        // An empty folder of that name gives way; anything else that appeared since stays.
        let _ = fs::remove_dir(&self.out);
        fs::rename(&self.staging, &self.out).map_err(io)?;
        disk::sync_folder(&self.out).map_err(io)
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        // After `publish` there is nothing under this name.
        let _ = fs::remove_dir_all(&self.staging);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_folder_appears_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("model");
        let staged = StagedFolder::create(&out).unwrap();
        fs::write(staged.path().join("a"), b"1").unwrap();
        assert!(!out.exists());
        drop(staged);
        assert!(names(dir.path()).is_empty());
        let staged = StagedFolder::create(&out).unwrap();
        fs::write(staged.path().join("a"), b"1").unwrap();
        staged.publish().unwrap();
        assert_eq!((names(dir.path()), names(&out)), (vec!["model".into()], vec!["a".into()]));
        let error = StagedFolder::create(&out).unwrap_err();
        assert!(error.to_string().contains("already exists"), "{error}");
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let staged = StagedFolder::create(&empty).unwrap();
        fs::write(staged.path().join("a"), b"1").unwrap();
        staged.publish().unwrap();
        assert_eq!(names(&empty), ["a"]);
    }

    #[test]
    fn remains_of_a_killed_process_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (out, staging) = (dir.path().join("model"), dir.path().join("model.unfinished"));
        fs::create_dir(&staging).unwrap();
        fs::write(staging.join(LOCK), b"").unwrap();
        fs::write(staging.join("model-00001-of-00003.safetensors"), b"half").unwrap();
        StagedFolder::create(&out).unwrap().publish().unwrap();
        assert!(names(&out).is_empty() && !staging.exists());
    }

    #[test]
    fn what_we_did_not_make_and_what_is_being_written_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (out, staging) = (dir.path().join("model"), dir.path().join("model.unfinished"));
        fs::create_dir(&staging).unwrap();
        fs::write(staging.join("notes.txt"), b"mine").unwrap();
        let error = StagedFolder::create(&out).unwrap_err().to_string();
        assert!(error.contains("was not created by openwork"), "{error}");
        assert_eq!(fs::read(staging.join("notes.txt")).unwrap(), b"mine");
        fs::remove_dir_all(&staging).unwrap();
        let _writing = StagedFolder::create(&out).unwrap();
        let error = StagedFolder::create(&out).unwrap_err().to_string();
        assert!(error.contains("another openwork process"), "{error}");
        assert!(staging.exists());
    }
}
