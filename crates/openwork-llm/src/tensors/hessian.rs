//! Hessians in files, and the inputs they are made from; docs/formats.md
//! describes the format.
//!
//! ```text
//! tensor NAME               K x K   H = X'X / n
//! tensor NAME.held_out      K x K   the same over the held-out samples alone
//! metadata NAME.samples             n
//! metadata NAME.held_out_samples    how many of them are held out
//! ```
//!
//! All but the first are optional: with them damping is chosen by held-out error.

use super::{Entry, FLOATS, SAMPLES, TensorError, TensorFault, TensorFile};
use crate::checkpoint::Dtype;
use crate::checkpoint::write::{Data, Part, WriteError, shard};
use crate::disk::Written;
use half::{bf16, f16};
use openwork::hessian::{Hessian, HessianError, HessianSum};
use openwork::{Matrix, MatrixRef};
use std::path::Path;

/// The most columns H may have: a file of a few bytes must not ask for more
/// memory than a machine has. 65536 columns are 32 GB.
pub const MAX_COLUMNS: usize = 1 << 16;

/// What follows the name of the held-out part.
const HELD_OUT: &str = ".held_out";

/// Samples converted and added at a time.
const ROWS: usize = 2048;

/// The Hessian called `name`, with its held-out part where the file has it.
pub fn load(file: &TensorFile, name: &str) -> Result<Hessian, TensorError> {
    let entry = file.entry(name, "H", FLOATS)?;
    let h = matrix(&entry)?;
    let wrong = |error: HessianError| {
        let advice = match error {
            HessianError::Entry { value, .. }
                if value.is_infinite() && entry.dtype == Dtype::F16 =>
            {
                "; the largest f16 is 65504; store H as f32 or f64"
            }
            _ => "",
        };
        file.wrong(TensorFault::Hessian { name: name.to_string(), error, advice })
    };
    let samples = count(file, &format!("{name}.samples"))?;
    let held_name = format!("{name}{HELD_OUT}");
    if file.shape(&held_name).is_none() {
        return Hessian::from_matrix(h, samples).map_err(wrong);
    }
    let missing = |key: String| file.wrong(TensorFault::NoCount { name: held_name.clone(), key });
    let samples = samples.ok_or_else(|| missing(format!("{name}.samples")))?;
    let key = format!("{name}.held_out_samples");
    let held_samples = count(file, &key)?.ok_or_else(|| missing(key))?;
    let held = matrix(&file.entry(&held_name, "H", FLOATS)?)?;
    Hessian::from_parts(h, samples, Some((held, held_samples))).map_err(wrong)
}

/// Writes Hessians, each under its name, to a safetensors file.
pub fn save(path: &Path, hessians: &[(&str, &Hessian)]) -> Result<Written, WriteError> {
    let (mut tensors, mut metadata) = (Vec::new(), Vec::new());
    let bytes =
        |h: &Matrix<f64>| -> Vec<u8> { h.data().iter().flat_map(|x| x.to_le_bytes()).collect() };
    for (name, h) in hessians {
        let shape = [h.columns(); 2];
        tensors.push((name.to_string(), shape, bytes(h.matrix())));
        if let Some(samples) = h.samples() {
            metadata.push((format!("{name}.samples"), samples.to_string()));
        }
        if let Some((held, samples)) = h.held_out() {
            tensors.push((format!("{name}{HELD_OUT}"), shape, bytes(held)));
            metadata.push((format!("{name}.held_out_samples"), samples.to_string()));
        }
    }
    let parts: Vec<Part<'_>> = tensors
        .iter()
        .map(|(name, shape, bytes)| Part::new(name, Dtype::F64, shape, Data::Bytes(bytes)))
        .collect();
    let metadata: Vec<(&str, &str)> =
        metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    shard(path, &parts, &metadata)
}

/// H of the inputs called `name`: every row is a sample, and so is every last
/// axis of a tensor with more dims. `columns` is what they must have, where
/// known. `progress` is called with the share done.
pub fn sum_inputs(
    file: &TensorFile,
    name: &str,
    columns: Option<usize>,
    progress: &dyn Fn(f64),
) -> Result<Hessian, TensorError> {
    let entry = file.entry(name, "inputs", SAMPLES)?;
    let expected = match (entry.shape, columns) {
        ([] | [_], _) => "inputs are [samples, columns] or [batch, positions, columns]".to_string(),
        ([.., k], Some(columns)) if *k != columns => {
            format!("the weights have {columns} columns, so the last axis must have as many")
        }
        ([.., k], _) if *k > MAX_COLUMNS => {
            format!("H would have {k} columns, more than {MAX_COLUMNS}")
        }
        ([.., 0], _) => "inputs without columns have no H".to_string(),
        _ => String::new(),
    };
    if !expected.is_empty() {
        let shape = entry.shape.to_vec();
        return Err(entry.wrong(TensorFault::Shape { name: name.to_string(), shape, expected }));
    }
    let k = entry.shape[entry.shape.len() - 1];
    let mut sum = HessianSum::new(k);
    let chunk = ROWS * k * entry.dtype.block_bytes();
    let wrong =
        |error| entry.wrong(TensorFault::Hessian { name: name.to_string(), error, advice: "" });
    for (i, bytes) in entry.bytes.chunks(chunk).enumerate() {
        add(&mut sum, bytes, k, entry.dtype).map_err(wrong)?;
        progress(((i + 1) * chunk).min(entry.bytes.len()) as f64 / entry.bytes.len() as f64);
    }
    sum.finish().map_err(wrong)
}

/// Adds samples as their type, so that a message can name it.
fn add(sum: &mut HessianSum, bytes: &[u8], k: usize, dtype: Dtype) -> Result<(), HessianError> {
    let rows = bytes.len() / (k * dtype.block_bytes());
    match dtype {
        Dtype::F16 => {
            let x: Vec<f16> = bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b)).collect();
            sum.add(MatrixRef::new(&x, rows, k))
        }
        Dtype::BF16 => {
            let x: Vec<bf16> =
                bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b)).collect();
            sum.add(MatrixRef::new(&x, rows, k))
        }
        other => {
            let mut x = vec![0.0f32; rows * k];
            other.decode(bytes, &mut x);
            sum.add(MatrixRef::new(&x, rows, k))
        }
    }
}

/// The name of the Hessian that is meant: the tensor named, the only one, or the
/// only square one that is not a held-out part.
pub fn choose(file: &TensorFile, name: Option<&str>) -> Result<String, TensorError> {
    let names = file.names();
    if name.is_some() || names.len() <= 1 {
        return file.choose(name);
    }
    let is_held =
        |name: &str| name.strip_suffix(HELD_OUT).is_some_and(|of| file.shape(of).is_some());
    let is_square = |name: &str| matches!(file.shape(name), Some([a, b]) if a == b);
    let square: Vec<&String> =
        names.iter().filter(|name| is_square(name) && !is_held(name)).collect();
    match square.as_slice() {
        [only] => Ok(only.to_string()),
        square => {
            let square = square.len();
            Err(file.wrong(TensorFault::NoSingleSquare { square, names }))
        }
    }
}

/// A tensor as a square matrix in f64.
fn matrix(entry: &Entry<'_>) -> Result<Matrix<f64>, TensorError> {
    let expected = match *entry.shape {
        [rows, cols] if rows == cols && rows > MAX_COLUMNS => {
            format!("H may have up to {MAX_COLUMNS} columns")
        }
        [rows, cols] if rows == cols => return Ok(Matrix::from_vec(rows, cols, entry.to_f64())),
        _ => "H must be a square matrix".to_string(),
    };
    let (name, shape) = (entry.name.to_string(), entry.shape.to_vec());
    Err(entry.wrong(TensorFault::Shape { name, shape, expected }))
}

/// A whole number in the metadata, where there is one.
fn count(file: &TensorFile, key: &str) -> Result<Option<usize>, TensorError> {
    let Some(value) = file.metadata(key) else { return Ok(None) };
    match value.parse() {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => Err(file.wrong(TensorFault::Metadata {
            key: key.to_string(),
            value: value.chars().take(40).collect(),
            expected: "it must be a whole number above zero",
        })),
    }
}
