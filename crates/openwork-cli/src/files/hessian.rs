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

use super::dtype::Dtype;
use super::error::{Fault, FileError};
use super::place::Place;
use super::store::{Entry, Store};
use super::write::Part;
use half::{bf16, f16};
use openwork::hessian::{Hessian, HessianError, HessianSum};
use openwork::{Matrix, MatrixRef};

/// The most columns H may have: a file of a few bytes must not ask for more
/// memory than a machine has. 65536 columns are 32 GB.
pub const MAX_COLUMNS: usize = 1 << 16;

/// What follows the name of the held-out part.
const HELD_OUT: &str = ".held_out";

/// Samples converted and added at a time.
const ROWS: usize = 2048;

/// The Hessian called `name`, with its held-out part where the file has it.
pub fn load(store: &Store, name: &str) -> Result<Hessian, FileError> {
    let entry = store.entry(name, "H", Dtype::ALL)?;
    let h = matrix(&entry)?;
    let wrong = |error: HessianError| {
        let advice = match error {
            HessianError::Entry { value, .. }
                if value.is_infinite() && entry.dtype == Dtype::F16 =>
            {
                "; f16 ends at 65504, so store H as f32 or f64"
            }
            _ => "",
        };
        store.wrong(Fault::Hessian { name: name.to_string(), error, advice })
    };
    let samples = count(store, &format!("{name}.samples"))?;
    let held_name = format!("{name}{HELD_OUT}");
    if store.shape(&held_name).is_none() {
        return Hessian::from_matrix(h, samples).map_err(wrong);
    }
    let missing = |key: String| store.wrong(Fault::NoCount { name: held_name.clone(), key });
    let samples = samples.ok_or_else(|| missing(format!("{name}.samples")))?;
    let key = format!("{name}.held_out_samples");
    let held_samples = count(store, &key)?.ok_or_else(|| missing(key))?;
    let held = matrix(&store.entry(&held_name, "H", Dtype::ALL)?)?;
    Hessian::from_parts(h, samples, Some((held, held_samples))).map_err(wrong)
}

/// A Hessian under `name`, ready to be written: its tensors and its metadata.
pub fn stored<'a>(name: &str, h: &'a Hessian) -> (Vec<Part<'a>>, Vec<(String, String)>) {
    let part = |name: String, h: &Matrix<f64>| Part {
        name,
        dtype: Dtype::F64,
        shape: vec![h.rows(), h.cols()],
        bytes: h.data().iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let mut parts = vec![part(name.to_string(), h.matrix())];
    let mut metadata = Vec::new();
    if let Some(samples) = h.samples() {
        metadata.push((format!("{name}.samples"), samples.to_string()));
    }
    if let Some((held, samples)) = h.held_out() {
        parts.push(part(format!("{name}{HELD_OUT}"), held));
        metadata.push((format!("{name}.held_out_samples"), samples.to_string()));
    }
    (parts, metadata)
}

/// H of the inputs called `name`: every row is a sample, and so is every last
/// axis of a tensor with more dims. `columns` is what they must have, where
/// known. `progress` hears the share done.
pub fn stream(
    store: &Store,
    name: &str,
    columns: Option<usize>,
    progress: &dyn Fn(f64),
) -> Result<Hessian, FileError> {
    let entry = store.entry(name, "inputs", Dtype::SAMPLES)?;
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
        return Err(entry.wrong(Fault::Shape { name: name.to_string(), shape, expected }));
    }
    let k = entry.shape[entry.shape.len() - 1];
    let mut sum = HessianSum::new(k);
    let chunk = ROWS * k * entry.dtype.bytes();
    let wrong = |error| entry.wrong(Fault::Hessian { name: name.to_string(), error, advice: "" });
    for (i, bytes) in entry.bytes.chunks(chunk).enumerate() {
        add(&mut sum, bytes, k, entry.dtype).map_err(wrong)?;
        progress(((i + 1) * chunk).min(entry.bytes.len()) as f64 / entry.bytes.len() as f64);
    }
    sum.finish().map_err(wrong)
}

/// Adds samples as their type, so that a message can name it.
fn add(sum: &mut HessianSum, bytes: &[u8], k: usize, dtype: Dtype) -> Result<(), HessianError> {
    fn pairs(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> + '_ {
        bytes.chunks_exact(2).map(|b| [b[0], b[1]])
    }
    let rows = bytes.len() / (k * dtype.bytes());
    match dtype {
        Dtype::F16 => {
            let x: Vec<f16> = pairs(bytes).map(f16::from_le_bytes).collect();
            sum.add(MatrixRef::new(&x, rows, k))
        }
        Dtype::BF16 => {
            let x: Vec<bf16> = pairs(bytes).map(bf16::from_le_bytes).collect();
            sum.add(MatrixRef::new(&x, rows, k))
        }
        Dtype::F32 | Dtype::F64 => {
            let x: Vec<f32> =
                bytes.chunks_exact(dtype.bytes()).map(|b| dtype.read(b) as f32).collect();
            sum.add(MatrixRef::new(&x, rows, k))
        }
    }
}

/// The name of the Hessian that `place` means: the tensor it names, the only
/// one, or the only square one that is not a held-out part.
pub fn choose(store: &Store, place: &Place) -> Result<String, FileError> {
    let names = store.names();
    if place.tensor.is_some() || names.len() <= 1 {
        return store.choose(place);
    }
    let is_held =
        |name: &str| name.strip_suffix(HELD_OUT).is_some_and(|of| store.shape(of).is_some());
    let is_square = |name: &str| matches!(store.shape(name), Some([a, b]) if a == b);
    let mut square = names.iter().filter(|name| is_square(name) && !is_held(name));
    match (square.next(), square.next()) {
        (Some(only), None) => Ok(only.clone()),
        (first, second) => {
            let square =
                usize::from(first.is_some()) + usize::from(second.is_some()) + square.count();
            Err(store.wrong(Fault::NoSingleSquare { square, names }))
        }
    }
}

/// A tensor as a square matrix in f64.
fn matrix(entry: &Entry<'_>) -> Result<Matrix<f64>, FileError> {
    let wrong = |expected: String| {
        let (name, shape) = (entry.name.clone(), entry.shape.to_vec());
        Err(entry.wrong(Fault::Shape { name, shape, expected }))
    };
    match *entry.shape {
        [rows, cols] if rows == cols && rows > MAX_COLUMNS => {
            wrong(format!("H may have up to {MAX_COLUMNS} columns"))
        }
        [rows, cols] if rows == cols => {
            let numbers = entry.bytes.chunks_exact(entry.dtype.bytes());
            Ok(Matrix::from_vec(rows, cols, numbers.map(|b| entry.dtype.read(b)).collect()))
        }
        _ => wrong("H must be a square matrix".to_string()),
    }
}

/// A whole number in the metadata, where there is one.
fn count(store: &Store, key: &str) -> Result<Option<usize>, FileError> {
    let Some(value) = store.metadata(key) else { return Ok(None) };
    match value.parse() {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => Err(store.wrong(Fault::Metadata {
            key: key.to_string(),
            value: value.chars().take(40).collect(),
            expected: "it must be a whole number above zero",
        })),
    }
}
