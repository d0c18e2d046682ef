//! Outputs of commands: messages on stderr about written files, and the exit codes of
//! output errors (wrong arguments or a failing disk).

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::format::format_bytes;
use openwork_llm::output::{OutputError, OutputFile};
use std::path::Path;

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        if error.is_input() { Self::input(error) } else { Self::running(error) }
    }
}

impl Global {
    /// Writes an output file atomically and reports it.
    pub fn write(&self, out: &OutputFile, bytes: &[u8]) -> Result<(), Failure> {
        let written = out.write(bytes)?;
        self.wrote(out.path(), written.bytes);
        Ok(())
    }

    /// Reports a written file on stderr.
    pub fn wrote(&self, path: &Path, bytes: u64) {
        if !self.quiet {
            print::aside(format!("wrote {} ({})", path.display(), format_bytes(bytes)));
        }
    }

    /// Reports a written folder, with the size of its contents.
    pub fn wrote_folder(&self, path: &Path) {
        self.wrote(path, folder_bytes(path));
    }
}

/// Bytes of all files below a folder; what cannot be read counts nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, found)| if found.is_dir() { folder_bytes(&path) } else { found.len() })
        .sum()
}
