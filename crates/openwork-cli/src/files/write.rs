//! Writes safetensors files: all or nothing, the same bytes every time.

use super::dtype::Dtype;
use super::error::{Fault, FileError};
use super::store::Entry;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};
use std::path::Path;

/// A tensor to write.
pub struct Part<'a> {
    /// Its name.
    pub name: String,
    /// The type of its numbers.
    pub dtype: Dtype,
    /// Its dims.
    pub shape: Vec<usize>,
    /// Its numbers, little-endian.
    pub bytes: std::borrow::Cow<'a, [u8]>,
}

impl<'a> Part<'a> {
    /// A tensor as it was, with new numbers. Numbers that did not change keep
    /// their bytes, also where f32 rounds them.
    pub fn changed(name: String, entry: &Entry<'a>, new: &[f32]) -> Result<Self, FileError> {
        let mut bytes = entry.bytes.to_vec();
        let dtype = entry.dtype;
        for (offset, (bytes, &value)) in bytes.chunks_exact_mut(dtype.bytes()).zip(new).enumerate()
        {
            let same = (dtype.read(bytes) as f32).to_bits() == value.to_bits();
            if !same && !dtype.write(value, bytes) {
                return Err(entry.wrong(Fault::Overflow { name, offset, value, dtype }));
            }
        }
        Ok(Self { name, dtype, shape: entry.shape.to_vec(), bytes: bytes.into() })
    }
}

/// Checks that a file could be written at `path`, before any work is done.
pub fn check_target(path: &Path) -> Result<(), FileError> {
    let wrong = |fault| Err(FileError::new(path, fault));
    if path.is_dir() || path.file_name().is_none() {
        return wrong(Fault::Folder);
    }
    match folder(path) {
        folder if folder.is_dir() => Ok(()),
        folder => wrong(Fault::NoFolder(folder.to_path_buf())),
    }
}

/// Writes `parts`, in this order, and `metadata` to the file at `path`. The file
/// appears under its name only when it is whole and on the disk: it is written
/// beside, synchronised and renamed.
///
/// The header lists everything in the order given, so equal tensors give equal
/// bytes (the `safetensors` crate writes metadata in random order).
pub fn write(
    path: &Path,
    parts: &[Part<'_>],
    metadata: &[(String, String)],
) -> Result<(), FileError> {
    let io = |error: std::io::Error| FileError::new(path, Fault::Write(error));
    let header = header(parts, metadata);
    let folder = folder(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".openwork-").suffix(".part");
    #[cfg(unix)]
    {
        // As any new file: the user's umask decides.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(folder).map_err(io)?;
    let mut out = BufWriter::new(&file);
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    out.write_all(&header).map_err(io)?;
    for part in parts {
        out.write_all(&part.bytes).map_err(io)?;
    }
    out.flush().map_err(io)?;
    drop(out);
    file.as_file().sync_all().map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    // The rename itself; a folder that cannot be opened or synchronised (some
    // systems refuse) has the file all the same.
    if let Ok(folder) = std::fs::File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// The header as JSON, padded with spaces to a multiple of 8 bytes.
fn header(parts: &[Part<'_>], metadata: &[(String, String)]) -> Vec<u8> {
    let mut fields = Map::new();
    let metadata: Map<String, Value> =
        metadata.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    if !metadata.is_empty() {
        fields.insert("__metadata__".to_string(), Value::Object(metadata));
    }
    let mut start = 0;
    for part in parts {
        let end = start + part.bytes.len();
        fields.insert(
            part.name.clone(),
            json!({"dtype": part.dtype.header(), "shape": part.shape, "data_offsets": [start, end]}),
        );
        start = end;
    }
    let mut header = Value::Object(fields).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
