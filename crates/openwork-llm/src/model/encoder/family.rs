//! The families of encoders.

use crate::model::family::{Bias, Family, LLAMA, NAMES, Names, Norms, WHOLE_HEADS};

/// What a family of encoders has and decoders have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderRules {
    /// The class of the encoder alone, which is what openwork reads and writes.
    pub class: &'static str,
    /// Before the names of the encoder's tensors in files of models with a head.
    pub prefix: &'static str,
    /// How tokens know their positions.
    pub positions: Positions,
    /// Whether there is an embedding of token types.
    pub token_types: bool,
    /// Whether linear layers have biases.
    pub biases: bool,
}

/// How tokens know their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// By an embedding.
    Learned,
    /// By an embedding that is counted from the padding token on, and a bias of the scores
    /// that depends on the distance.
    LearnedAndRelative,
    /// By a rotation of the heads.
    Rotated,
}

impl EncoderRules {
    /// What distinguishes the family, a few words each.
    pub fn traits(&self) -> Vec<&'static str> {
        let positions = match self.positions {
            Positions::Learned => "learned positions",
            Positions::LearnedAndRelative => "learned positions and a relative bias",
            Positions::Rotated => "rope",
        };
        let mut traits = vec!["encoder", positions];
        traits.extend(self.token_types.then_some("token types"));
        traits.push(if self.biases { "biases, MLP without gate" } else { "gated MLP" });
        traits
    }
}

/// Norms on the sums of residual connections.
const fn norms(attention: &'static str, mlp: &'static str) -> Norms {
    Norms {
        before_attention: None,
        after_attention: Some(attention),
        before_mlp: None,
        after_mlp: Some(mlp),
    }
}

/// BERT and the many sentence encoders with its architecture.
pub const BERT: Family = Family {
    name: "bert",
    summary: "BERT, MiniLM, E5, BGE (encoder)",
    architectures: &["BertModel", "BertForMaskedLM", "BertForPreTraining"],
    model_type: "bert",
    bias: Bias::Never,
    norms: norms("attention.output.LayerNorm", "output.LayerNorm"),
    norm_eps: 1e-12,
    max_positions: 512,
    names: Names {
        layers: "encoder.layer.",
        attention: [
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ],
        mlp: ["", "intermediate.dense", "output.dense"],
        ..NAMES
    },
    encoder: Some(EncoderRules {
        class: "BertModel",
        prefix: "bert.",
        positions: Positions::Learned,
        token_types: true,
        biases: true,
    }),
    ..LLAMA
};

/// MPNet, of which all-mpnet-base-v2 is made.
pub const MPNET: Family = Family {
    name: "mpnet",
    summary: "MPNet (encoder)",
    architectures: &["MPNetModel", "MPNetForMaskedLM"],
    model_type: "mpnet",
    norms: norms("attention.LayerNorm", "output.LayerNorm"),
    names: Names {
        attention: ["attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"],
        ..BERT.names
    },
    encoder: Some(EncoderRules {
        class: "MPNetModel",
        prefix: "mpnet.",
        positions: Positions::LearnedAndRelative,
        token_types: false,
        biases: true,
    }),
    ..BERT
};

/// Nomic's BERT with rotated heads and a gated MLP.
pub const NOMIC_BERT: Family = Family {
    name: "nomic-bert",
    summary: "Nomic Embed (encoder)",
    architectures: &["NomicBertModel", "NomicBertForMaskedLM"],
    model_type: "nomic_bert",
    norms: norms("post_attention_layernorm", "post_mlp_layernorm"),
    rotation: WHOLE_HEADS,
    rope_theta: 1000.0,
    max_positions: 2048,
    names: Names { layers: "layers.", ..NAMES },
    encoder: Some(EncoderRules {
        class: "NomicBertModel",
        prefix: "nomic_bert.",
        positions: Positions::Rotated,
        token_types: true,
        biases: false,
    }),
    ..BERT
};
