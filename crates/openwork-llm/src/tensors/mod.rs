//! Single tensors in safetensors files: weights, inputs and Hessians.
//!
//! ```text
//! TensorFile::open --entry--> Entry --> f32 weights | samples | Hessian
//! mapped, checked             one tensor, type and shape checked
//! ```
//!
//! The file itself is read by [`checkpoint`](crate::checkpoint) and written by
//! [`write::shard`](crate::checkpoint::write::shard), as models are.

mod error;
pub mod hessian;

pub use error::{TensorError, TensorFault};

use crate::checkpoint::write::encode;
use crate::checkpoint::{Dtype, SafetensorsFile};
use openwork::spec::distance;
use std::path::Path;

/// The types of weights and Hessians.
pub const FLOATS: &[Dtype] = &[Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16];
/// The types of samples.
pub const SAMPLES: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

/// An open safetensors file, whose header has been read and checked.
#[derive(Debug)]
pub struct TensorFile {
    file: SafetensorsFile,
}

/// One tensor of a file, of a known floating-point type.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    file: &'a TensorFile,
    /// Its name in the file.
    pub name: &'a str,
    /// Its dims.
    pub shape: &'a [usize],
    /// The type of its numbers.
    pub dtype: Dtype,
    /// Its numbers, little-endian.
    pub bytes: &'a [u8],
}

impl TensorFile {
    /// Opens and checks the file at `path`.
    pub fn open(path: &Path) -> Result<Self, TensorError> {
        Ok(Self { file: SafetensorsFile::open(path)? })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.file.tensors().map(|(name, ..)| name.to_string()).collect();
        names.sort();
        names
    }

    /// The text that the header's metadata has for `key`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.file.metadata(key)
    }

    /// An error about this file.
    pub fn wrong(&self, fault: TensorFault) -> TensorError {
        TensorError::new(self.path(), fault)
    }

    /// The dims of a tensor, if there is such a one.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.file.tensors().find(|(known, ..)| *known == name).map(|(_, _, shape, _)| shape)
    }

    /// The tensor that is meant: the one named, or the only one.
    pub fn choose(&self, name: Option<&str>) -> Result<String, TensorError> {
        let mut names = self.names();
        match name {
            Some(name) if names.iter().any(|known| known == name) => Ok(name.to_string()),
            _ if names.is_empty() => Err(self.wrong(TensorFault::Empty)),
            Some(name) => {
                let near = names.iter().min_by_key(|known| distance(name, known));
                let hint = near
                    .filter(|near| distance(name, near) <= 2)
                    .map_or(String::new(), |near| format!("did you mean `{near}`? "));
                Err(self.wrong(TensorFault::NoTensor { name: name.to_string(), hint, names }))
            }
            None if names.len() == 1 => Ok(names.remove(0)),
            None => Err(self.wrong(TensorFault::Ambiguous { names })),
        }
    }

    /// The tensor called `name`, of one of the types `allowed`; `what` it is to
    /// be used as goes into the message.
    pub fn entry(
        &self,
        name: &str,
        what: &'static str,
        allowed: &'static [Dtype],
    ) -> Result<Entry<'_>, TensorError> {
        let found = self.file.tensors().find(|(known, ..)| *known == name);
        let Some((name, dtype, shape, bytes)) = found else {
            let (name, names) = (name.to_string(), self.names());
            return Err(self.wrong(TensorFault::NoTensor { name, hint: String::new(), names }));
        };
        if !allowed.contains(&dtype) {
            let name = name.to_string();
            return Err(self.wrong(TensorFault::Type { name, found: dtype, what, allowed }));
        }
        Ok(Entry { file: self, name, shape, dtype, bytes })
    }
}

impl Entry<'_> {
    /// An error about the file that this tensor is in.
    pub fn wrong(&self, fault: TensorFault) -> TensorError {
        self.file.wrong(fault)
    }

    /// How many numbers there are.
    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.block_bytes()
    }

    fn decode(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.dtype.decode(self.bytes, &mut values);
        values
    }

    /// All numbers as f32. NaN and infinity pass, to be refused by name later; a
    /// finite f64 that f32 cannot hold is refused here.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        let values = self.decode();
        if self.dtype == Dtype::F64
            && let Some((offset, value)) = self
                .to_f64()
                .into_iter()
                .enumerate()
                .find(|&(offset, value)| value.is_finite() && values[offset].is_infinite())
        {
            let name = self.name.to_string();
            return Err(self.wrong(TensorFault::Narrow { name, offset, value }));
        }
        Ok(values)
    }

    /// All numbers as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        match self.dtype {
            Dtype::F64 => {
                self.bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
            }
            _ => self.decode().into_iter().map(f64::from).collect(),
        }
    }

    /// The tensor's bytes with new numbers. Numbers that did not change keep
    /// their bytes, also where f32 rounds them.
    pub fn replaced(&self, new: &[f32]) -> Result<Vec<u8>, TensorError> {
        let mut bytes = Vec::new();
        let encoded = encode(self.dtype, new, &mut bytes);
        let wrong = encoded.err().or_else(|| new.iter().copied().find(|value| !value.is_finite()));
        if let Some(value) = wrong {
            let same = |other: &f32| other.to_bits() == value.to_bits();
            let (name, dtype) = (self.name.to_string(), self.dtype);
            let offset = new.iter().position(same).unwrap_or(0);
            return Err(self.wrong(TensorFault::Overflow { name, offset, value, dtype }));
        }
        let size = self.dtype.block_bytes();
        for (i, (old, new)) in self.decode().iter().zip(new).enumerate() {
            if old.to_bits() == new.to_bits() {
                let range = i * size..(i + 1) * size;
                bytes[range.clone()].copy_from_slice(&self.bytes[range]);
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::write::{Data, Part, shard};

    #[test]
    fn unchanged_numbers_keep_their_bytes_and_new_ones_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        // Not a number of f32.
        let old = [0.1f64, 2.0, -3.5];
        let bytes: Vec<u8> = old.iter().flat_map(|x| x.to_le_bytes()).collect();
        shard(&path, &[Part::new("w", Dtype::F64, &[3], Data::Bytes(&bytes))], &[]).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let entry = file.entry("w", "weights", FLOATS).unwrap();
        assert_eq!(entry.to_f64(), old);
        let mut values = entry.to_f32().unwrap();
        values[1] = 0.0;
        let new = entry.replaced(&values).unwrap();
        assert_eq!(new[..8], 0.1f64.to_le_bytes());
        assert_eq!(new[8..16], 0.0f64.to_le_bytes());
        let error = entry.replaced(&[0.0, f32::NAN, 1.0]).unwrap_err().to_string();
        assert!(error.contains("at offset 1 of `w` is outside the range of f64"), "{error}");
        let error = file.entry("w", "inputs", SAMPLES).unwrap_err().to_string();
        assert!(error.ends_with("tensor `w` is f64; inputs must be f32, f16 or bf16"), "{error}");
    }

    #[test]
    fn a_name_that_appears_twice_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let entry = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        let header = format!(r#"{{"w":{entry},"w":{entry}}}"#);
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(&path, [&length[..], header.as_bytes()].concat()).unwrap();
        let error = TensorFile::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("tensor \"w\" is listed twice"), "{error}");
    }
}
