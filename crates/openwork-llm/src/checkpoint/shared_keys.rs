//! Layers that use the keys and values of earlier ones: published files of Gemma 4 contain
//! projections for them nevertheless, which are not read.

use super::tensor::TensorInfo;
use crate::format::count;
use crate::model::split_layer_name;
use serde_json::{Value, json};

/// Tensors of attention that a layer with the keys and values of another does not have.
const UNUSED: [&str; 4] =
    ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.", "self_attn.v_norm."];

/// Removes the tensors that compute keys and values where no layer uses them; returns a
/// note if there are any.
pub(super) fn drop_unused(config: &Value, tensors: &mut Vec<TensorInfo>) -> Option<String> {
    if config["architectures"] != json!(["Gemma4ForCausalLM"]) {
        return None;
    }
    let number = |key: &str| config[key].as_u64();
    let shared = number("num_kv_shared_layers").filter(|shared| *shared > 0)?;
    let first = number("num_hidden_layers")?.saturating_sub(shared);
    let unused = |name: &str| {
        split_layer_name(name).is_some_and(|(layer, rest)| {
            layer as u64 >= first && UNUSED.iter().any(|part| rest.starts_with(part))
        })
    };
    let all = tensors.len();
    tensors.retain(|tensor| !unused(&tensor.name));
    let dropped = all - tensors.len();
    (dropped > 0).then(|| {
        format!(
            "{} ignored: layers from {first} on use the keys and values of earlier layers",
            count(dropped, "tensor")
        )
    })
}
