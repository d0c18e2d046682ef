//! Experts in GGUF: keys of the metadata, and checks of their tensors.

use super::config::ConfigBuilder;
use super::names::MLP;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::TensorInfo;
use crate::model::{ExpertRules, MAX_EXPERTS};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The experts of a layer. Holds, once built:
///
/// 1. there are at least one and at most [`MAX_EXPERTS`];
/// 2. a token is routed to at least one and at most all.
#[derive(Debug)]
pub(super) struct ExpertSizes {
    pub count: u32,
    active: u32,
    ff: u32,
    shared_ff: Option<u32>,
    normalized: bool,
    /// `feed_forward_length`, which is not the width of experts in all architectures.
    width: Option<u32>,
    rules: ExpertRules,
}

impl ExpertSizes {
    pub fn new(keys: &ConfigBuilder<'_>, rules: &ExpertRules) -> Result<Self, Fault> {
        let count = keys.needed("expert_count")?;
        if count as usize > MAX_EXPERTS {
            let why = format!("is {count}, which exceeds the limit of {MAX_EXPERTS}");
            return Err(keys.refuse("expert_count", why));
        }
        let active = keys.needed("expert_used_count")?;
        if active > count {
            let why = format!("is {active}, which exceeds expert_count = {count}");
            return Err(keys.refuse("expert_used_count", why));
        }
        let width = keys.feed_forward()?.filter(|&width| width > 0);
        let missing = |key: &str| keys.refuse(key, "is missing".to_string());
        let own = keys.number("expert_feed_forward_length")?.filter(|&ff| ff > 0);
        // As llama.cpp, which divides where experts have a key of their own.
        let parts = if rules.ff_key == "intermediate_size" { 1 } else { active };
        let ff = own.or(width.map(|width| width / parts)).filter(|&ff| ff > 0);
        let shared_ff = match rules.shared {
            true => {
                let own = keys.number("expert_shared_feed_forward_length")?.filter(|&ff| ff > 0);
                Some(own.or(width).ok_or_else(|| missing("expert_shared_feed_forward_length"))?)
            }
            false => None,
        };
        let normalized = keys.flag("expert_weights_norm")?.unwrap_or(keys.architecture.normalized);
        if rules.always_normalized && !normalized {
            let why = "is false, which is not supported".to_string();
            return Err(keys.refuse("expert_weights_norm", why));
        }
        Ok(Self {
            count,
            active,
            ff: ff.ok_or_else(|| missing("feed_forward_length"))?,
            shared_ff,
            normalized,
            width,
            rules: *rules,
        })
    }

    /// Checks that every layer has a router and all experts, of the right sizes. `tensors`
    /// have GGUF's names.
    pub fn check(&self, tensors: &[TensorInfo], layers: u32, hidden: u32) -> Result<(), Fault> {
        let shapes: BTreeMap<&str, &[usize]> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
        let needed = |name: String, asked: &[u32]| match shapes.get(name.as_str()) {
            None => Err(Fault::NoTensor { tensor: name, count: tensors.len() }),
            Some(found) if found.iter().copied().eq(asked.iter().map(|&n| n as usize)) => Ok(()),
            Some(found) => {
                let why = format!("has shape {found:?}, but the metadata imply {asked:?}");
                Err(Fault::Tensor { tensor: name, why })
            }
        };
        let Self { count, ff, .. } = *self;
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let has = |part: &str| shapes.contains_key(name(part).as_str());
            needed(name("ffn_gate_inp"), &[count, hidden])?;
            let both = has("ffn_gate_up_exps");
            if both {
                needed(name("ffn_gate_up_exps"), &[count, ff.saturating_mul(2), hidden])?;
            }
            for part in MLP {
                let [rows, columns] = if part == MLP[2] { [hidden, ff] } else { [ff, hidden] };
                let merged = format!("{part}_exps");
                if both && part != MLP[2] {
                    continue;
                }
                if has(&merged) || !has(&format!("{part}.0")) {
                    needed(name(&merged), &[count, rows, columns])?;
                    continue;
                }
                for expert in 0..count {
                    needed(name(&format!("{part}.{expert}")), &[rows, columns])?;
                }
            }
            if let Some(ff) = self.shared_ff {
                // Files have it as a vector or as a matrix of one row.
                needed(name("ffn_gate_inp_shexp"), &[hidden]).or_else(|fault| {
                    needed(name("ffn_gate_inp_shexp"), &[1, hidden]).map_err(|_| fault)
                })?;
                for part in MLP {
                    let [rows, columns] = if part == MLP[2] { [hidden, ff] } else { [ff, hidden] };
                    needed(name(&format!("{part}_shexp")), &[rows, columns])?;
                }
            }
        }
        Ok(())
    }
}

impl ConfigBuilder<'_> {
    /// Sets the keys of experts.
    pub fn set_experts(
        &self,
        sizes: &ExpertSizes,
        set: &mut impl FnMut(&str, Value) -> Option<Value>,
    ) {
        let local = ["mixtral", "gpt-oss"].contains(&self.family.name);
        set(if local { "num_local_experts" } else { "num_experts" }, json!(sizes.count));
        set(sizes.rules.active_key, json!(sizes.active));
        if let Some(switch) = sizes.rules.switch {
            set(switch, json!(true));
        }
        set("intermediate_size", json!(sizes.width.unwrap_or(sizes.ff)));
        set(sizes.rules.ff_key, json!(sizes.ff));
        if let Some(ff) = sizes.shared_ff {
            set("shared_expert_intermediate_size", json!(ff));
        }
        if !sizes.rules.always_normalized {
            set("norm_topk_prob", json!(sizes.normalized));
        }
    }
}
