//! What config.json says of single layers: attention, gated delta nets, experts.

use super::config::{ConfigError, DeltaNetSizes, DeltaNets, Experts, LayerAttention, MAX_EXPERTS};
use super::config_reader::ConfigReader;
use super::family::{Family, SlidingWindow};
use super::rope_config::{HeadContext, QueryScaling};
use serde_json::Value;

/// transformers' defaults, the same in every family that has the key.
const SLIDING_WINDOW: usize = 4096;
const MAX_WINDOW_LAYERS: usize = 28;
const NO_ROPE_INTERVAL: usize = 4;
const FULL_ATTENTION_INTERVAL: usize = 4;
const GLOBAL_HEAD_DIM: usize = 512;

/// Sliding windows and RoPE of every layer, and the factors of queries.
pub(super) fn attention(
    keys: &mut ConfigReader<'_>,
    context: &HeadContext,
    layers: usize,
    delta_nets: &Option<DeltaNets>,
) -> Result<(Vec<LayerAttention>, Option<QueryScaling>), ConfigError> {
    let family = context.family;
    let rotates = rotated_layers(keys, family, layers)?;
    // Which layers use sliding attention.
    let window = match family.window {
        SlidingWindow::Never => None,
        SlidingWindow::AllIfSet { default } if keys.absent("sliding_window") => default,
        // Written by transformers 5 where it is not enabled.
        SlidingWindow::LowerIfEnabled if keys.is_zero("sliding_window") => None,
        SlidingWindow::UnrotatedIfEnabled => keys.optional_size("sliding_window")?,
        _ if keys.absent("sliding_window") => Some(SLIDING_WINDOW),
        _ => keys.optional_size("sliding_window")?,
    };
    let enabled = match family.window {
        SlidingWindow::AllIfEnabled
        | SlidingWindow::UpperIfEnabled
        | SlidingWindow::LowerIfEnabled
        | SlidingWindow::UnrotatedIfEnabled => keys.flag_or("use_sliding_window", false)?,
        _ => true,
    } && window.is_some();
    let mut slides: Vec<bool> = match family.window {
        SlidingWindow::Never => vec![false; layers],
        SlidingWindow::AllIfSet { .. } | SlidingWindow::AllIfEnabled => vec![enabled; layers],
        SlidingWindow::UpperIfEnabled => {
            let from = keys.optional_count("max_window_layers")?.unwrap_or(MAX_WINDOW_LAYERS);
            let default = || (0..layers).map(|i| enabled && i >= from).collect();
            keys.sliding_layers(layers)?.unwrap_or_else(default)
        }
        SlidingWindow::LowerIfEnabled => {
            let below = keys.optional_count("max_window_layers")?.unwrap_or(MAX_WINDOW_LAYERS);
            let default =
                || (0..layers).map(|i| enabled && i < below && i.is_multiple_of(2)).collect();
            keys.sliding_layers(layers)?.unwrap_or_else(default)
        }
        SlidingWindow::UnrotatedIfEnabled => {
            let default = || rotates.iter().map(|rotates| enabled && !rotates).collect();
            keys.sliding_layers(layers)?.unwrap_or_else(default)
        }
        SlidingWindow::Pattern(default) => {
            let new = keys.optional_size("_sliding_window_pattern")?;
            let every = keys.optional_size("sliding_window_pattern")?.or(new).unwrap_or(default);
            keys.sliding_layers(layers)?
                .unwrap_or_else(|| (0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect())
        }
    };
    if let (true, Some(last)) = (family.differing_heads, slides.last_mut()) {
        // As transformers does, whatever config.json says.
        *last = false;
    }
    if slides.contains(&true) && window.is_none() {
        return Err(ConfigError::Contradiction(
            "some layers use sliding attention, but sliding_window is not set".into(),
        ));
    }

    let ropes = keys.ropes(context)?;
    let layer = |(slides, rotates): (bool, bool)| {
        let rope = if slides { &ropes.sliding } else { &ropes.global };
        LayerAttention {
            head_dim: context.head_dim,
            kv_heads: context.kv_heads,
            values_are_keys: false,
            window: window.filter(|_| slides),
            rope: rotates.then(|| rope.clone()),
            shared_from: None,
        }
    };
    let mut all: Vec<LayerAttention> = slides.into_iter().zip(rotates).map(layer).collect();
    if let Some(nets) = delta_nets {
        let unused = all.iter_mut().zip(&nets.layers).filter(|(_, net)| **net);
        unused.for_each(|(attention, _)| attention.rope = None);
    }
    Ok((all, ropes.query_scaling))
}

/// The heads of global layers, if they differ from those of sliding layers.
pub(super) struct GlobalHeads {
    pub(super) head_dim: usize,
    pub(super) kv_heads: usize,
    pub(super) values_are_keys: bool,
}

impl GlobalHeads {
    pub(super) fn read(
        keys: &mut ConfigReader<'_>,
        family: &Family,
        head_dim: usize,
        kv_heads: usize,
        heads: usize,
    ) -> Result<Self, ConfigError> {
        if !family.differing_heads {
            return Ok(Self { head_dim, kv_heads, values_are_keys: false });
        }
        let values_are_keys = keys.flag_or("attention_k_eq_v", false)?;
        let own = keys.optional_size("num_global_key_value_heads")?;
        let mut own = own.filter(|_| values_are_keys).unwrap_or(kv_heads);
        let own_head_dim = head_dim;
        let mut head_dim = keys.size_or("global_head_dim", GLOBAL_HEAD_DIM)?;
        // transformers 5 writes a list of what differs from the other layers instead.
        if let Some(list) = keys.value("per_layer_config").and_then(Value::as_object) {
            let mut values = list.values();
            // An empty list: no layer differs.
            (own, head_dim) = (kv_heads, own_head_dim);
            if let Some(first) = values.next() {
                if let Some(other) = values.find(|other| *other != first) {
                    return Err(keys.unsupported(
                        "per_layer_config",
                        other,
                        "only the same for all global layers",
                    ));
                }
                let mut layer = ConfigReader::new(first, family.name)?;
                own = layer.size_or("num_key_value_heads", kv_heads)?;
                head_dim = layer.size("head_dim")?;
                layer.finish()?;
            }
        }
        if !heads.is_multiple_of(own) || !head_dim.is_multiple_of(2) {
            return Err(ConfigError::Contradiction(format!(
                "num_attention_heads {heads} is not a multiple of num_global_key_value_heads {own}, or global_head_dim {head_dim} is odd"
            )));
        }
        // Text tokens use causal attention in either case.
        if keys.map.get("use_bidirectional_attention").is_some_and(|how| how == "vision") {
            keys.value("use_bidirectional_attention");
        }
        Ok(Self { head_dim, kv_heads: own, values_are_keys })
    }
}

/// Refuses a `per_layer_config` of layers other than the global ones, whose heads it gives.
pub(super) fn check_per_layer_config(
    keys: &mut ConfigReader<'_>,
    family: &Family,
    attention: &[LayerAttention],
) -> Result<(), ConfigError> {
    if !family.differing_heads {
        return Ok(());
    }
    let Some(list) = keys.value("per_layer_config").and_then(Value::as_object) else {
        return Ok(());
    };
    let is_global = |name: &String| {
        let layer = name.parse().ok().and_then(|index: usize| attention.get(index));
        layer.is_some_and(|layer| layer.window.is_none())
    };
    let global = attention.iter().filter(|layer| layer.window.is_none()).count();
    match list.keys().all(is_global) && (list.is_empty() || list.len() == global) {
        true => Ok(()),
        false => Err(ConfigError::Contradiction(format!(
            "per_layer_config lists layers {}, which are not the {global} with full_attention",
            list.keys().cloned().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// The gated delta nets of a family that has them.
pub(super) fn delta_nets(
    keys: &mut ConfigReader<'_>,
    family: &Family,
    layers: usize,
) -> Result<Option<DeltaNets>, ConfigError> {
    if !family.delta_nets {
        return Ok(None);
    }
    let sizes = DeltaNetSizes {
        key_heads: keys.size_or("linear_num_key_heads", 16)?,
        value_heads: keys.size_or("linear_num_value_heads", 32)?,
        key_dim: keys.size_or("linear_key_head_dim", 128)?,
        value_dim: keys.size_or("linear_value_head_dim", 128)?,
        kernel: keys.size_or("linear_conv_kernel_dim", 4)?,
    };
    let DeltaNetSizes { key_heads, value_heads, .. } = sizes;
    if !value_heads.is_multiple_of(key_heads) {
        return Err(ConfigError::Contradiction(format!(
            "linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}"
        )));
    }
    let every = keys.size_or("full_attention_interval", FULL_ATTENTION_INTERVAL)?;
    let named = keys.layer_types(layers, ["linear_attention", "full_attention"])?;
    let layers =
        named.unwrap_or_else(|| (0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect());
    // Published files set it to true.
    if !keys.flag_or("attn_output_gate", true)? {
        return Err(keys.unsupported("attn_output_gate", &Value::Bool(false), "only true"));
    }
    Ok(Some(DeltaNets { sizes, layers }))
}

/// Which layers rotate their heads.
fn rotated_layers(
    keys: &mut ConfigReader<'_>,
    family: &Family,
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    if !family.rotation.skips_layers {
        return Ok(vec![true; layers]);
    }
    let every = keys.size_or("no_rope_layer_interval", NO_ROPE_INTERVAL)?;
    let Some(list) = keys.counts("no_rope_layers")? else {
        return Ok((0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect());
    };
    if list.len() != layers || list.iter().any(|flag| *flag > 1) {
        return Err(ConfigError::Contradiction(format!(
            "no_rope_layers has {} entries for {layers} layers, or values other than 0 and 1",
            list.len()
        )));
    }
    Ok(list.into_iter().map(|flag| flag == 1).collect())
}

/// The experts of a family that has them.
pub(super) fn experts(
    keys: &mut ConfigReader<'_>,
    family: &Family,
    layers: usize,
) -> Result<Option<Experts>, ConfigError> {
    let Some(rules) = family.experts else { return Ok(None) };
    if let Some(switch) = rules.switch
        && !keys.flag_or(switch, false)?
    {
        // Files contain the other keys anyway.
        for unused in ["num_experts", rules.active_key, rules.ff_key] {
            keys.value(unused);
        }
        return Ok(None);
    }
    // Each family uses one of these keys; transformers 5 may write either.
    let [count_key, other_key] = ["num_experts", "num_local_experts"];
    let (own, other) = (keys.optional_size(count_key)?, keys.optional_size(other_key)?);
    if let (Some(own), Some(other)) = (own, other)
        && own != other
    {
        return Err(ConfigError::Contradiction(format!(
            "{count_key} is {own}, but {other_key} is {other}"
        )));
    }
    let default = |key: &str, default: usize| match default {
        0 => Err(ConfigError::Missing { key: key.into() }),
        default => Ok(default),
    };
    let count = own.or(other).map_or_else(|| default(count_key, rules.count), Ok)?;
    let active = keys.optional_size(rules.active_key)?;
    let active = active.map_or_else(|| default(rules.active_key, rules.active), Ok)?;
    if count > MAX_EXPERTS {
        return Err(ConfigError::Kind {
            key: count_key.into(),
            found: count.to_string(),
            want: "a number of experts from 1 to 4096",
        });
    }
    if active > count {
        return Err(ConfigError::Contradiction(format!(
            "{} {active} exceeds the number of experts, {count}",
            rules.active_key
        )));
    }
    let mut has = vec![true; layers];
    if rules.skips_layers {
        let step = keys.size_or("decoder_sparse_step", 1)?;
        let dense = keys.counts("mlp_only_layers")?.unwrap_or_default();
        has = (0..layers).map(|i| (i + 1).is_multiple_of(step) && !dense.contains(&i)).collect();
    }
    Ok(Some(Experts {
        count,
        active,
        ff: keys.size(rules.ff_key)?,
        shared_ff: match (rules.shared, rules.beside_mlp) {
            (true, _) => Some(keys.size("shared_expert_intermediate_size")?),
            (false, true) => Some(keys.size("intermediate_size")?),
            (false, false) => None,
        },
        beside_mlp: rules.beside_mlp,
        normalized: rules.always_normalized || keys.flag_or("norm_topk_prob", false)?,
        router_bias: rules.router_bias,
        layers: has,
    }))
}
