//! How the weights of a packed model are stored: which value type for which tensor.

use super::{PackModelError, storage_dtype};
use crate::checkpoint::write::{Data, Part};
use crate::checkpoint::{Checkpoint, Dtype, Tensor};
use crate::model::{is_linear_name, split_layer_name};
use crate::report::Record;
use openwork::sparse::{Encoding, Packed, ValueType};
use openwork::{Pattern, Spec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The value types of a packed model; tensors without one keep their type.
#[derive(Clone, Debug, Default)]
pub struct ValueChoice {
    /// For all linears of the layers, pruned or not.
    pub linears: Option<Encoding>,
    /// For the embedding and the output head.
    pub head: Option<Encoding>,
    /// For single linears where `linears` gives none: those that a run has rounded to
    /// codes.
    pub rounded: BTreeMap<String, Encoding>,
}

/// Tensors that the head's choice applies to.
const HEAD: [&str; 3] =
    ["model.embed_tokens.weight", "lm_head.weight", "embeddings.word_embeddings.weight"];

/// The pattern of a tensor that is not pruned.
const DENSE: &str = "keep 100%";

/// The spec of a tensor that is not pruned.
pub(super) fn dense_spec(shape: &[usize]) -> Result<Arc<Spec>, String> {
    let pattern: Pattern = DENSE.parse().map_err(|error| format!("{error}"))?;
    Ok(Arc::new(pattern.bind(shape).map_err(|error| error.to_string())?))
}

impl ValueChoice {
    /// The same choice with the codes that the run of a folder has rounded its linears to;
    /// nothing is added if there was no run.
    pub fn with_record(mut self, source: &Checkpoint) -> Self {
        let Ok(record) = Record::read(source.path()) else { return self };
        for linear in record.linears() {
            if let Some(encoding) = linear.encoding() {
                self.rounded.insert(linear.name.clone(), encoding);
            }
        }
        self
    }

    /// Whether a type is chosen, for linears or for embedding and head.
    pub fn any(&self) -> bool {
        self.linears.is_some() || self.head.is_some()
    }

    /// What the user should know: linears that are rounded a second time.
    pub fn note(&self) -> Option<String> {
        let again = self.rounded.iter().find(|(_, codes)| {
            self.linears.is_some_and(|chosen| chosen.kind().has_codes() && chosen != **codes)
        });
        again.map(|(name, codes)| {
            let group = codes.group();
            format!(
                "the run rounded {name} to {codes} in groups of {group}; another type rounds it again"
            )
        })
    }

    /// The choice for a tensor.
    pub fn encoding(&self, name: &str) -> Option<Encoding> {
        let linear = || {
            let layer = split_layer_name(name)?.1.strip_suffix(".weight")?;
            is_linear_name(layer).then_some(())
        };
        match HEAD.contains(&name) {
            true => self.head,
            false => linear().and(self.linears).or_else(|| self.rounded.get(name).copied()),
        }
    }

    /// A packed tensor with its chosen values.
    pub(super) fn convert(&self, name: &str, packed: Packed) -> Result<Packed, PackModelError> {
        let Some(encoding) = self.encoding(name) else { return Ok(packed) };
        packed.with_values(encoding).map_err(|error| PackModelError::Tensor {
            tensor: name.to_string(),
            why: error.to_string(),
        })
    }

    /// A tensor written dense, in its chosen type.
    pub(super) fn dense_part<'a>(&self, tensor: Tensor<'a>) -> Part<'a> {
        let chosen =
            self.encoding(tensor.name()).and_then(|encoding| encoding.kind().number_type());
        let dtype = match chosen {
            Some(ValueType::F32) => Dtype::F32,
            Some(ValueType::F16) => Dtype::F16,
            Some(ValueType::Bf16) => Dtype::BF16,
            None => storage_dtype(&tensor),
        };
        Part::new(tensor.name(), dtype, tensor.shape(), Data::Tensor(tensor))
    }
}
