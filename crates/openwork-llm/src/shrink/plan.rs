//! Shrink plans: how many channels and heads all layers can lose, and which those are.

use super::{Change, KeptLayer, Removable, ShrinkError, ShrinkPlan, Sizes, Uneven, ranges};
use crate::model::Config;

/// MLPs whose number of channels is one number of config.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MlpKind {
    /// Of layers without experts.
    Layer,
    Expert,
    /// The shared expert, or the MLP beside experts.
    Shared,
}

impl MlpKind {
    const ALL: [MlpKind; 3] = [MlpKind::Layer, MlpKind::Expert, MlpKind::Shared];

    fn of(config: &Config, layer: usize, expert: Option<u16>) -> Self {
        let has_experts = config.experts.as_ref().is_some_and(|experts| experts.layers[layer]);
        match (expert, has_experts) {
            (Some(_), _) => Self::Expert,
            (None, true) => Self::Shared,
            (None, false) => Self::Layer,
        }
    }

    /// For messages.
    fn name(self) -> &'static str {
        match self {
            Self::Layer => "channels",
            Self::Expert => "channels of experts",
            Self::Shared => "shared channels",
        }
    }
}

/// An MLP or expert that may lose channels.
struct Mlp<'a> {
    layer: usize,
    expert: Option<u16>,
    kind: MlpKind,
    /// How often it has the number of channels of config.json: 2 if it is twice as wide.
    times: usize,
    /// How many of its channels are removable.
    removable: usize,
    flags: &'a [bool],
}

impl ShrinkPlan {
    /// Keeps these experts of each layer; layers without experts have none.
    pub fn keep_experts(config: &Config, kept: &[Vec<usize>]) -> Self {
        let layer = |(index, kept): (usize, &Vec<usize>)| KeptLayer {
            experts: kept.clone(),
            ..KeptLayer::whole(config, index)
        };
        let before = Sizes::new(config);
        let experts = kept.iter().map(Vec::len).max().unwrap_or(0);
        let change = Change { before, after: Sizes { experts, ..before } };
        Self { layers: kept.iter().enumerate().map(layer).collect(), change }
    }

    /// Keeps some layers whole and removes the others.
    pub fn keep_layers(config: &Config, kept: &[usize]) -> Self {
        let layer = |&index: &usize| KeptLayer::whole(config, index);
        let before = Sizes::new(config);
        let change = Change { before, after: Sizes { layers: kept.len(), ..before } };
        Self { layers: kept.iter().map(layer).collect(), change }
    }

    /// Removes what is removable in every layer. One channel, one key head and one
    /// query head per key head always stay.
    pub fn new(
        config: &Config,
        removable: &[Removable],
        uneven: Uneven,
    ) -> Result<Self, ShrinkError> {
        let group = config.group_size();
        let count = |flags: &[bool]| flags.iter().filter(|flag| **flag).count();
        let mlps: Vec<Mlp<'_>> = removable
            .iter()
            .enumerate()
            .flat_map(|(layer, removable)| {
                let shares_keys = config.attention[layer].shared_from.is_some();
                let wide = config.double_wide && shares_keys;
                removable.channels.iter().map(move |(&expert, flags)| Mlp {
                    layer,
                    expert,
                    kind: MlpKind::of(config, layer, expert),
                    times: if wide && expert.is_none() { 2 } else { 1 },
                    removable: count(flags),
                    flags,
                })
            })
            .collect();
        // What every MLP of a kind can lose, and still have a channel.
        let lost_channels = MlpKind::ALL.map(|kind| {
            let lost = |mlp: &Mlp<'_>| {
                (mlp.removable / mlp.times).min((mlp.flags.len() / mlp.times).saturating_sub(1))
            };
            mlps.iter().filter(|mlp| mlp.kind == kind).map(lost).min().unwrap_or(0)
        });
        let heads_of = |layer: &Removable, kv: usize| count(&layer.heads[kv * group..][..group]);
        let whole = |layer: &Removable| {
            (0..config.kv_heads).filter(|&kv| heads_of(layer, kv) == group).collect::<Vec<_>>()
        };

        // What every layer can lose: key heads, then query heads of the key heads that stay.
        let least =
            |count: &dyn Fn(&Removable) -> usize| removable.iter().map(count).min().unwrap_or(0);
        let lost_kv = least(&|layer| whole(layer).len()).min(config.kv_heads - 1);
        let kept_kv = |layer: &Removable| -> Vec<usize> {
            let lost = whole(layer);
            (0..config.kv_heads).filter(|kv| !lost[..lost_kv].contains(kv)).collect()
        };
        let lost_heads = least(&|layer| {
            kept_kv(layer).into_iter().map(|kv| heads_of(layer, kv)).min().unwrap_or(0)
        })
        .min(group - 1);

        let kept_layer = |(index, layer): (usize, &Removable)| {
            let kv_heads = kept_kv(layer);
            let heads = kv_heads
                .iter()
                .flat_map(|kv| {
                    let flags = &layer.heads[kv * group..][..group];
                    without_first(flags, lost_heads).map(move |head| kv * group + head)
                })
                .collect();
            let channels = mlps
                .iter()
                .filter(|mlp| mlp.layer == index && lost_channels[mlp.kind as usize] > 0)
                .map(|mlp| {
                    let lost = mlp.times * lost_channels[mlp.kind as usize];
                    (mlp.expert, without_first(mlp.flags, lost).collect())
                })
                .collect();
            KeptLayer { channels, heads, kv_heads, ..KeptLayer::whole(config, index) }
        };
        let layers: Vec<KeptLayer> = removable.iter().enumerate().map(kept_layer).collect();
        let before = Sizes::new(config);
        let kv_heads = config.kv_heads - lost_kv;
        let all_have_experts =
            config.experts.as_ref().is_some_and(|e| e.layers.iter().all(|has| *has));
        let of_layers = if all_have_experts { MlpKind::Expert } else { MlpKind::Layer };
        let after = Sizes {
            layers: removable.len(),
            heads: kv_heads * (group - lost_heads),
            kv_heads,
            channels: before.channels - lost_channels[of_layers as usize],
            experts: before.experts,
            expert_channels: before.expert_channels - lost_channels[MlpKind::Expert as usize],
            shared_channels: before.shared_channels - lost_channels[MlpKind::Shared as usize],
        };
        let change = Change { before, after };

        if uneven == Uneven::Refuse {
            let uneven = |what: &'static str, counts: &[(usize, usize)]| {
                let layers = by_count(counts);
                Err(ShrinkError::Uneven { what, layers, possible: Box::new(change) })
            };
            for kind in MlpKind::ALL {
                let of_kind = || mlps.iter().filter(|mlp| mlp.kind == kind);
                let lost = lost_channels[kind as usize];
                if of_kind().any(|mlp| mlp.removable != mlp.times * lost) {
                    let counts: Vec<_> = of_kind().map(|mlp| (mlp.layer, mlp.removable)).collect();
                    return uneven(kind.name(), &counts);
                }
            }
            let heads = removable.iter().map(|layer| count(&layer.heads));
            let counts: Vec<(usize, usize)> = heads.enumerate().collect();
            if counts.iter().any(|(_, found)| *found != before.heads - after.heads) {
                return uneven("query heads", &counts);
            }
        }
        if change.is_nothing() {
            return Err(ShrinkError::Nothing);
        }
        check_heads(config, after.heads)?;
        Ok(Self { layers, change })
    }
}

/// Refuses a number of query heads that transformers does not load.
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

/// All indices but those of the first `lost` flags that are set.
fn without_first(flags: &[bool], lost: usize) -> impl Iterator<Item = usize> {
    let mut left = lost;
    flags.iter().enumerate().filter_map(move |(index, &flag)| {
        let removed = flag && left > 0;
        left -= usize::from(removed);
        (!removed).then_some(index)
    })
}

/// `4 in layers 0-3, 5; 3 in layer 4` of layers with their counts, the most frequent count
/// first; a layer whose experts differ has several.
fn by_count(counts: &[(usize, usize)]) -> String {
    let mut kinds: Vec<(usize, Vec<usize>)> = Vec::new();
    for &(layer, count) in counts {
        match kinds.iter_mut().find(|(known, _)| *known == count) {
            Some((_, layers)) if layers.last() == Some(&layer) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_listed_by_their_counts() {
        let counts = [(0, 4), (1, 4), (2, 3), (3, 4)];
        assert_eq!(by_count(&counts), "4 in layers 0-1, 3; 3 in layer 2");
        // Two experts of one layer, and a layer without experts.
        assert_eq!(by_count(&[(0, 4), (0, 4), (2, 4), (2, 5)]), "4 in layers 0, 2; 5 in layer 2");
    }
}
