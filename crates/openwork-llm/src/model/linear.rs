//! A layer as data: which linear layers it has, what each computes, and which input
//! it reads. Plans, statistics, packing, training and reports follow from this list.

use super::config::{Config, DeltaNetSizes, PerLayerEmbedding};
use super::family::FAMILIES;
use super::parameter::Half;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What a linear layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// The output of attention.
    Output,
    /// The gate of an MLP.
    Gate,
    /// What the gate multiplies.
    Up,
    /// The output of an MLP.
    Down,
    /// Queries, keys and values of a gated delta net.
    Mixed,
    /// The gate of a gated delta net's output.
    OutputGate,
    /// The gate of a layer's per-layer embedding.
    PerLayerGate,
    /// From the gated per-layer embedding to the hidden state.
    PerLayerOutput,
}

impl Role {
    /// The linear layers of attention, in the order of [`LayerInfo::linears`].
    pub const ATTENTION: [Role; 4] = [Role::Query, Role::Key, Role::Value, Role::Output];
    /// The linear layers of a gated delta net, in the order of [`LayerInfo::linears`].
    pub const DELTA_NET: [Role; 3] = [Role::Mixed, Role::OutputGate, Role::Output];
    /// The linear layers of one MLP or expert, in the order of [`LayerInfo::linears`].
    pub const MLP: [Role; 3] = [Role::Gate, Role::Up, Role::Down];
    /// The linear layers of a per-layer embedding, in the order of [`LayerInfo::linears`].
    pub const PER_LAYER: [Role; 2] = [Role::PerLayerGate, Role::PerLayerOutput];

    /// Its name in couplings, such as `q` or `down`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Query => "q",
            Role::Key => "k",
            Role::Value => "v",
            Role::Output => "o",
            Role::Gate => "gate",
            Role::Up => "up",
            Role::Down => "down",
            Role::Mixed => "qkv",
            Role::OutputGate => "z",
            Role::PerLayerGate => "per_layer_input_gate",
            Role::PerLayerOutput => "per_layer_projection",
        }
    }

    /// The input that it reads.
    pub fn input(self) -> Input {
        match self {
            Role::Query | Role::Key | Role::Value | Role::Mixed | Role::OutputGate => Input::Qkv,
            Role::Output => Input::Out,
            Role::Gate | Role::Up => Input::GateUp,
            Role::Down => Input::Down,
            Role::PerLayerGate => Input::PerLayerGate,
            Role::PerLayerOutput => Input::PerLayerOutput,
        }
    }
}

/// The inputs that the linear layers of one attention, one MLP and one per-layer embedding
/// share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// Of the q, k and v projections.
    Qkv,
    /// Of the o projection.
    Out,
    /// Of the gate and up projections.
    GateUp,
    /// Of the down projection.
    Down,
    /// Of the gate of the per-layer embedding: the hidden state after the MLP.
    PerLayerGate,
    /// Of the projection of the per-layer embedding.
    PerLayerOutput,
}

impl Input {
    /// In the order of the forward pass.
    pub const ALL: [Input; 6] = [
        Input::Qkv,
        Input::Out,
        Input::GateUp,
        Input::Down,
        Input::PerLayerGate,
        Input::PerLayerOutput,
    ];

    /// The inputs of attention, of the MLP, and of the per-layer embedding.
    pub const PARTS: [[Input; 2]; 3] = [
        [Input::Qkv, Input::Out],
        [Input::GateUp, Input::Down],
        [Input::PerLayerGate, Input::PerLayerOutput],
    ];

    /// `qkv`, `out`, `gate_up`, `down`, `per_layer_gate` or `per_layer_output`.
    pub fn name(self) -> &'static str {
        match self {
            Input::Qkv => "qkv",
            Input::Out => "out",
            Input::GateUp => "gate_up",
            Input::Down => "down",
            Input::PerLayerGate => "per_layer_gate",
            Input::PerLayerOutput => "per_layer_output",
        }
    }

    /// The half of the layer that computes it; the per-layer embedding follows the MLP.
    pub fn half(self) -> Half {
        if self <= Input::Out { Half::Attention } else { Half::Mlp }
    }
}

/// An input of some of a layer's linear layers, ordered as in the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Which input.
    pub input: Input,
    /// Of which expert; `None` is attention, an MLP without experts, or the shared one.
    pub expert: Option<u16>,
}

impl From<Input> for Site {
    fn from(input: Input) -> Self {
        Self { input, expert: None }
    }
}

/// `gate_up`, or `gate_up[3]` of expert 3.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expert {
            None => f.write_str(self.input.name()),
            Some(expert) => write!(f, "{}[{expert}]", self.input.name()),
        }
    }
}

/// As it is displayed.
impl FromStr for Site {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an input of a layer");
        let (name, expert) = match text.split_once('[') {
            None => (text, None),
            Some((name, rest)) => {
                let number = rest.strip_suffix(']').and_then(|number| number.parse().ok());
                (name, Some(number.ok_or_else(wrong)?))
            }
        };
        let input = Input::ALL.into_iter().find(|input| input.name() == name);
        Ok(Self { input: input.ok_or_else(wrong)?, expert })
    }
}

/// A linear layer of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearInfo {
    /// Its name within the layer, such as `self_attn.q_proj`.
    pub name: String,
    /// What it computes.
    pub role: Role,
    /// The expert that it belongs to, if any.
    pub expert: Option<u16>,
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// Whether it has a bias.
    pub bias: bool,
}

impl LinearInfo {
    /// The input that it reads.
    pub fn site(&self) -> Site {
        Site { input: self.role.input(), expert: self.expert }
    }

    /// `q_proj` of `self_attn.q_proj`.
    pub fn short(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// Whether `name` refers to it in a coupling: `q`, `q_proj` or `self_attn.q_proj`.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.role.name() || name == self.short() || name == self.name
    }
}

/// Whether tensors called `name.weight` are linear layers in some family, whatever layer
/// or expert they belong to.
pub fn is_linear_name(name: &str) -> bool {
    let short = name.rsplit('.').next().unwrap_or(name);
    let ends_with = |part: &&str| {
        name.strip_suffix(part).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let encoders = FAMILIES.iter().filter(|family| family.encoder.is_some());
    let mut in_encoders =
        encoders.flat_map(|family| family.names.attention.iter().chain(&family.names.mlp));
    if in_encoders.any(|part| !part.is_empty() && ends_with(part)) {
        return true;
    }
    let roles = Role::ATTENTION.into_iter().chain(Role::MLP);
    let by_role = short
        .strip_suffix("_proj")
        .is_some_and(|role| roles.into_iter().any(|known| known.name() == role));
    let of_delta_net = Role::DELTA_NET.map(delta_net_name).contains(&short);
    by_role
        || of_delta_net
        || Role::PER_LAYER.map(Role::name).contains(&short)
        || FAMILIES.iter().any(|family| family.names.expert_parts.contains(&short))
}

/// The number of the layer that a tensor belongs to, and its name there; `None` for tensors
/// outside the layers.
///
/// ```
/// use openwork_llm::model::split_layer_name;
/// let name = "model.layers.7.self_attn.q_proj.weight";
/// assert_eq!(split_layer_name(name), Some((7, "self_attn.q_proj.weight")));
/// assert_eq!(split_layer_name("encoder.layer.0.output.dense.bias"), Some((0, "output.dense.bias")));
/// assert_eq!(split_layer_name("pooler.dense.weight"), None);
/// ```
pub fn split_layer_name(name: &str) -> Option<(usize, &str)> {
    FAMILIES.iter().find_map(|family| {
        let (index, rest) = name.strip_prefix(family.names.layers)?.split_once('.')?;
        Some((index.parse().ok()?, rest))
    })
}

/// The linear layers of one layer: those of attention, of its MLP or shared
/// expert, if any, of each expert, and of its per-layer embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerInfo {
    /// The layer's index.
    pub index: usize,
    /// Before the index in names of tensors, as in `model.layers.`.
    pub prefix: &'static str,
    /// In the order of files.
    pub linears: Vec<LinearInfo>,
    /// The number of linear layers of the mixer: attention or a gated delta net.
    pub mixer: usize,
    /// Whether there is an MLP that every token goes through.
    pub has_mlp: bool,
    /// Number of experts.
    pub experts: usize,
    /// Whether they work beside the MLP, with norms of their own.
    pub beside_mlp: bool,
}

impl LayerInfo {
    /// The linear layers of layer `index`.
    pub fn new(c: &Config, index: usize) -> Self {
        let d = c.hidden;
        let names = &c.family.names;
        let mut linears = match c.delta_net(index) {
            Some(sizes) => delta_net_linears(d, &sizes),
            None => attention_linears(c, index),
        };
        let mixer = linears.len();
        let mut mlp = |prefix: &str, parts: [&str; 3], ff: usize, expert: Option<u16>| {
            for (role, part) in Role::MLP.into_iter().zip(parts) {
                if part.is_empty() {
                    continue;
                }
                let shape = if role == Role::Down { [d, ff] } else { [ff, d] };
                let name = format!("{prefix}{part}");
                linears.push(LinearInfo { name, role, expert, shape, bias: c.mlp_bias });
            }
        };
        let experts = c.experts.as_ref().filter(|experts| experts.layers[index]);
        let own_ff = c.mlp_width(index);
        if let Some(ff) = own_ff {
            match experts {
                Some(_) => {
                    let prefix = format!("{}.", names.shared);
                    mlp(&prefix, ["gate_proj", "up_proj", "down_proj"], ff, None);
                }
                None => mlp("", names.mlp, ff, None),
            }
        }
        let count = experts.map_or(0, |experts| experts.count);
        for expert in 0..count {
            let ff = experts.map_or(0, |experts| experts.ff);
            let prefix = format!("{}.{expert}.", names.experts);
            mlp(&prefix, names.expert_parts, ff, Some(expert as u16));
        }
        if let Some(PerLayerEmbedding { width, .. }) = c.per_layer {
            for (role, shape) in Role::PER_LAYER.into_iter().zip([[width, d], [d, width]]) {
                let name = role.name().to_string();
                linears.push(LinearInfo { name, role, expert: None, shape, bias: false });
            }
        }
        let (prefix, has_mlp) = (names.layers, own_ff.is_some());
        let beside_mlp = experts.is_some_and(|experts| experts.beside_mlp);
        Self { index, prefix, linears, mixer, has_mlp, experts: count, beside_mlp }
    }

    /// The full name of a linear layer's weights.
    pub fn weight_name(&self, linear: usize) -> String {
        format!("{}{}.{}.weight", self.prefix, self.index, self.linears[linear].name)
    }

    /// Every input, in the order of the forward pass.
    pub fn sites(&self) -> Vec<Site> {
        let sites: BTreeSet<Site> = self.linears.iter().map(LinearInfo::site).collect();
        sites.into_iter().collect()
    }

    /// Width of an input.
    pub fn width(&self, site: Site) -> usize {
        // The input of gate and up is the same for all experts.
        let reads = |linear: &&LinearInfo| {
            linear.role.input() == site.input
                && (linear.expert == site.expert || site == Input::GateUp.into())
        };
        self.linears.iter().find(reads).map_or(0, |linear| linear.shape[1])
    }

    /// The index of the first linear layer of an expert, or of the MLP that every token
    /// goes through.
    pub fn first_of(&self, expert: Option<u16>) -> usize {
        match expert {
            None => self.mixer,
            Some(expert) => {
                self.mixer + Role::MLP.len() * (usize::from(self.has_mlp) + usize::from(expert))
            }
        }
    }

    /// The first linear layer with this role, if there is one.
    pub fn position(&self, role: Role) -> Option<usize> {
        self.linears.iter().position(|linear| linear.role == role)
    }

    /// The linear layer that a coupling calls `name`, next to one of this expert.
    pub fn find(&self, name: &str, expert: Option<u16>) -> Option<usize> {
        let position = |expert| {
            self.linears.iter().position(|linear| linear.expert == expert && linear.is_called(name))
        };
        // The linear layers of attention can be coupled with any expert.
        position(expert).or_else(|| position(None))
    }

    /// Number of weights used for one token; of all experts, only those it is routed to.
    pub fn active_weights(&self, c: &Config) -> usize {
        let size = |linear: &LinearInfo| linear.shape[0] * linear.shape[1];
        let own: usize = self.linears.iter().filter(|l| l.expert.is_none()).map(size).sum();
        let experts = self.weights() - own;
        own + c.experts.as_ref().map_or(0, |all| experts * all.active / all.count)
    }

    /// Weights of all linear layers.
    pub fn weights(&self) -> usize {
        self.linears.iter().map(|linear| linear.shape[0] * linear.shape[1]).sum()
    }
}

/// The linear layers of a layer's attention.
fn attention_linears(c: &Config, index: usize) -> Vec<LinearInfo> {
    let (d, attention) = (c.hidden, &c.attention[index]);
    let (q, kv) = (c.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
    let gates = if c.family.gated_attention { q } else { 0 };
    let roles = Role::ATTENTION.into_iter().zip(c.family.names.attention);
    let absent = |role: Role| match role {
        Role::Key => attention.shared_from.is_some(),
        Role::Value => attention.shared_from.is_some() || attention.values_are_keys,
        _ => false,
    };
    let roles = roles.filter(|(role, _)| !absent(*role));
    let linear = |(role, name): (Role, &str)| {
        let (shape, bias) = match role {
            Role::Query => ([q + gates, d], c.qkv_bias),
            Role::Output => ([d, q], c.out_bias),
            _ => ([kv, d], c.qkv_bias),
        };
        let name = name.to_string();
        LinearInfo { name, role, expert: None, shape, bias }
    };
    roles.map(linear).collect()
}

/// The linear layers of a gated delta net. The projections of its two numbers per head are
/// not among them: like routers, they stay dense.
fn delta_net_linears(d: usize, sizes: &DeltaNetSizes) -> Vec<LinearInfo> {
    let linear = |role: Role| {
        let shape = match role {
            Role::Mixed => [sizes.channels(), d],
            Role::Output => [d, sizes.value_width()],
            _ => [sizes.value_width(), d],
        };
        let name = format!("linear_attn.{}", delta_net_name(role));
        LinearInfo { name, role, expert: None, shape, bias: false }
    };
    Role::DELTA_NET.map(linear).to_vec()
}

/// The name of a linear layer within a gated delta net.
fn delta_net_name(role: Role) -> &'static str {
    match role {
        Role::Mixed => "in_proj_qkv",
        Role::OutputGate => "in_proj_z",
        _ => "out_proj",
    }
}
