//! Files that appear whole or not at all.

use crate::failure::Failure;
use std::fs;
use std::path::Path;

/// Writes `bytes` to a temporary file beside `path`, then renames it.
pub fn whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let cannot =
        |error: std::io::Error| Failure::Input(format!("cannot write {}: {error}", path.display()));
    if path.is_dir() {
        return Err(Failure::Input(format!("cannot write {}: it is a folder", path.display())));
    }
    let Some(name) = path.file_name() else {
        return Err(Failure::Input(format!("cannot write {}: it names no file", path.display())));
    };
    let mut name = name.to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)).map_err(|error| {
        // Nothing is left behind; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
        cannot(error)
    })
}
