//! Memory-mapped files.

use super::error::{CheckpointError, Fault};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A read-only file mapped into memory, or bytes embedded in the program.
#[derive(Debug)]
pub(super) struct Mapped {
    path: PathBuf,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(memmap2::Mmap),
    BuiltIn(&'static [u8]),
}

impl Mapped {
    /// Maps the regular file at `path`.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let fail = |error: std::io::Error| CheckpointError::new(path, io_fault(error));
        // Checked before opening it: opening a pipe would block.
        let found = std::fs::metadata(path).map_err(fail)?;
        if !found.is_file() {
            return Err(CheckpointError::new(path, Fault::Kind));
        }
        let file = File::open(path).map_err(fail)?;
        // SAFETY: the map is read-only and owned here. As with every mapped file,
        // another process that shortens it while we read can stop this one with
        // SIGBUS; no reader of mapped files can prevent that.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => {
                CheckpointError::new(path, Fault::Memory { bytes: found.len() })
            }
            _ => fail(error),
        })?;
        Ok(Self { path: path.to_path_buf(), source: Source::File(map) })
    }

    /// Bytes embedded in the program, under a name.
    pub fn built_in(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: PathBuf::from(name), source: Source::BuiltIn(bytes) }
    }

    /// Releases the pages that are in memory.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Source::File(map) = &self.source {
            // SAFETY: the map is read-only and backed by a file, so pages that
            // are dropped are read from the file again with the same bytes.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.source {
            Source::File(map) => map,
            Source::BuiltIn(bytes) => bytes,
        }
    }
}

/// Distinguishes a missing file from other I/O errors.
pub(super) fn io_fault(error: std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::NotFound => Fault::Missing,
        _ => Fault::Io(error),
    }
}
