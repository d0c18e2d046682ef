//! GGUF architectures, and tensor names in GGUF and Hugging Face.

use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::{RowOrder, TensorInfo};

/// A GGUF architecture.
pub(super) struct Architecture {
    /// Its name in `general.architecture`.
    pub name: &'static str,
    /// Class and model type in Hugging Face's config.
    pub class: &'static str,
    pub model_type: &'static str,
    /// Whether the rows of q and k are interleaved for ggml's RoPE.
    pub interleaved: bool,
    /// Whether norms are stored as `1 + w` where Hugging Face stores `w`.
    pub shifted_norms: bool,
    /// Names of modules in a layer, in addition to [`COMMON`].
    modules: &'static [(&'static str, &'static str)],
}

/// Modules in the layers of every architecture.
const COMMON: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Tensors outside the layers.
const OUTSIDE: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Every supported architecture. To add one, list it here.
pub(super) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "llama",
        class: "LlamaForCausalLM",
        model_type: "llama",
        interleaved: true,
        shifted_norms: false,
        modules: &[("ffn_norm", "post_attention_layernorm")],
    },
    Architecture {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        interleaved: false,
        shifted_norms: false,
        modules: &[("ffn_norm", "post_attention_layernorm")],
    },
    Architecture {
        name: "qwen3",
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        interleaved: false,
        shifted_norms: false,
        modules: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
        ],
    },
    Architecture {
        name: "gemma3",
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        interleaved: false,
        shifted_norms: true,
        modules: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
        ],
    },
];

impl Architecture {
    pub fn find(name: &str) -> Result<&'static Self, Fault> {
        ARCHITECTURES.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let known = ARCHITECTURES.iter().map(|known| known.name).collect::<Vec<_>>();
            Fault::Architecture { found: name.to_string(), known: known.join(", ") }
        })
    }

    /// Hugging Face's name for the tensor that GGUF calls `name`.
    pub fn translate(&self, name: &str) -> Option<String> {
        if let Some((_, there)) = OUTSIDE.iter().find(|(here, _)| *here == name) {
            return Some(there.to_string());
        }
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let number: u32 = layer.parse().ok()?;
        let (part, kind) = part.rsplit_once('.')?;
        let (_, there) = COMMON.iter().chain(self.modules).find(|(here, _)| *here == part)?;
        // Numbers have one spelling, so distinct names stay distinct.
        let known = number.to_string() == layer && ["weight", "bias"].contains(&kind);
        known.then(|| format!("model.layers.{number}.{there}.{kind}"))
    }

    /// GGUF's name for the tensor that Hugging Face calls `name`.
    pub fn untranslate(&self, name: &str) -> Option<String> {
        if let Some((here, _)) = OUTSIDE.iter().find(|(_, there)| *there == name) {
            return Some(here.to_string());
        }
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, kind) = part.rsplit_once('.')?;
        let (here, _) = COMMON.iter().chain(self.modules).find(|(_, there)| *there == part)?;
        let found = format!("blk.{layer}.{here}.{kind}");
        // Translating back refuses other spellings.
        (self.translate(&found).as_deref() == Some(name)).then_some(found)
    }

    /// Gives `tensor` Hugging Face's name, row order and convention.
    pub fn adopt(
        &self,
        tensor: &mut TensorInfo,
        heads: usize,
        kv_heads: usize,
    ) -> Result<(), Fault> {
        let Some(name) = self.translate(&tensor.name) else {
            let (tensor, architecture) = (tensor.name.clone(), self.name.to_string());
            return Err(Fault::Foreign { tensor, architecture });
        };
        let heads = [("self_attn.q_proj", heads), ("self_attn.k_proj", kv_heads)]
            .into_iter()
            .find_map(|(part, heads)| name.contains(part).then_some(heads));
        if let Some(heads) = heads.filter(|_| self.interleaved) {
            let rows = tensor.shape.first().copied().unwrap_or(1);
            if !rows.is_multiple_of(2 * heads) {
                let why = format!("has {rows} rows, not {heads} heads of an even number of rows");
                return Err(Fault::Tensor { tensor: tensor.name.clone(), why });
            }
            tensor.order = RowOrder::Interleaved { heads };
        }
        if self.shifted_norms && name.ends_with("norm.weight") {
            tensor.shift = -1.0;
        }
        tensor.name = name;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_hugging_faces() {
        let llama = Architecture::find("llama").unwrap();
        let name = |name| llama.translate(name);
        assert_eq!(name("token_embd.weight").unwrap(), "model.embed_tokens.weight");
        assert_eq!(name("blk.12.attn_q.bias").unwrap(), "model.layers.12.self_attn.q_proj.bias");
        assert_eq!(
            name("blk.0.ffn_norm.weight").unwrap(),
            "model.layers.0.post_attention_layernorm.weight"
        );
        for foreign in [
            "blk.00.attn_q.weight",
            "blk.0.attn_q",
            "blk.+1.attn_q.weight",
            "blk.0.attn_q_norm.weight",
            "x",
        ] {
            assert_eq!(name(foreign), None, "{foreign}");
        }
        let gemma = Architecture::find("gemma3").unwrap();
        assert_eq!(
            gemma.translate("blk.3.ffn_norm.weight").unwrap(),
            "model.layers.3.pre_feedforward_layernorm.weight"
        );
    }
}
