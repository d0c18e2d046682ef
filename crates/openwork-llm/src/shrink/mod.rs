//! Smaller dense models: heads, channels and layers that do nothing are left
//! out of every tensor they touch.
//!
//! ```text
//! a channel can go     if its column of down is zero
//! a query head can go  if its columns of o are zero
//! a key head can go    if all query heads that read it can
//! ```
//!
//! config.json has one number of channels, of query heads and of key heads for
//! all layers, and every key head is read by as many query heads. So all layers
//! lose the same numbers, or nothing is written. What the rows of a channel or
//! head hold elsewhere, biases too, does not matter: nothing reads them.

mod write;

pub use write::write;

use crate::checkpoint::write::WriteError;
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype};
use crate::model::{Config, Layer, Model, ModelError};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Why a model was not made smaller. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum ShrinkError {
    /// There is nothing that all layers can spare.
    #[error(
        "no channel or head can be removed from every layer: a channel goes if its column of down_proj is zero, a query head if its columns of o_proj are, a key head if all its query heads go; prune with `mlp`, `heads` or `query-heads` first"
    )]
    Nothing,
    /// Layers can spare different numbers.
    #[error(
        "layers can spare different numbers of {what} ({layers}), and config.json has one number for all; `openwork shrink --even` would remove what all can spare: {possible}"
    )]
    Uneven {
        /// Channels or heads.
        what: &'static str,
        /// Which layers can spare how many.
        layers: String,
        /// What would be left.
        possible: Change,
    },
    /// transformers refuses the number of heads.
    #[error(
        "{after} of {before} query heads would be left, and transformers loads a {family} model only if their number divides hidden_size {hidden}; possible: {possible}"
    )]
    Heads {
        /// Query heads before.
        before: usize,
        /// Query heads that would be left.
        after: usize,
        /// The family's name.
        family: &'static str,
        /// Width of the hidden state.
        hidden: usize,
        /// Numbers that can be left, by removing whole key heads or as many of each.
        possible: String,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of it cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The folder cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The sizes that removing structures changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Channels of the MLP.
    pub channels: usize,
}

impl Sizes {
    /// Those of a model.
    pub fn of(c: &Config) -> Self {
        Self { layers: c.layers, heads: c.heads, kv_heads: c.kv_heads, channels: c.ff }
    }

    /// The config of a model with these sizes. Which layers are left does not
    /// matter here.
    pub fn config(self, of: &Config) -> Config {
        let mut config = of.clone();
        config.attention.truncate(self.layers);
        config.layers = self.layers;
        (config.heads, config.kv_heads, config.ff) = (self.heads, self.kv_heads, self.channels);
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
        ];
        let changed: Vec<String> = rows
            .iter()
            .filter(|(_, before, after)| before != after)
            .map(|(name, before, after)| format!("{before} to {after} {name}"))
            .collect();
        f.write_str(&if changed.is_empty() { "nothing".to_string() } else { changed.join(", ") })
    }
}

/// What of a model stays. Holds, once built: every layer keeps as many channels,
/// key heads, and query heads of each key head as every other, at least one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Layers that stay, in their order.
    pub layers: Vec<LayerCut>,
    /// Sizes before and after.
    pub change: Change,
}

impl Change {
    /// Whether nothing changes.
    pub fn is_nothing(&self) -> bool {
        self.before == self.after
    }
}

/// What of a layer stays, in rising order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerCut {
    /// Its number in the larger model.
    pub index: usize,
    /// Channels that stay.
    pub channels: Vec<usize>,
    /// Query heads that stay.
    pub heads: Vec<usize>,
    /// Key heads that stay.
    pub kv_heads: Vec<usize>,
}

/// What a layer can do without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// For each channel, whether it can go.
    pub channels: Vec<bool>,
    /// For each query head, whether it can go.
    pub heads: Vec<bool>,
}

impl Spare {
    /// Of the weights of `o` and `down`, or anything that is zero where they are.
    pub fn of(config: &Config, o: &[f32], down: &[f32]) -> Self {
        let head_zero: Vec<bool> = zero_columns(o, config.q_width())
            .chunks(config.head_dim)
            .map(|columns| columns.iter().all(|zero| *zero))
            .collect();
        Self { channels: zero_columns(down, config.ff), heads: head_zero }
    }

    /// Of a layer in a checkpoint.
    pub fn read(model: &Model<'_>, layer: usize) -> Result<Self, ShrinkError> {
        let read = |linear: usize| -> Result<Vec<f32>, CheckpointError> {
            Ok(model.checkpoint().tensor(&Layer::weight_name(layer, linear))?.to_f32())
        };
        Ok(Self::of(model.config(), &read(3)?, &read(6)?))
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

/// Whether layers may spare more than is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uneven {
    /// Everything that can go goes, or it is an error.
    Refuse,
    /// What all layers can spare goes.
    Least,
}

impl Cut {
    /// All channels and heads of some layers.
    pub fn layers(config: &Config, kept: &[usize]) -> Self {
        let layer = |&index: &usize| LayerCut {
            index,
            channels: (0..config.ff).collect(),
            heads: (0..config.heads).collect(),
            kv_heads: (0..config.kv_heads).collect(),
        };
        let before = Sizes::of(config);
        let change = Change { before, after: Sizes { layers: kept.len(), ..before } };
        Self { layers: kept.iter().map(layer).collect(), change }
    }

    /// What stays of a model whose layers can spare these. One channel, one key
    /// head and one query head of each key head always stay.
    pub fn of(config: &Config, spares: &[Spare], uneven: Uneven) -> Result<Self, ShrinkError> {
        let group = config.group_size();
        let channels = |spare: &Spare| spare.channels.iter().filter(|free| **free).count();
        let free_in = |spare: &Spare, kv: usize| {
            spare.heads[kv * group..][..group].iter().filter(|free| **free).count()
        };
        let whole = |spare: &Spare| {
            (0..config.kv_heads).filter(|&kv| free_in(spare, kv) == group).collect::<Vec<_>>()
        };

        // What all can spare: channels, key heads, then query heads of those that stay.
        let least = |count: &dyn Fn(&Spare) -> usize| spares.iter().map(count).min().unwrap_or(0);
        let lost_channels = least(&channels).min(config.ff - 1);
        let lost_kv = least(&|spare| whole(spare).len()).min(config.kv_heads - 1);
        let kv_of = |spare: &Spare| -> Vec<usize> {
            let gone = whole(spare);
            let gone = &gone[..lost_kv];
            (0..config.kv_heads).filter(|kv| !gone.contains(kv)).collect()
        };
        let lost_heads = least(&|spare| {
            kv_of(spare).into_iter().map(|kv| free_in(spare, kv)).min().unwrap_or(0)
        })
        .min(group - 1);

        let layer = |(index, spare): (usize, &Spare)| {
            let kv_heads = kv_of(spare);
            let heads = kv_heads
                .iter()
                .flat_map(|kv| {
                    let free = &spare.heads[kv * group..][..group];
                    without(free, lost_heads).map(move |head| kv * group + head)
                })
                .collect();
            let channels = without(&spare.channels, lost_channels).collect();
            LayerCut { index, channels, heads, kv_heads }
        };
        let layers: Vec<LayerCut> = spares.iter().enumerate().map(layer).collect();
        let before = Sizes::of(config);
        let kv_heads = config.kv_heads - lost_kv;
        let after = Sizes {
            layers: spares.len(),
            heads: kv_heads * (group - lost_heads),
            kv_heads,
            channels: config.ff - lost_channels,
        };
        let change = Change { before, after };

        if uneven == Uneven::Refuse {
            let heads = |spare: &Spare| spare.heads.iter().filter(|free| **free).count();
            let rows: [(&str, &dyn Fn(&Spare) -> usize, usize); 2] = [
                ("channels", &channels, lost_channels),
                ("query heads", &heads, before.heads - after.heads),
            ];
            for (what, count, lost) in rows {
                let counts: Vec<usize> = spares.iter().map(count).collect();
                if counts.iter().any(|found| *found != lost) {
                    let layers = by_count(&counts);
                    return Err(ShrinkError::Uneven { what, layers, possible: change });
                }
            }
        }
        if change.is_nothing() {
            return Err(ShrinkError::Nothing);
        }
        check_heads(config, after.heads)?;
        Ok(Self { layers, change })
    }
}

/// Refuses a number of query heads that transformers does.
fn check_heads(config: &Config, after: usize) -> Result<(), ShrinkError> {
    let divides = |heads: usize| config.hidden.is_multiple_of(heads);
    if !config.family.heads_divide_hidden || after == config.heads || divides(after) {
        return Ok(());
    }
    // Key heads times query heads of each.
    let can_be = |heads: usize| {
        (1..=config.kv_heads)
            .any(|kv| heads.is_multiple_of(kv) && heads / kv <= config.group_size())
    };
    let possible: Vec<String> = (1..config.heads)
        .filter(|&heads| divides(heads) && can_be(heads))
        .map(|heads| heads.to_string())
        .collect();
    Err(ShrinkError::Heads {
        before: config.heads,
        after,
        family: config.family.name,
        hidden: config.hidden,
        possible: possible.join(", "),
    })
}

/// The places of all but the first `lost` that are free.
fn without(free: &[bool], lost: usize) -> impl Iterator<Item = usize> {
    let mut left = lost;
    free.iter().enumerate().filter_map(move |(place, &free)| {
        let goes = free && left > 0;
        left -= usize::from(goes);
        (!goes).then_some(place)
    })
}

/// `4 in layers 0-3, 5; 3 in layer 4`, the most frequent first.
fn by_count(counts: &[usize]) -> String {
    let mut kinds: Vec<(usize, Vec<usize>)> = Vec::new();
    for (layer, &count) in counts.iter().enumerate() {
        match kinds.iter_mut().find(|(known, _)| *known == count) {
            Some((_, layers)) => layers.push(layer),
            None => kinds.push((count, vec![layer])),
        }
    }
    kinds.sort_by_key(|(_, layers)| std::cmp::Reverse(layers.len()));
    let more = kinds.len().saturating_sub(6);
    let mut texts: Vec<String> = kinds
        .iter()
        .take(6)
        .map(|(count, layers)| {
            let word = if layers.len() == 1 { "layer" } else { "layers" };
            format!("{count} in {word} {}", ranges(layers))
        })
        .collect();
    if more > 0 {
        texts.push(format!("{more} other numbers"));
    }
    texts.join("; ")
}

/// `0-3, 5` of rising numbers.
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

/// Finds what the layers of a model can spare, and writes the smaller model to
/// a folder.
pub fn shrink(
    source: &Checkpoint,
    out: &Path,
    dtype: Option<Dtype>,
    uneven: Uneven,
) -> Result<Change, ShrinkError> {
    let model = Model::open(source)?;
    let spares = (0..model.config().layers)
        .into_par_iter()
        .map(|layer| Spare::read(&model, layer))
        .collect::<Result<Vec<_>, _>>()?;
    let cut = Cut::of(model.config(), &spares, uneven)?;
    write(&model, &cut, dtype, out)?;
    Ok(cut.change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(by_count(&[4, 4, 3, 4]), "4 in layers 0-1, 3; 3 in layer 2");
    }
}
