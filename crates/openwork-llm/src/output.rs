//! Checks of output files and folders before a command starts to work.
//!
//! Every command that writes uses [`OutputFile`] or [`check_folder`]: an output
//! is never an input, an existing file is only replaced on request, and a folder
//! that is missing or not writable is reported at once.

use crate::disk::{self, PendingFile, Written};
use crate::format::format_bytes;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why an output cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The output is one of the inputs.
    #[error(
        "{}: the output would overwrite the input {}; choose another name",
        path.display(),
        input.display()
    )]
    Input {
        /// The output.
        path: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// One of the inputs is inside the output folder, or the folder inside it.
    #[error(
        "{}: the output folder overlaps the input {}; choose a folder outside it",
        path.display(),
        input.display()
    )]
    Overlap {
        /// The output folder.
        path: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// The file exists.
    #[error("{}: the file exists; give --force to replace it, or choose another name", .0.display())]
    Exists(PathBuf),
    /// A folder, or no name at all.
    #[error("{}: is a folder; give the name of a file", .0.display())]
    Folder(PathBuf),
    /// A folder was expected.
    #[error("{}: is a file; give the name of a folder", .0.display())]
    NotFolder(PathBuf),
    /// The folder to write to is missing.
    #[error("{}: the folder {} does not exist; create it first", path.display(), folder.display())]
    NoFolder {
        /// The output.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The disk has too little space for what will be written.
    #[error(
        "{}: the result needs {}, the disk has {} free; free some space, or choose another disk",
        path.display(),
        format_bytes(*needed),
        format_bytes(*free)
    )]
    Space {
        /// The output.
        path: PathBuf,
        /// Bytes that will be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system refused: no permission, a read-only or full disk.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The output.
        path: PathBuf,
        /// The system's message.
        error: io::Error,
    },
}

impl OutputError {
    /// Whether the user named a wrong output, rather than the disk refused.
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Space { .. })
    }
}

/// A file that a command will write. Guarantees:
///
/// 1. it is not one of the inputs, under any name;
/// 2. it does not exist, or may be replaced;
/// 3. its folder exists and can be written to.
///
/// Symbolic links are followed. Devices and pipes (`/dev/stdout`) are written
/// to as they are.
#[derive(Clone, Debug)]
pub struct OutputFile {
    path: PathBuf,
    target: PathBuf,
}

impl OutputFile {
    /// Checks that `path` can be written. `force` allows an existing file to be
    /// replaced, but never an input.
    pub fn new(path: &Path, inputs: &[&Path], force: bool) -> Result<Self, OutputError> {
        let own = || path.to_path_buf();
        let io = |error| OutputError::Io { path: path.to_path_buf(), error };
        if path.file_name().is_none() || path.is_dir() {
            return Err(OutputError::Folder(own()));
        }
        let found = fs::metadata(path).ok();
        let target = match found {
            Some(_) => fs::canonicalize(path).map_err(io)?,
            None => own(),
        };
        // Guarantee 1.
        if found.is_some()
            && let Some(input) = inputs.iter().find(|input| holds(input, &target))
        {
            return Err(OutputError::Input { path: own(), input: input.to_path_buf() });
        }
        // Guarantee 2.
        if found.as_ref().is_some_and(|found| found.is_file()) && !force {
            return Err(OutputError::Exists(own()));
        }
        // Guarantee 3. The probe has no name, so a kill leaves nothing behind.
        if found.is_none_or(|found| found.is_file()) {
            let folder = disk::folder_of(&target);
            if !folder.is_dir() {
                let folder = folder.to_path_buf();
                return Err(OutputError::NoFolder { path: own(), folder });
            }
            tempfile::tempfile_in(folder).map_err(io)?;
        }
        Ok(Self { path: own(), target })
    }

    /// The path as the user gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path to write to, with symbolic links resolved.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes the file atomically.
    pub fn write(&self, bytes: &[u8]) -> Result<Written, OutputError> {
        let write = || {
            let mut file = PendingFile::create(&self.target)?;
            file.write_all(bytes)?;
            file.finish()
        };
        write().map_err(|error| OutputError::Io { path: self.path.clone(), error })
    }
}

/// Refuses an output folder that is one of the inputs, contains one, lies within
/// an input's `openwork` folder, or cannot be created or written to.
pub fn check_folder(out: &Path, inputs: &[&Path]) -> Result<(), OutputError> {
    let absolute = std::path::absolute(out).unwrap_or_else(|_| out.to_path_buf());
    let nearest = absolute.ancestors().find(|ancestor| ancestor.exists());
    if let Some(file) = nearest.filter(|nearest| !nearest.is_dir()) {
        let file = if out.exists() { out } else { file };
        return Err(OutputError::NotFolder(file.to_path_buf()));
    }
    let own = resolved(out);
    for input in inputs.iter().filter(|input| input.exists()) {
        let (path, input) = (out.to_path_buf(), input.to_path_buf());
        if same(out, &input) {
            return Err(OutputError::Input { path, input });
        }
        let other = resolved(&input);
        if other.starts_with(&own) || own.starts_with(other.join("openwork")) {
            return Err(OutputError::Overlap { path, input });
        }
    }
    // The probe has no name, so a kill leaves nothing behind.
    let probe = nearest.map_or(Ok(()), |folder| tempfile::tempfile_in(folder).map(|_| ()));
    probe.map_err(|error| OutputError::Io { path: out.to_path_buf(), error })
}

/// Whether `target`, which exists, is the input or one of the files of an input folder.
fn holds(input: &Path, target: &Path) -> bool {
    if same(input, target) {
        return true;
    }
    let Ok(entries) = fs::read_dir(input) else { return false };
    target.starts_with(resolved(input))
        || entries.flatten().any(|entry| same(&entry.path(), target))
}

/// Whether two paths are the same file or folder, through symbolic links, hard
/// links or other spellings.
pub fn same(a: &Path, b: &Path) -> bool {
    let (Ok(found_a), Ok(found_b)) = (fs::metadata(a), fs::metadata(b)) else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (found_a.dev(), found_a.ino()) == (found_b.dev(), found_b.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = (found_a, found_b);
        resolved(a) == resolved(b)
    }
}

/// The absolute path with symbolic links resolved, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    for ancestor in path.ancestors() {
        if let (Ok(known), Ok(rest)) = (fs::canonicalize(ancestor), path.strip_prefix(ancestor)) {
            return known.join(rest);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_refused_under_every_name_also_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("model/openwork")).unwrap();
        fs::write(at("model/w"), "w").unwrap();
        fs::write(at("model/openwork/record.json"), "{}").unwrap();
        fs::hard_link(at("model/w"), at("hard")).unwrap();
        let mut names = vec!["model/w", "model/../model/w", "hard", "model/openwork/record.json"];
        if cfg!(unix) {
            #[cfg(unix)]
            std::os::unix::fs::symlink(at("model"), at("link")).unwrap();
            names.extend(["link/w", "link/openwork/record.json"]);
        }
        for name in names {
            for input in [at("model"), at("model/.")] {
                let error = OutputFile::new(&at(name), &[&input], true).unwrap_err();
                assert!(matches!(error, OutputError::Input { .. }), "{name}: {error}");
            }
        }
        let error = OutputFile::new(&at("hard"), &[&at("model/w")], true).unwrap_err();
        assert!(error.to_string().contains("would overwrite the input"), "{error}");
        // Another file beside the input, or a new one, is fine.
        OutputFile::new(&at("model/new"), &[&at("model")], false).unwrap();
        OutputFile::new(&at("new"), &[&at("model/w"), &at("missing")], false).unwrap();
        assert_eq!(fs::read(at("model/w")).unwrap(), b"w");
    }

    #[test]
    fn an_existing_file_needs_force_and_a_missing_folder_is_found_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "old").unwrap();
        let error = OutputFile::new(&at("old"), &[], false).unwrap_err();
        assert!(error.to_string().contains("give --force to replace it"), "{error}");
        OutputFile::new(&at("old"), &[], true).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read(at("old")).unwrap(), b"new");
        let error = OutputFile::new(&at("no/file"), &[], true).unwrap_err();
        assert!(error.to_string().contains("does not exist; create it first"), "{error}");
        assert!(matches!(OutputFile::new(folder.path(), &[], true), Err(OutputError::Folder(_))));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_devices_are_written_to_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("real"), "old").unwrap();
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        OutputFile::new(&at("link"), &[], true).unwrap().write(b"new").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(fs::read(at("real")).unwrap(), b"new");
        let null = Path::new("/dev/null");
        OutputFile::new(null, &[], false).unwrap().write(b"gone").unwrap();
        assert!(!fs::metadata(null).unwrap().is_file());
        if Path::new("/dev/full").exists() {
            let full = OutputFile::new(Path::new("/dev/full"), &[], false).unwrap();
            let error = full.write(b"text").unwrap_err();
            assert!(!error.is_input(), "{error}");
        }
    }

    #[test]
    fn a_folder_is_neither_the_model_nor_around_it_nor_in_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/model/openwork")).unwrap();
        fs::write(at("a/model/w"), "w").unwrap();
        let model = at("a/model");
        let mut wrong =
            vec![at("a/model"), at("a"), at("a/model/../model"), at("a/model/openwork/x")];
        if cfg!(unix) {
            #[cfg(unix)]
            std::os::unix::fs::symlink(&model, at("link")).unwrap();
            wrong.push(at("link"));
        }
        for out in wrong {
            assert!(check_folder(&out, &[&model]).is_err(), "{}", out.display());
        }
        assert!(matches!(check_folder(&at("a/model/w"), &[]), Err(OutputError::NotFolder(_))));
        for out in [at("b"), at("a/model/pruned"), at("a/model-2")] {
            check_folder(&out, &[&model, &at("missing")]).unwrap();
        }
    }
}
