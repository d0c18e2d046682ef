//! Shrinking: removes pruned heads, channels and layers from every tensor they
//! touch, which leaves a smaller dense model.
//!
//! ```text
//! a channel is removable     if its column of down is zero, of an MLP or of an expert
//! a query head is removable  if its columns of o are zero
//! a key head is removable    if all query heads that read it are
//! ```
//!
//! config.json has one number of channels, query heads and key heads for all
//! layers, and every key head serves the same number of query heads. Experts and shared
//! experts have numbers of channels of their own. So all layers and experts lose the same
//! numbers, or nothing is written. The other weights of a removable
//! channel or head, biases included, do not matter: nothing reads their output.

mod plan;
mod write;

pub use write::write;

use crate::checkpoint::write::WriteError;
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype};
use crate::model::{Config, LayerInfo, Model, ModelError, Role};
use crate::staged_folder::{StageError, StagedFolder};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Why a model cannot be shrunk. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum ShrinkError {
    /// No channel or head is removable in every layer.
    #[error(
        "no channel or head can be removed from every layer: a channel needs a zero column of down_proj, in every expert if there are any, a query head zero columns of o_proj, a key head that all its query heads are removed; prune with `mlp`, `heads` or `query-heads` first"
    )]
    Nothing,
    /// Layers have different numbers of removable channels or heads.
    #[error(
        "layers have different numbers of removable {what} ({layers}), and config.json has one number for all; `openwork shrink --even` removes what every layer can: {possible}"
    )]
    Uneven {
        /// Channels or heads.
        what: &'static str,
        /// How many are removable in which layers.
        layers: String,
        /// The change with `--even`.
        possible: Box<Change>,
    },
    /// transformers does not load this number of heads.
    #[error(
        "{after} of {before} query heads would remain, and transformers loads a {family} model only if their number divides hidden_size {hidden}; possible: {possible}"
    )]
    Heads {
        /// Query heads before.
        before: usize,
        /// Query heads that would remain.
        after: usize,
        /// The family's name.
        family: &'static str,
        /// Width of the hidden state.
        hidden: usize,
        /// Numbers that can remain after removing whole key heads, or equally many
        /// query heads of each.
        possible: String,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of it cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The output folder cannot be created.
    #[error(transparent)]
    Stage(#[from] StageError),
}

/// The sizes that shrinking changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Channels of the MLP; in a model whose every layer has experts, of an expert.
    pub channels: usize,
    /// Experts of a layer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub experts: usize,
    /// Channels of an expert.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expert_channels: usize,
    /// Channels of the shared expert, or of the MLP beside experts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shared_channels: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Sizes {
    /// The sizes of a model.
    pub fn new(c: &Config) -> Self {
        Self {
            layers: c.layers,
            heads: c.heads,
            kv_heads: c.kv_heads,
            channels: c.ff,
            experts: c.experts.as_ref().map_or(0, |experts| experts.count),
            expert_channels: c.experts.as_ref().map_or(0, |experts| experts.ff),
            shared_channels: c.experts.as_ref().and_then(|all| all.shared_ff).unwrap_or(0),
        }
    }

    /// The config of a model with these sizes; which layers remain does not matter
    /// here.
    pub fn config(self, config: &Config) -> Config {
        let mut config = config.clone();
        config.attention.truncate(self.layers);
        config.layers = self.layers;
        (config.heads, config.kv_heads, config.ff) = (self.heads, self.kv_heads, self.channels);
        if config.has_equal_heads() {
            config.attention.iter_mut().for_each(|a| a.kv_heads = self.kv_heads);
        }
        if let Some(nets) = &mut config.delta_nets {
            nets.layers.truncate(self.layers);
        }
        if let Some(experts) = &mut config.experts {
            experts.layers.truncate(self.layers);
            (experts.count, experts.ff) = (self.experts, self.expert_channels);
            experts.shared_ff = experts.shared_ff.map(|_| self.shared_channels);
        }
        config
    }
}

/// Sizes before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: Sizes,
    /// After.
    pub after: Sizes,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (self.before, self.after);
        let rows = [
            ("layers", a.layers, b.layers),
            ("channels", a.channels, b.channels),
            ("query heads", a.heads, b.heads),
            ("key heads", a.kv_heads, b.kv_heads),
            ("experts", a.experts, b.experts),
            // They are the channels above where every layer has experts.
            if (a.channels, b.channels) == (a.expert_channels, b.expert_channels) {
                ("channels of experts", 0, 0)
            } else {
                ("channels of experts", a.expert_channels, b.expert_channels)
            },
            ("shared channels", a.shared_channels, b.shared_channels),
        ];
        let changed: Vec<String> = rows
            .iter()
            .filter(|(_, before, after)| before != after)
            .map(|(name, before, after)| format!("{before} to {after} {name}"))
            .collect();
        f.write_str(&if changed.is_empty() { "nothing".to_string() } else { changed.join(", ") })
    }
}

/// The layers, heads and channels that a shrunk model keeps. Holds, once built:
/// all layers keep the same number of channels, of key heads, and of query heads per
/// key head, at least one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShrinkPlan {
    /// Kept layers, in order.
    pub layers: Vec<KeptLayer>,
    /// Sizes before and after.
    pub change: Change,
}

impl Change {
    /// Whether nothing changes.
    pub fn is_nothing(&self) -> bool {
        self.before == self.after
    }
}

/// What a kept layer keeps, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLayer {
    /// Its index in the original model.
    pub index: usize,
    /// Kept channels of the MLP that every token goes through and of experts; an MLP
    /// without an entry keeps all.
    pub channels: BTreeMap<Option<u16>, Vec<usize>>,
    /// Kept query heads.
    pub heads: Vec<usize>,
    /// Kept key heads.
    pub kv_heads: Vec<usize>,
    /// Experts.
    pub experts: Vec<usize>,
}

impl KeptLayer {
    /// All of a layer.
    fn whole(config: &Config, index: usize) -> Self {
        let sizes = Sizes::new(config);
        let has = config.experts.as_ref().is_some_and(|experts| experts.layers[index]);
        Self {
            index,
            channels: BTreeMap::new(),
            heads: (0..sizes.heads).collect(),
            kv_heads: (0..sizes.kv_heads).collect(),
            experts: (0..if has { sizes.experts } else { 0 }).collect(),
        }
    }
}

/// The removable channels and heads of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removable {
    /// For each channel of the MLP that every token goes through and of each expert,
    /// whether it is removable.
    pub channels: BTreeMap<Option<u16>, Vec<bool>>,
    /// For each query head, whether it is removable.
    pub heads: Vec<bool>,
}

impl Removable {
    /// Found from the weights of linear layers, or anything with the same zeros.
    pub fn from_weights<E>(
        config: &Config,
        layer: usize,
        mut weights: impl FnMut(usize) -> Result<Vec<f32>, E>,
    ) -> Result<Self, E> {
        let info = LayerInfo::new(config, layer);
        // Layers that differ in their heads keep them.
        let heads = match config.has_equal_heads() && !config.family.gated_attention {
            false => vec![false; config.heads],
            true => zero_columns(&weights(info.mixer - 1)?, config.q_width())
                .chunks(config.head_dim)
                .map(|columns| columns.iter().all(|zero| *zero))
                .collect(),
        };
        let mut channels = BTreeMap::new();
        for (linear, down) in info.linears.iter().enumerate().filter(|(_, l)| l.role == Role::Down)
        {
            channels.insert(down.expert, zero_columns(&weights(linear)?, down.shape[1]));
        }
        Ok(Self { channels, heads })
    }

    /// Found from a layer of a checkpoint.
    pub fn read(model: &Model<'_>, layer: usize) -> Result<Self, ShrinkError> {
        let info = LayerInfo::new(model.config(), layer);
        Self::from_weights(model.config(), layer, |linear| {
            Ok(model.checkpoint().tensor(&info.weight_name(linear))?.to_f32())
        })
    }
}

/// For each column, whether all of it is zero.
fn zero_columns(weights: &[f32], columns: usize) -> Vec<bool> {
    let mut zero = vec![true; columns];
    for row in weights.chunks_exact(columns) {
        zero.iter_mut().zip(row).for_each(|(zero, w)| *zero &= *w == 0.0);
    }
    zero
}

/// What to do if layers have different numbers of removable channels or heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uneven {
    /// Fail.
    Refuse,
    /// Remove the smallest number from every layer.
    Least,
}

/// `0-3, 5`: ascending numbers as ranges.
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let text = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Writes a model without its removable channels and heads to a new folder.
pub fn shrink(
    source: &Checkpoint,
    out: &Path,
    dtype: Option<Dtype>,
    uneven: Uneven,
) -> Result<Change, ShrinkError> {
    let model = Model::open(source)?;
    model.check_decoder()?;
    let folder = StagedFolder::create(out)?;
    let removable = (0..model.config().layers)
        .into_par_iter()
        .map(|layer| Removable::read(&model, layer))
        .collect::<Result<Vec<_>, _>>()?;
    let plan = ShrinkPlan::new(model.config(), &removable, uneven)?;
    write(&model, &plan, dtype, folder.path())?;
    folder.publish()?;
    Ok(plan.change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
    }
}
