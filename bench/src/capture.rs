//! Layers captured by capture.py: weights and Hessians of a real model.

use super::Failed;
use openwork::Matrix;
use openwork::hessian::Hessian;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::path::Path;

/// One linear layer.
pub struct Capture {
    /// Decoder layer and linear, such as `14.q`.
    pub name: String,
    /// The dense weights.
    pub weight: Matrix,
    /// H of all calibration tokens.
    pub hessian: Hessian,
}

/// The names of all layers in a folder, sorted.
pub fn names(folder: &Path) -> Result<Vec<String>, Failed> {
    let mut names = Vec::new();
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads the layer called `name`.
pub fn load(folder: &Path, name: &str) -> Result<Capture, Failed> {
    let path = folder.join(format!("{name}.safetensors"));
    let wrong = |error: String| format!("{}: {error}", path.display());
    let bytes = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
    let (_, header) =
        SafeTensors::read_metadata(&bytes).map_err(|error| wrong(error.to_string()))?;
    let tokens = header.metadata().as_ref().and_then(|m| m.get("tokens")?.parse().ok());
    let file = SafeTensors::deserialize(&bytes).map_err(|error| wrong(error.to_string()))?;
    let tensor = |name: &str, dtype: Dtype| -> Result<TensorView<'_>, Failed> {
        let tensor = file.tensor(name).map_err(|error| wrong(error.to_string()))?;
        match (tensor.shape(), tensor.dtype()) {
            ([_, _], found) if found == dtype => Ok(tensor),
            (shape, found) => Err(wrong(format!("`{name}` is {found:?} {shape:?}")).into()),
        }
    };
    let w = tensor("weight", Dtype::F32)?;
    let numbers = w.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let weight = Matrix::from_vec(w.shape()[0], w.shape()[1], numbers.collect());
    let h = tensor("hessian", Dtype::F64)?;
    let numbers = h
        .data()
        .chunks_exact(8)
        .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]));
    let hessian = Matrix::from_vec(h.shape()[0], h.shape()[1], numbers.collect());
    let hessian =
        Hessian::from_matrix(hessian, tokens).map_err(|error| wrong(error.to_string()))?;
    Ok(Capture { name: name.to_string(), weight, hessian })
}
