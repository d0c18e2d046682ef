//! GGUF architectures, and which of Hugging Face's tensors their tensors hold.
//!
//! Names of norms, fused linear layers and experts follow from the [`Family`].

use super::metadata::Metadata;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::{Convention, RowOrder, TensorInfo, Tiles};
use crate::model::{DeltaNetSizes, ExpertFiles, FAMILIES, Family, QkNorm};

/// A GGUF architecture and the family of its models. Several families may share the name
/// of an architecture.
#[derive(Debug)]
pub(super) struct Architecture {
    /// Its name in `general.architecture`.
    pub name: &'static str,
    /// The name of its family in [`FAMILIES`].
    pub family: &'static str,
    /// Which files of that name it describes.
    when: When,
    /// Whether the rows of q and k are interleaved for ggml's RoPE.
    interleaved: bool,
    /// Whether llama.cpp makes the weights of a token's experts sum to 1.
    pub normalized: bool,
    /// The norm on the input of the MLP.
    mlp_norm: &'static str,
}

/// A property of a file that distinguishes families.
#[derive(Clone, Copy, Debug)]
enum When {
    Always,
    /// It has experts.
    Experts,
    /// It has a sliding window.
    Window,
    /// Its queries are scaled by position.
    QueryScaling,
}

const fn row(name: &'static str, family: &'static str) -> Architecture {
    Architecture {
        name,
        family,
        when: When::Always,
        interleaved: false,
        normalized: false,
        mlp_norm: "ffn_norm",
    }
}

/// Every supported architecture; of several with the same name, the first that fits. To
/// add one, list it here.
pub(super) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        when: When::Experts,
        interleaved: true,
        normalized: true,
        ..row("llama", "mixtral")
    },
    // Only early Mistral models have a window; without it they are like Llama.
    Architecture { when: When::Window, interleaved: true, ..row("llama", "mistral") },
    Architecture { interleaved: true, ..row("llama", "llama") },
    row("qwen2", "qwen2"),
    row("qwen3", "qwen3"),
    row("gemma3", "gemma3"),
    row("gemma2", "gemma2"),
    Architecture { normalized: true, ..row("qwen3moe", "qwen3-moe") },
    row("qwen2moe", "qwen2-moe"),
    row("olmoe", "olmoe"),
    Architecture { when: When::Window, ..row("olmo2", "olmo3") },
    row("olmo2", "olmo2"),
    row("phi3", "phi3"),
    Architecture { interleaved: true, ..row("smollm3", "smollm3") },
    Architecture { interleaved: true, ..row("granite", "granite") },
    row("glm4", "glm4"),
    Architecture { when: When::QueryScaling, interleaved: true, ..row("mistral3", "ministral3") },
    // The text models of Mistral Small 3.1 and later.
    Architecture { interleaved: true, ..row("mistral3", "mistral") },
    Architecture { mlp_norm: "post_attention_norm", ..row("qwen35", "qwen3.5") },
    Architecture {
        normalized: true,
        mlp_norm: "post_attention_norm",
        ..row("qwen35moe", "qwen3.5-moe")
    },
    Architecture { normalized: true, mlp_norm: "post_attention_norm", ..row("gpt-oss", "gpt-oss") },
    Architecture { normalized: true, ..row("gemma4", "gemma4") },
];

impl Architecture {
    /// The architecture of a file.
    pub fn find(metadata: &Metadata) -> Result<&'static Self, Fault> {
        const KEY: &str = "general.architecture";
        let missing = || Fault::Metadata { key: KEY.to_string(), why: "is missing".to_string() };
        let name = metadata.text(KEY)?.ok_or_else(missing)?;
        for known in ARCHITECTURES.iter().filter(|known| known.name == name) {
            let positive = |key: &str| -> Result<bool, Fault> {
                Ok(metadata.float(&format!("{name}.{key}"))?.is_some_and(|value| value > 0.0))
            };
            let fits = match known.when {
                When::Always => true,
                When::Experts => positive("expert_count")?,
                When::Window => positive("attention.sliding_window")?,
                When::QueryScaling => positive("attention.temperature_scale")?,
            };
            if fits {
                return Ok(known);
            }
        }
        let mut known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        known.dedup();
        Err(Fault::Architecture { found: name, known: known.join(", ") })
    }

    /// The architecture that models of a family are exported to.
    pub fn of_family(family: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|known| known.family == family)
    }

    /// The family of its models.
    pub fn family(&self) -> &'static Family {
        let found = FAMILIES.iter().find(|family| family.name == self.family);
        found.expect("a test compares the tables")
    }
}

/// Tensors outside the layers.
const OUTSIDE: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Those of per-layer embeddings.
const PER_LAYER: &[(&str, &str)] = &[
    (PER_LAYER_TABLE, "model.embed_tokens_per_layer.weight"),
    ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
    ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
];
/// Its rows hold the embeddings of all layers.
pub(super) const PER_LAYER_TABLE: &str = "per_layer_token_embd.weight";

/// Gate, up and down of an MLP.
pub(super) const MLP: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];
const MLP_THERE: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// The prefix of a gated delta net's tensors in Hugging Face's terms, within the layer.
const DELTA_NET: &str = "linear_attn.";
/// Tensors of a gated delta net, and where the heads of values are in them.
const DELTA_NET_TENSORS: &[(&str, &str, ValueHeads)] = &[
    ("attn_qkv.weight", "in_proj_qkv.weight", ValueHeads::AfterKeys),
    ("attn_gate.weight", "in_proj_z.weight", ValueHeads::Rows),
    ("ssm_alpha.weight", "in_proj_a.weight", ValueHeads::Numbers),
    ("ssm_beta.weight", "in_proj_b.weight", ValueHeads::Numbers),
    ("ssm_conv1d.weight", CONVOLUTION, ValueHeads::AfterKeys),
    ("ssm_a", DECAY, ValueHeads::Numbers),
    ("ssm_dt.bias", "dt_bias", ValueHeads::Numbers),
    ("ssm_norm.weight", "norm.weight", ValueHeads::None),
    ("ssm_out.weight", "out_proj.weight", ValueHeads::Columns),
];
/// A matrix in GGUF; Hugging Face has another axis of length 1.
const CONVOLUTION: &str = "conv1d.weight";
const DECAY: &str = "A_log";

/// Where a tensor of a gated delta net has the heads of values.
#[derive(Clone, Copy)]
enum ValueHeads {
    /// Nowhere.
    None,
    /// In its rows, one for each element of a head.
    Rows,
    /// Likewise, after those of queries and keys.
    AfterKeys,
    /// In its rows, one for each head.
    Numbers,
    /// In its columns, one for each element of a head.
    Columns,
}

/// What a module of a layer holds in Hugging Face's terms, within the layer.
#[derive(Debug, PartialEq)]
enum Held {
    One(String),
    /// A tensor by its whole name, whatever its ending.
    Whole(String),
    /// Linear layers, one after the other.
    Rows(&'static [&'static str]),
    /// Gate (0), up (1) or down (2) of every expert.
    Experts(&'static [usize]),
}

/// Gate and up of every expert, in one tensor or two.
const GATE_UP: (&str, Held) = ("ffn_gate_up_exps", Held::Experts(&[0, 1]));
const GATE_AND_UP: [(&str, Held); 2] =
    [("ffn_gate_exps", Held::Experts(&[0])), ("ffn_up_exps", Held::Experts(&[1]))];

const QKV: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];

/// What the names and sizes of a file's tensors depend on.
pub(super) struct Layout {
    pub architecture: &'static Architecture,
    pub family: &'static Family,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Experts of a layer.
    pub experts: usize,
    pub layers: usize,
    /// Layers that compute their own keys and values, before those that do not.
    pub own_keys: usize,
    /// The sizes of gated delta nets, if there are any.
    pub delta_net: Option<DeltaNetSizes>,
}

/// One of Hugging Face's tensors in a tensor of the file.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    pub name: String,
    pub shape: Vec<usize>,
    pub order: RowOrder,
    pub convention: Convention,
}

impl Layout {
    /// Whether the tensor `name` belongs to a layer after those of the model, which predicts
    /// further tokens.
    pub fn is_further(&self, name: &str) -> bool {
        let layer = split_layer(name).map(|(layer, _)| layer);
        self.family.delta_nets && layer.is_some_and(|layer| layer >= self.layers)
    }

    /// Whether the model does not use the tensor `name`: it is [further](Self::is_further), or
    /// of keys and values where those of an earlier layer are used.
    pub fn is_unused(&self, name: &str) -> bool {
        let of_keys = |(layer, part): (usize, &str)| {
            let parts = ["attn_k.", "attn_v.", "attn_k_norm."];
            layer >= self.own_keys && parts.iter().any(|of_keys| part.starts_with(of_keys))
        };
        self.is_further(name) || split_layer(name).is_some_and(of_keys)
    }

    /// Tensors outside the layers.
    fn outside(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let per_layer = if self.family.per_layer_embedding { PER_LAYER } else { &[] };
        OUTSIDE.iter().chain(per_layer)
    }

    /// Tensors of a layer whose names do not consist of a module and `weight` or `bias`.
    fn wholes(&self) -> Vec<(&'static str, String)> {
        let mut wholes = Vec::new();
        if self.family.sinks {
            wholes.push(("attn_sinks.weight", "self_attn.sinks".to_string()));
        }
        if self.family.layer_scale {
            wholes.push(("layer_output_scale.weight", "layer_scalar".to_string()));
        }
        if self.has_experts_beside_mlp() {
            wholes.push(("ffn_gate_inp.scale", "router.scale".to_string()));
            wholes.push(("ffn_down_exps.scale", "router.per_expert_scale".to_string()));
        }
        if self.family.delta_nets {
            let named =
                |(here, there, _): &(&'static str, &str, _)| (*here, format!("{DELTA_NET}{there}"));
            wholes.extend(DELTA_NET_TENSORS.iter().map(named));
        }
        wholes
    }

    fn has_experts_beside_mlp(&self) -> bool {
        self.family.experts.is_some_and(|rules| rules.beside_mlp)
    }

    /// Modules of a layer, with the names that are written.
    fn modules(&self) -> Vec<(&'static str, Held)> {
        let family = self.family;
        let one = |name: &str| Held::One(name.to_string());
        let mut modules = vec![("attn_output", one("self_attn.o_proj"))];
        for (here, there) in [
            ("attn_norm", family.norms.before_attention),
            ("post_attention_norm", family.norms.after_attention),
            (self.architecture.mlp_norm, family.norms.before_mlp),
            ("post_ffw_norm", family.norms.after_mlp),
        ] {
            modules.extend(there.map(|there| (here, one(there))));
        }
        if family.qk_norm != QkNorm::None {
            modules.push(("attn_q_norm", one("self_attn.q_norm")));
            modules.push(("attn_k_norm", one("self_attn.k_norm")));
        }
        let fused = |name: &str| family.fused.iter().find(|fused| fused.name == name);
        match fused("self_attn.qkv_proj") {
            Some(fused) => modules.push(("attn_qkv", Held::Rows(fused.parts))),
            None => modules.extend(
                ["attn_q", "attn_k", "attn_v"].into_iter().zip(QKV.iter().map(|&n| one(n))),
            ),
        }
        match fused("mlp.gate_up_proj") {
            Some(fused) => modules.push(("ffn_up", Held::Rows(fused.parts))),
            None => {
                modules.extend([("ffn_gate", one("mlp.gate_proj")), ("ffn_up", one("mlp.up_proj"))])
            }
        }
        modules.push(("ffn_down", one("mlp.down_proj")));
        if family.per_layer_embedding {
            modules.extend([
                ("inp_gate", one("per_layer_input_gate")),
                ("proj", one("per_layer_projection")),
                ("post_norm", one("post_per_layer_input_norm")),
            ]);
        }
        if let Some(experts) = family.experts {
            let names = &family.names;
            modules.push(("ffn_gate_inp", one(names.router)));
            match experts.files {
                // As they are in the folder.
                ExpertFiles::Rows => modules.push(GATE_UP),
                _ => modules.extend(GATE_AND_UP),
            }
            modules.push(("ffn_down_exps", Held::Experts(&[2])));
            if experts.beside_mlp {
                modules.extend([
                    ("post_ffw_norm_1", one("post_feedforward_layernorm_1")),
                    ("pre_ffw_norm_2", one("pre_feedforward_layernorm_2")),
                    ("post_ffw_norm_2", one("post_feedforward_layernorm_2")),
                ]);
            }
            if experts.shared {
                modules.push(("ffn_gate_inp_shexp", one(names.shared_gate)));
                let shared = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
                for (here, there) in shared.into_iter().zip(MLP_THERE) {
                    modules.push((here, Held::One(format!("{}.{there}", names.shared))));
                }
            }
        }
        modules
    }

    /// What the module `part` of a layer holds.
    fn module(&self, part: &str) -> Option<Held> {
        if let Some((_, held)) = self.modules().into_iter().find(|(here, _)| *here == part) {
            return Some(held);
        }
        // Other spellings, which are only read.
        let single = ["attn_q", "attn_k", "attn_v"].into_iter().zip(QKV);
        if let Some((_, there)) = single.into_iter().find(|(here, _)| *here == part) {
            return Some(Held::One(there.to_string()));
        }
        if part == "attn_qkv" {
            return Some(Held::Rows(QKV));
        }
        self.family.experts?;
        let merged = GATE_AND_UP.into_iter().chain([GATE_UP]).find(|(here, _)| *here == part);
        if let Some((_, held)) = merged {
            return Some(held);
        }
        // Of each expert, as files of 2023 and 2024 have them.
        let (here, number) = part.split_once('.')?;
        let role = MLP.iter().position(|name| *name == here)?;
        let expert = canonical(number).filter(|&expert| expert < self.experts)?;
        Some(Held::One(self.expert(expert, role)))
    }

    /// Gate, up or down of an expert, within the layer.
    fn expert(&self, expert: usize, role: usize) -> String {
        let names = &self.family.names;
        format!("{}.{expert}.{}", names.experts, names.expert_parts[role])
    }

    /// What the tensor `name` of the file holds: the prefix of its layer, the tensors within
    /// it, and `weight` or `bias`.
    fn held<'a>(&self, name: &'a str) -> Option<(String, Held, &'a str)> {
        if let Some((_, there)) = self.outside().find(|(here, _)| *here == name) {
            return Some((String::new(), Held::Whole(there.to_string()), ""));
        }
        let (layer, part) = split_layer(name)?;
        let prefix = format!("model.layers.{layer}.");
        if let Some((_, there)) = self.wholes().into_iter().find(|(here, _)| *here == part) {
            return Some((prefix, Held::Whole(there), ""));
        }
        let (part, kind) = part.rsplit_once('.')?;
        let held = self.module(part)?;
        let merged = matches!(held, Held::Experts(_));
        let biased = !merged || self.family.experts.is_some_and(|rules| rules.router_bias);
        (kind == "weight" || kind == "bias" && biased).then_some((prefix, held, kind))
    }

    /// Hugging Face's names of the tensors in the tensor `name`, one after the other.
    pub fn names(&self, name: &str) -> Option<Vec<String>> {
        let (prefix, held, kind) = self.held(name)?;
        let full = |there: &str| format!("{prefix}{there}.{kind}");
        Some(match held {
            Held::One(there) => vec![full(&there)],
            Held::Whole(there) => vec![format!("{prefix}{there}")],
            Held::Rows(all) => all.iter().map(|there| full(there)).collect(),
            Held::Experts(roles) => (0..self.experts)
                .flat_map(|expert| roles.iter().map(move |&role| (expert, role)))
                .map(|(expert, role)| full(&self.expert(expert, role)))
                .collect(),
        })
    }

    /// The name of the tensor that holds Hugging Face's tensor `name`.
    pub fn holder(&self, name: &str) -> Option<String> {
        if let Some((here, _)) = self.outside().find(|(_, there)| *there == name) {
            return Some(here.to_string());
        }
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer = canonical(layer)?;
        if let Some((here, _)) = self.wholes().into_iter().find(|(_, there)| there == part) {
            return Some(format!("blk.{layer}.{here}"));
        }
        let (part, kind) = part.rsplit_once('.')?;
        let expert = part
            .strip_prefix(self.family.names.experts)
            .and_then(|rest| rest.strip_prefix('.')?.split_once('.'))
            .and_then(|(expert, part)| {
                canonical(expert).filter(|&expert| expert < self.experts)?;
                self.family.names.expert_parts.iter().position(|known| *known == part)
            });
        let holds = |held: &Held| match held {
            Held::One(there) => there == part,
            Held::Whole(_) => false,
            Held::Rows(all) => all.contains(&part),
            Held::Experts(roles) => expert.is_some_and(|role| roles.contains(&role)),
        };
        let (here, _) = self.modules().into_iter().find(|(_, held)| holds(held))?;
        let found = format!("blk.{layer}.{here}.{kind}");
        self.names(&found)?.iter().any(|there| there == name).then_some(found)
    }

    /// The shape of the tensor `name`, if its parts have these shapes.
    pub fn shape(&self, name: &str, parts: &[&[usize]]) -> Option<Vec<usize>> {
        let mut shape = parts.first()?.to_vec();
        match self.held(name)?.1 {
            // A vector in GGUF.
            Held::One(there) if there == self.family.names.shared_gate => drop(shape.remove(0)),
            Held::Whole(there) if is_convolution(&there) => drop(shape.remove(1)),
            Held::One(_) | Held::Whole(_) => {}
            Held::Rows(_) => shape[0] = parts.iter().map(|part| part[0]).sum(),
            Held::Experts(roles) => {
                shape[0] *= roles.len();
                shape.insert(0, self.experts);
            }
        }
        Some(shape)
    }

    /// Hugging Face's tensors in the tensor `name` of this shape, one after the other.
    pub fn parts(&self, name: &str, shape: &[usize]) -> Result<Vec<Part>, Fault> {
        let (Some((_, held, kind)), Some(names)) = (self.held(name), self.names(name)) else {
            let (tensor, architecture) = (name.to_string(), self.architecture.name.to_string());
            return Err(Fault::Foreign { tensor, architecture });
        };
        let refuse = |why: String| Fault::Tensor { tensor: name.to_string(), why };
        let rows = shape.first().copied().unwrap_or(1);
        let with_rows = |rows: usize| {
            let mut shape = shape.to_vec();
            if let Some(first) = shape.first_mut() {
                *first = rows;
            }
            shape
        };
        let shapes: Vec<Vec<usize>> = match held {
            Held::One(there) if there == self.family.names.shared_gate && shape.len() == 1 => {
                vec![vec![1, rows]]
            }
            Held::Whole(there) if is_convolution(&there) => {
                let [channels, kernel] = *shape else {
                    return Err(refuse(format!("has shape {shape:?}, not [channels, kernel]")));
                };
                vec![vec![channels, 1, kernel]]
            }
            Held::One(_) | Held::Whole(_) => vec![shape.to_vec()],
            Held::Rows(all) if all == QKV => {
                let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
                if rows != q + 2 * kv {
                    let wanted = q + 2 * kv;
                    return Err(refuse(format!("has {rows} rows, not the {wanted} of q, k and v")));
                }
                [q, kv, kv].map(with_rows).to_vec()
            }
            Held::Rows(all) => {
                if !rows.is_multiple_of(all.len()) {
                    return Err(refuse(format!("has {rows} rows, not as many of gate as of up")));
                }
                vec![with_rows(rows / all.len()); all.len()]
            }
            Held::Experts(roles) => {
                let (axes, what) = if kind == "bias" { (2, "bias") } else { (3, "matrix") };
                let [count, rows, columns @ ..] = shape else {
                    return Err(refuse(format!("has shape {shape:?}, not one {what} per expert")));
                };
                if shape.len() != axes {
                    return Err(refuse(format!("has shape {shape:?}, not one {what} per expert")));
                }
                if *count != self.experts || !rows.is_multiple_of(roles.len()) {
                    let experts = self.experts;
                    let why = format!("has shape {shape:?}, but expert_count is {experts}");
                    return Err(refuse(why));
                }
                vec![[&[rows / roles.len()], columns].concat(); names.len()]
            }
        };
        let mut parts = Vec::with_capacity(names.len());
        for (part, shape) in names.into_iter().zip(shapes) {
            let order = self.order(name, &part, &shape)?;
            let convention = self.convention(&part);
            parts.push(Part { name: part, shape, order, convention });
        }
        Ok(parts)
    }

    /// What the file stores of a part instead of its values.
    fn convention(&self, part: &str) -> Convention {
        let of_delta_net = part.split_once(DELTA_NET).map(|(_, rest)| rest);
        match (self.family.norm_offset, of_delta_net) {
            (_, Some(DECAY)) => Convention::MinusExp,
            // Its norm multiplies by the weights themselves.
            (0.0, _) | (_, Some(_)) => Convention::Same,
            (offset, None) if part.ends_with("norm.weight") => Convention::Plus(offset),
            _ => Convention::Same,
        }
    }

    /// The order of the heads of values in a part of a gated delta net.
    fn tiled(&self, tensor: &str, part: &str, shape: &[usize]) -> Result<Option<RowOrder>, Fault> {
        let (Some(sizes), Some((_, part))) = (self.delta_net, part.split_once(DELTA_NET)) else {
            return Ok(None);
        };
        let found = DELTA_NET_TENSORS.iter().find(|(_, there, _)| *there == part);
        let heads = found.map_or(ValueHeads::None, |(_, _, heads)| *heads);
        let (from, size) = match heads {
            ValueHeads::None => return Ok(None),
            ValueHeads::AfterKeys => (2 * sizes.key_heads * sizes.key_dim, sizes.value_dim),
            ValueHeads::Rows | ValueHeads::Columns => (0, sizes.value_dim),
            ValueHeads::Numbers => (0, 1),
        };
        let groups = sizes.key_heads;
        let tiles = Tiles { from, size, groups, group: sizes.value_heads / groups };
        let columns = matches!(heads, ValueHeads::Columns);
        let axis = if columns { shape.last() } else { shape.first() };
        if axis != Some(&tiles.end()) {
            let (what, wanted) = (if columns { "columns" } else { "rows" }, tiles.end());
            let why = format!("has shape {shape:?}, but the metadata imply {wanted} {what}");
            return Err(Fault::Tensor { tensor: tensor.to_string(), why });
        }
        Ok(Some(match (tiles.group, columns) {
            (1, _) => RowOrder::AsStored,
            (_, true) => RowOrder::TiledColumns(tiles),
            (_, false) => RowOrder::Tiled(tiles),
        }))
    }

    /// The order of the rows of a part.
    fn order(&self, tensor: &str, part: &str, shape: &[usize]) -> Result<RowOrder, Fault> {
        if let Some(order) = self.tiled(tensor, part, shape)? {
            return Ok(order);
        }
        let heads = [(QKV[0], self.heads), (QKV[1], self.kv_heads)]
            .into_iter()
            .find_map(|(name, heads)| part.contains(name).then_some(heads));
        let Some(heads) = heads.filter(|_| self.architecture.interleaved) else {
            return Ok(RowOrder::AsStored);
        };
        let rows = shape.first().copied().unwrap_or(1);
        if !rows.is_multiple_of(2 * heads) {
            let why = format!("has {rows} rows, not {heads} heads of an even number of rows");
            return Err(Fault::Tensor { tensor: tensor.to_string(), why });
        }
        Ok(RowOrder::Interleaved { heads })
    }

    /// The tensors in `tensor`, with Hugging Face's names, row order and convention.
    pub fn adopt(&self, tensor: TensorInfo) -> Result<Vec<TensorInfo>, Fault> {
        let mut adopted = Vec::new();
        let mut at = tensor.range.start;
        for Part { name, shape, order, convention } in self.parts(&tensor.name, &tensor.shape)? {
            let len = shape.iter().map(|&n| n as u64).product();
            // Rows are whole blocks; the parts of a vector need not be.
            let Some(bytes) = tensor.dtype.bytes_for(len) else {
                let why = format!("of {} is cut within a block", tensor.dtype);
                return Err(Fault::Tensor { tensor: tensor.name, why });
            };
            let range = at..at + bytes as usize;
            at = range.end;
            adopted.push(TensorInfo { name, shape, range, order, convention, ..tensor.clone() });
        }
        Ok(adopted)
    }
}

/// Whether a tensor of a layer is the convolution of a gated delta net.
fn is_convolution(name: &str) -> bool {
    name.strip_prefix(DELTA_NET) == Some(CONVOLUTION)
}

/// The layer of a tensor, and its name there.
fn split_layer(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((canonical(layer)?, part))
}

/// A number in its one spelling, so that distinct names stay distinct.
fn canonical(text: &str) -> Option<usize> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(family: &str, experts: usize) -> Layout {
        let architecture = Architecture::of_family(family).unwrap();
        let family = architecture.family();
        let sizes =
            DeltaNetSizes { key_heads: 2, value_heads: 6, key_dim: 3, value_dim: 4, kernel: 5 };
        let delta_net = family.delta_nets.then_some(sizes);
        let (heads, kv_heads, head_dim) = (4, 2, 8);
        let (layers, own_keys) = (3, if family.per_layer_embedding { 2 } else { 3 });
        Layout {
            architecture,
            family,
            heads,
            kv_heads,
            head_dim,
            experts,
            layers,
            own_keys,
            delta_net,
        }
    }

    #[test]
    fn every_architecture_has_a_family() {
        for architecture in ARCHITECTURES {
            assert_eq!(architecture.family().name, architecture.family);
        }
    }

    #[test]
    fn names_become_hugging_faces() {
        let llama = layout("llama", 0);
        let name = |name| llama.names(name).map(|names| names.join(" "));
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
            "blk.0.ffn_gate_exps.weight",
            "blk.0.ffn_gate.0.weight",
            "x",
        ] {
            assert_eq!(name(foreign), None, "{foreign}");
        }
        let gemma = layout("gemma3", 0);
        assert_eq!(
            gemma.names("blk.3.ffn_norm.weight").unwrap(),
            ["model.layers.3.pre_feedforward_layernorm.weight"]
        );
    }

    #[test]
    fn merged_experts_are_one_tensor_each() {
        let mixtral = layout("mixtral", 3);
        let prefix = "model.layers.1.block_sparse_moe.experts";
        let down = mixtral.parts("blk.1.ffn_down_exps.weight", &[3, 5, 7]).unwrap();
        let names: Vec<&str> = down.iter().map(|part| part.name.as_str()).collect();
        let want = [0, 1, 2].map(|expert| format!("{prefix}.{expert}.w2.weight"));
        assert_eq!(names, want);
        assert!(down.iter().all(|part| part.shape == [5, 7]));
        let both = mixtral.parts("blk.1.ffn_gate_up_exps.weight", &[3, 10, 7]).unwrap();
        assert_eq!(both[3].name, format!("{prefix}.1.w3.weight"));
        assert_eq!((both.len(), &both[3].shape[..]), (6, &[5, 7][..]));
        let old = mixtral.names("blk.1.ffn_up.2.weight").unwrap();
        assert_eq!(old, [format!("{prefix}.2.w3.weight")]);
        assert_eq!(mixtral.names("blk.1.ffn_up.3.weight"), None);
    }

    #[test]
    fn merged_experts_have_merged_biases() {
        let layout = layout("gpt-oss", 3);
        let parts = layout.parts("blk.1.ffn_up_exps.bias", &[3, 5]).unwrap();
        assert_eq!(parts[2].name, "model.layers.1.mlp.experts.2.up_proj.bias");
        assert_eq!((parts.len(), &parts[2].shape[..]), (3, &[5][..]));
        assert_eq!(layout.shape("blk.1.ffn_up_exps.bias", &[&[5]]), Some(vec![3, 5]));
        assert_eq!(
            layout.holder("model.layers.1.mlp.experts.2.up_proj.bias").unwrap(),
            "blk.1.ffn_up_exps.bias"
        );
        let wrong = layout.parts("blk.1.ffn_up_exps.bias", &[15]).unwrap_err().to_string();
        assert!(wrong.ends_with("has shape [15], not one bias per expert"), "{wrong}");
        let wrong = layout.parts("blk.1.ffn_up_exps.weight", &[3, 5]).unwrap_err().to_string();
        assert!(wrong.ends_with("has shape [3, 5], not one matrix per expert"), "{wrong}");
        // Experts of other families have none.
        assert_eq!(self::layout("mixtral", 3).names("blk.1.ffn_up_exps.bias"), None);
    }

    /// What holds a tensor names it among its own.
    #[test]
    fn names_there_and_back_are_the_same() {
        for architecture in ARCHITECTURES {
            let layout = layout(architecture.family, 3);
            let modules = layout.modules().into_iter().map(|(here, _)| here);
            let modules = modules.map(|here| format!("{here}.weight"));
            let wholes = layout.wholes().into_iter().map(|(here, _)| here.to_string());
            for here in modules.chain(wholes).map(|here| format!("blk.2.{here}")) {
                for there in layout.names(&here).unwrap() {
                    assert_eq!(layout.holder(&there).as_ref(), Some(&here), "{there}");
                }
            }
        }
        assert_eq!(layout("llama", 0).holder("model.layers.02.self_attn.q_proj.weight"), None);
    }

    #[test]
    fn delta_nets_have_their_own_orders_and_values() {
        let layout = layout("qwen3.5", 0);
        let part = |name: &str, shape: &[usize]| {
            let mut parts = layout.parts(&format!("blk.0.{name}"), shape).unwrap();
            assert_eq!(parts.len(), 1);
            parts.remove(0)
        };
        let tiles = |from, size| Tiles { from, size, groups: 2, group: 3 };
        let mixed = part("attn_qkv.weight", &[36, 7]);
        assert_eq!(mixed.name, "model.layers.0.linear_attn.in_proj_qkv.weight");
        assert_eq!(mixed.order, RowOrder::Tiled(tiles(12, 4)));
        let convolution = part("ssm_conv1d.weight", &[36, 5]);
        assert_eq!((convolution.shape, convolution.order), (vec![36, 1, 5], mixed.order));
        assert_eq!(part("ssm_out.weight", &[7, 24]).order, RowOrder::TiledColumns(tiles(0, 4)));
        let decay = part("ssm_a", &[6]);
        assert_eq!(decay.name, "model.layers.0.linear_attn.A_log");
        assert_eq!(
            (decay.order, decay.convention),
            (RowOrder::Tiled(tiles(0, 1)), Convention::MinusExp)
        );
        assert_eq!(part("ssm_norm.weight", &[4]).convention, Convention::Same);
        assert_eq!(part("attn_norm.weight", &[7]).convention, Convention::Plus(1.0));
        let wrong = layout.parts("blk.0.attn_gate.weight", &[20, 7]).unwrap_err();
        let words =
            "tensor \"blk.0.attn_gate.weight\" has shape [20, 7], but the metadata imply 24 rows";
        assert_eq!(wrong.to_string(), words);
        assert!(layout.is_unused("blk.3.nextn.enorm.weight"));
        assert!(!layout.is_unused("blk.2.attn_k.weight"));
        let gemma = self::layout("gemma4", 0);
        assert!(gemma.is_unused("blk.2.attn_k.weight") && !gemma.is_unused("blk.1.attn_k.weight"));
        assert!(
            !gemma.is_unused("blk.2.attn_q.weight") && !gemma.is_further("blk.3.attn_q.weight")
        );
    }

    #[test]
    fn fused_rows_are_cut_between_heads() {
        let parts = layout("phi3", 0).parts("blk.0.attn_qkv.weight", &[64, 32]).unwrap();
        assert_eq!(parts.iter().map(|part| part.shape[0]).collect::<Vec<_>>(), [32, 16, 16]);
        // Any file may have them so; the rows of q and k keep their order.
        let parts = layout("llama", 0).parts("blk.0.attn_qkv.weight", &[64, 32]).unwrap();
        let order = |heads| RowOrder::Interleaved { heads };
        assert_eq!(
            parts.iter().map(|part| part.order).collect::<Vec<_>>(),
            [order(4), order(2), RowOrder::AsStored]
        );
    }
}
