//! Writing a GGUF file with the metadata of an existing one and new weights.

use super::metadata_writer::text;
use super::names::{Layout, PER_LAYER_TABLE};
use super::read::{self, MAGIC};
use super::{ConfigBuilder, is_factors};
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::error::{CheckpointError, Fault};
use crate::checkpoint::mapped::Mapped;
use crate::checkpoint::tensor::{Convention, RowOrder, TensorInfo};
use crate::checkpoint::write::{WriteError, encode};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::disk::{PendingFile, Written};
use half::f16;
use std::io::Write;
use std::path::Path;

/// Alignment of tensors.
pub(super) const ALIGNMENT: u64 = 32;
/// Values encoded at a time.
const PIECE: usize = 1 << 20;
/// Elements of a Q8_0 block.
const Q8_BLOCK: usize = 32;

/// A tensor to write: its description, and the source of its values.
pub(super) struct Job<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    /// Hugging Face's tensors in it, one after the other, and the order of each one's rows
    /// in the file; none for a tensor whose bytes are copied.
    pub parts: Vec<(Tensor<'a>, RowOrder)>,
    pub convention: Convention,
    pub copied: &'a [u8],
}

impl Job<'_> {
    fn bytes(&self) -> u64 {
        let len = self.shape.iter().map(|&n| n as u64).product();
        // Block types are used only for rows of whole blocks.
        self.dtype.bytes_for(len).unwrap_or(0)
    }
}

/// Writes the weights of `source` to `out`, matrices as F16, BF16 or Q8_0 and
/// vectors as F32, with the metadata of the GGUF file `other`, which is the same
/// model before pruning. Zeros stay exact zeros.
pub(crate) fn like(
    source: &Checkpoint,
    other: &Path,
    out: &Path,
    dtype: Dtype,
) -> Result<Written, WriteError> {
    let file = Mapped::open(other)?;
    let wrong = |fault: Fault| CheckpointError::new(other, fault);
    let bytes = file.bytes();
    if !bytes.starts_with(MAGIC) {
        return Err(wrong(Fault::Kind).into());
    }
    let (metadata, tensors) = read::read(bytes).map_err(wrong)?;
    let entries = read::entries(bytes).map_err(wrong)?;
    let layout = ConfigBuilder::new(&metadata, bytes).and_then(|keys| keys.layout());
    let layout = layout.map_err(wrong)?;
    let mut jobs = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        jobs.push(job(source, bytes, &layout, tensor, dtype).map_err(|error| match error {
            Ok(fault) => wrong(fault),
            Err(error) => error,
        })?);
    }
    write(out, &entries_of(bytes, &entries, dtype), entries.len(), &jobs)
}

/// The job that writes a tensor of the other file.
pub(super) fn job<'a>(
    source: &'a Checkpoint,
    bytes: &'a [u8],
    layout: &Layout,
    tensor: TensorInfo,
    dtype: Dtype,
) -> Result<Job<'a>, Result<Fault, CheckpointError>> {
    let TensorInfo { name, shape, .. } = tensor;
    let mut convention = Convention::Same;
    if is_factors(&name) || layout.is_unused(&name) {
        let copied = &bytes[tensor.range];
        return Ok(Job { name, shape, dtype: tensor.dtype, parts: vec![], convention, copied });
    }
    let mut parts = Vec::new();
    for part in layout.parts(&name, &shape).map_err(Ok)? {
        let from = source.tensor_with_shape(&part.name, &part.shape).map_err(Err)?;
        parts.push((from, part.order));
        convention = part.convention;
    }
    // The rows of each layer are read on their own.
    let rows = if name == PER_LAYER_TABLE { layout.layers } else { 1 };
    let whole = shape.last().is_some_and(|row| row.is_multiple_of(Q8_BLOCK * rows));
    let dtype = match (shape.len(), dtype) {
        (0 | 1, _) => Dtype::F32,
        // Biases of merged experts.
        _ if name.ends_with(".bias") => Dtype::F32,
        // llama.cpp keeps routers and convolutions so.
        _ if [".ffn_gate_inp", ".ssm_conv1d"].iter().any(|part| name.contains(part)) => Dtype::F32,
        (_, Dtype::Q8_0) if !whole => Dtype::F16,
        (_, dtype) => dtype,
    };
    Ok(Job { name, shape, dtype, parts, convention, copied: &[] })
}

/// The other file's metadata, with the new file type.
fn entries_of(bytes: &[u8], entries: &[(String, std::ops::Range<usize>)], dtype: Dtype) -> Vec<u8> {
    const U32: u32 = 4;
    let mut out = Vec::new();
    for (key, range) in entries {
        let value = match key.as_str() {
            "general.file_type" => Some(file_type(dtype)),
            "general.alignment" => Some(ALIGNMENT as u32),
            _ => None,
        };
        match value {
            Some(value) => {
                text(&mut out, key);
                out.extend(U32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            None => out.extend(&bytes[range.clone()]),
        }
    }
    out
}

/// llama.cpp's `general.file_type` for a type of weights.
pub(super) fn file_type(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::Q8_0 => 7,
        Dtype::BF16 => 32,
        _ => 1,
    }
}

pub(super) fn write(
    path: &Path,
    entries: &[u8],
    entry_count: usize,
    jobs: &[Job<'_>],
) -> Result<Written, WriteError> {
    let io = |error| WriteError::io(path, error);
    let mut head = MAGIC.to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((jobs.len() as u64).to_le_bytes());
    head.extend((entry_count as u64).to_le_bytes());
    head.extend(entries);
    let mut offset = 0u64;
    for job in jobs {
        text(&mut head, &job.name);
        head.extend((job.shape.len() as u32).to_le_bytes());
        // GGUF has the fastest axis first.
        job.shape.iter().rev().for_each(|&extent| head.extend((extent as u64).to_le_bytes()));
        head.extend(job.dtype.ggml().unwrap_or(0).to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset = (offset + job.bytes()).next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    let mut out = PendingFile::create(path).map_err(io)?;
    out.write_all(&head).map_err(io)?;
    for job in jobs {
        fill(&mut out, path, job)?;
        let rest = job.bytes().next_multiple_of(ALIGNMENT) - job.bytes();
        out.write_all(&vec![0; rest as usize]).map_err(io)?;
    }
    out.finish().map_err(io)
}

/// Writes the values of a tensor, in the file's row order.
fn fill(out: &mut PendingFile, path: &Path, job: &Job<'_>) -> Result<(), WriteError> {
    let io = |error| WriteError::io(path, error);
    if job.parts.is_empty() {
        return out.write_all(job.copied).map_err(io);
    }
    let mut bytes = Vec::new();
    for &(tensor, order) in &job.parts {
        let mut wide = tensor.to_f32();
        if order != RowOrder::AsStored {
            // The order applies to the elements of a bias as to the rows of its matrix.
            let rows = if tensor.shape().len() < 2 { wide.len() } else { tensor.rows() };
            wide = order.encode(wide, rows);
        }
        job.convention.encode(&mut wide);
        for values in wide.chunks(PIECE) {
            match job.dtype {
                Dtype::Q8_0 => q8_0(values, &mut bytes),
                dtype => encode(dtype, values, &mut bytes).map_err(|value| WriteError::Range {
                    tensor: job.name.clone(),
                    value,
                    dtype,
                })?,
            }
            out.write_all(&bytes).map_err(io)?;
        }
    }
    Ok(())
}

/// Quantizes blocks of 32 values to 8 bits with a common scale:
///
/// ```text
/// d = max |w| / 127        q = round(w / d)
/// ```
fn q8_0(values: &[f32], bytes: &mut Vec<u8>) {
    bytes.clear();
    for block in values.chunks(Q8_BLOCK) {
        let most = block.iter().fold(0.0f32, |most, w| most.max(w.abs()));
        let d = most / 127.0;
        let scale = if d > 0.0 { 1.0 / d } else { 0.0 };
        bytes.extend(f16::from_f32(d).to_le_bytes());
        bytes.extend(block.iter().map(|w| (w * scale).round() as i8 as u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf").join(name)
    }

    /// What is written is read back, in every architecture and type, with the same
    /// config and tokenizer, and zeros stay zeros.
    #[test]
    fn a_model_comes_back_from_gguf() {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(testdata("")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "gguf") {
                continue;
            }
            let Ok(source) = Checkpoint::open(&path) else { continue };
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q8_0] {
                let out = folder.path().join("out.gguf");
                like(&source, &path, &out, dtype).unwrap();
                let read = Checkpoint::open(&out).unwrap();
                assert_eq!(read.config(), source.config(), "{}", path.display());
                assert!(read.names().eq(source.names()));
                for (a, b) in source.tensors().zip(read.tensors()) {
                    // Half a step of the coarsest type, relative to the largest number.
                    let (a, b) = (a.to_f32(), b.to_f32());
                    let most = a.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                    for (a, b) in a.iter().zip(&b) {
                        assert!((a - b).abs() <= most / 120.0, "{a} became {b}");
                        assert!(*a != 0.0 || *b == 0.0, "a zero became {b}");
                    }
                }
                let encode =
                    |model: &Checkpoint| model.tokenizer().unwrap().encode("a b c").unwrap();
                assert_eq!(encode(&source), encode(&read));
            }
        }
    }
}
