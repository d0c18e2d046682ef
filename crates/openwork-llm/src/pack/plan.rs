//! Which tensors of a model are packed, and with which spec.

use super::{PackModelError, ValueChoice};
use crate::checkpoint::Checkpoint;
use crate::model::{LayerInfo, Model};
use crate::report::Record;
use openwork::{Pattern, Spec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The patterns of a model's linears.
#[derive(Clone, Debug)]
pub enum Patterns {
    /// No linear is pruned.
    Dense,
    /// One pattern for all linears.
    All(Box<Pattern>),
    /// One per tensor; tensors without an entry stay dense.
    PerTensor(BTreeMap<String, Pattern>),
}

/// Tensors that are packed together: one, or the members of a coupling.
#[derive(Clone, Debug)]
pub struct Group {
    /// The layer.
    pub layer: usize,
    /// Indices into the layer's linears, in the spec's order.
    pub linears: Vec<usize>,
    /// The tensors' names.
    pub names: Vec<String>,
    /// The pattern bound to their shapes.
    pub spec: Arc<Spec>,
}

impl Patterns {
    /// The patterns in the record of the run that pruned a folder.
    pub fn from_record(source: &Checkpoint) -> Result<Self, PackModelError> {
        let record = Record::read(source.path())
            .map_err(|error| PackModelError::NoPattern(error.to_string()))?;
        let mut each = BTreeMap::new();
        for linear in record.linears() {
            if let Some(text) = &linear.spec {
                each.insert(linear.name.clone(), parse(text)?);
            }
        }
        Ok(Self::PerTensor(each))
    }

    /// The same, with no pattern at all where the run removed structures and left dense
    /// linears.
    pub fn from_pruned(source: &Checkpoint) -> Result<Self, PackModelError> {
        Ok(match Self::from_record(source)? {
            Self::PerTensor(each) if each.is_empty() => Self::Dense,
            patterns => patterns,
        })
    }

    /// One pattern for all linears.
    pub fn all(text: &str) -> Result<Self, PackModelError> {
        Ok(Self::All(Box::new(parse(text)?)))
    }

    /// The patterns to pack a model with: `spec` for all linears, or those of the run that
    /// pruned it. Without either, a model whose value types are chosen is packed unpruned.
    pub fn choose(
        spec: Option<&str>,
        values: &ValueChoice,
        source: &Checkpoint,
    ) -> Result<Self, PackModelError> {
        let pruned = source.path().join("openwork/record.json").exists();
        match spec {
            Some(text) => Self::all(text),
            None if values.any() && !pruned => Ok(Self::Dense),
            None => Self::from_record(source),
        }
    }

    fn get(&self, name: &str) -> Option<&Pattern> {
        match self {
            Self::Dense => None,
            Self::All(pattern) => Some(pattern),
            Self::PerTensor(each) => each.get(name),
        }
    }

    /// The patterns bound to a model's linears, in layer order.
    pub fn groups(&self, model: &Model<'_>) -> Result<Vec<Group>, PackModelError> {
        let mut groups: Vec<Group> = Vec::new();
        for layer in 0..model.config().layers {
            let first = groups.len();
            let info = LayerInfo::new(model.config(), layer);
            for linear in 0..info.linears.len() {
                let name = info.weight_name(linear);
                let Some(pattern) = self.get(&name) else { continue };
                if groups[first..].iter().any(|group| group.linears.contains(&linear)) {
                    continue;
                }
                let members = pattern.members();
                let linears = match members.is_empty() {
                    true => vec![linear],
                    false => {
                        let expert = info.linears[linear].expert;
                        let found = members.iter().map(|name| info.find(name, expert));
                        match found.collect::<Option<Vec<_>>>() {
                            Some(linears) if linears.contains(&linear) => linears,
                            _ => continue, // not a member of the coupling: it stays dense
                        }
                    }
                };
                let labels = if members.is_empty() {
                    vec![info.linears[linear].name.as_str()]
                } else {
                    members
                };
                let tensors: Vec<(&str, &[usize])> = labels
                    .iter()
                    .zip(&linears)
                    .map(|(n, &i)| (*n, &info.linears[i].shape[..]))
                    .collect();
                let spec = pattern.bind_all(&tensors).map_err(|error| PackModelError::Tensor {
                    tensor: name.clone(),
                    why: error.to_string(),
                })?;
                let names = linears.iter().map(|&i| info.weight_name(i)).collect();
                groups.push(Group { layer, linears, names, spec: Arc::new(spec) });
            }
        }
        match groups.is_empty() && !matches!(self, Self::Dense) {
            true => Err(PackModelError::Plan("no tensor was pruned: nothing to pack".into())),
            false => Ok(groups),
        }
    }
}

fn parse(text: &str) -> Result<Pattern, PackModelError> {
    text.parse::<Pattern>().map_err(|error| PackModelError::Plan(error.to_string()))
}
