//! Hessians in safetensors files; docs/formats.md describes the format.

use crate::error::HessianError;
use half::{bf16, f16};
use openwork::Matrix;
use openwork::hessian::Hessian;
use pyo3::PyResult;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use std::collections::HashMap;
use std::path::Path;

/// The most columns H may have: 32 GB.
const MAX_COLUMNS: usize = 1 << 16;

/// Refuses an H that no machine holds, or that has no columns.
pub fn check_columns(columns: usize) -> PyResult<()> {
    if (1..=MAX_COLUMNS).contains(&columns) {
        return Ok(());
    }
    Err(HessianError::new_err(format!(
        "H would have {columns} columns; it may have 1 to {MAX_COLUMNS}"
    )))
}

/// Writes H under `name`; the file appears only when it is whole.
pub fn save(h: &Hessian, path: &Path, name: &str) -> PyResult<()> {
    let wrong = |error: &dyn std::fmt::Display| {
        HessianError::new_err(format!("{}: {error}", path.display()))
    };
    let bytes = |m: &Matrix<f64>| m.data().iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let k = h.columns();
    let mut parts = vec![(name.to_string(), bytes(h.matrix()))];
    let mut metadata = HashMap::new();
    if let Some(samples) = h.samples() {
        metadata.insert(format!("{name}.samples"), samples.to_string());
    }
    if let Some((held, samples)) = h.held_out() {
        parts.push((format!("{name}.held_out"), bytes(held)));
        metadata.insert(format!("{name}.held_out_samples"), samples.to_string());
    }
    let views = parts
        .iter()
        .map(|(name, data)| Ok((name, TensorView::new(Dtype::F64, vec![k, k], data)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| wrong(&error))?;
    let file = serialize(views, Some(metadata)).map_err(|error| wrong(&error))?;
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".part");
    std::fs::write(&beside, file)
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|error| wrong(&format!("cannot be written: {error}")))
}

/// Reads the H called `name`.
pub fn load(path: &Path, name: &str) -> PyResult<Hessian> {
    let wrong = |error: &dyn std::fmt::Display| {
        HessianError::new_err(format!("{}: {error}", path.display()))
    };
    let file = std::fs::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => wrong(&"no such file"),
        _ => wrong(&format!("cannot be read: {error}")),
    })?;
    let (_, header) = SafeTensors::read_metadata(&file)
        .map_err(|error| wrong(&format!("is not a safetensors file: {error}")))?;
    let tensors = SafeTensors::deserialize(&file)
        .map_err(|error| wrong(&format!("is not a safetensors file: {error}")))?;
    let count = |key: &str| -> PyResult<Option<usize>> {
        let value = header.metadata().as_ref().and_then(|all| all.get(key));
        match value.map(|text| text.parse::<usize>()) {
            None => Ok(None),
            Some(Ok(n)) if n > 0 => Ok(Some(n)),
            Some(_) => Err(wrong(&format!("metadata `{key}` must be a whole number above zero"))),
        }
    };
    let matrix = |name: &str| -> PyResult<Option<Matrix<f64>>> {
        let Ok(view) = tensors.tensor(name) else { return Ok(None) };
        let &[rows, cols] = view.shape() else {
            let shape = view.shape();
            let words = format!("tensor `{name}` has shape {shape:?}; H must be a square matrix");
            return Err(wrong(&words));
        };
        check_columns(cols).map_err(|error| wrong(&error))?;
        let data = numbers(view.dtype(), view.data()).ok_or_else(|| {
            let found = view.dtype();
            wrong(&format!("tensor `{name}` is {found:?}; H must be F64, F32, F16 or BF16"))
        })?;
        Ok(Some(Matrix::from_vec(rows, cols, data)))
    };
    let h = matrix(name)?.ok_or_else(|| {
        let names = tensors.names().join(", ");
        wrong(&format!("has no tensor `{name}`; it has {names}"))
    })?;
    let samples = count(&format!("{name}.samples"))?;
    let held = matrix(&format!("{name}.held_out"))?;
    let known = match (samples, held, count(&format!("{name}.held_out_samples"))?) {
        (Some(samples), Some(held), Some(n)) => Hessian::from_parts(h, samples, Some((held, n))),
        (_, Some(_), _) => {
            return Err(wrong(&format!(
                "there is a tensor `{name}.held_out`, but metadata `{name}.samples` or \
                 `{name}.held_out_samples` is missing; see docs/formats.md"
            )));
        }
        (samples, None, _) => Hessian::from_matrix(h, samples),
    };
    known.map_err(|error| wrong(&format!("tensor `{name}`: {error}")))
}

/// Numbers as f64; nothing for a type that H cannot have.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    Some(match dtype {
        Dtype::F64 => bytes.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        Dtype::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
        }
        Dtype::F16 => pairs().map(|&b| f16::from_le_bytes(b).to_f64()).collect(),
        Dtype::BF16 => pairs().map(|&b| bf16::from_le_bytes(b).to_f64()).collect(),
        _ => return None,
    })
}
