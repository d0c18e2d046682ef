//! A layer of a decoder or encoder: its tensors, its linear layers, its forward pass.

use super::attention::GroupedQueryAttention;
use super::cache::Cache;
use super::carried::CarriedRows;
use super::config::{Activation, Config};
use super::delta_net::{DeltaNet, Projected};
use super::encoder::PositionBias;
use super::experts::Router;
use super::family::QkNorm;
use super::hidden::{Hidden, Scratch, Windows};
use super::keep_awake::keep_awake;
use super::linear::{Input, LayerInfo, LinearInfo, Role, Site};
use super::norm::Norm;
use super::parameter::Half;
use super::per_layer::PerLayerInput;
use super::rope::Rope;
use super::tap::Tap;
use super::vector;
use super::weight::{Storage, Weight, apply, apply_add};
use crate::checkpoint::{Checkpoint, CheckpointError, Fault, Tensor};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Tokens that short windows are batched to: single tokens one at a time would read all
/// weights for each of them.
pub(crate) const BATCH_TOKENS: usize = 1024;

/// A linear layer: `y = W x + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    info: LinearInfo,
    pub(super) weight: Weight,
    pub(super) bias: Option<Vec<f32>>,
}

impl Linear {
    /// Its role, name and shape.
    pub fn info(&self) -> &LinearInfo {
        &self.info
    }

    /// Which input it reads.
    pub fn site(&self) -> Site {
        self.info.site()
    }

    /// `[out, in]`.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// `[out, in]`, if the layer was loaded as [`Storage::F32`].
    pub fn matrix(&self) -> Option<&Matrix> {
        self.weight.matrix()
    }

    /// Replaces the weights by others of the same shape, such as packed ones.
    ///
    /// # Panics
    ///
    /// If their shape differs.
    pub fn set_weight(&mut self, weight: Weight) {
        let shape = (self.weight.rows(), self.weight.cols());
        assert_eq!((weight.rows(), weight.cols()), shape, "weights of {}", self.info.name);
        self.weight = weight;
    }

    /// `[out, in]`, mutable, if the layer was loaded as [`Storage::F32`].
    pub fn matrix_mut(&mut self) -> Option<&mut Matrix> {
        self.weight.matrix_mut()
    }

    /// `[out]`, if it has one.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// `[out]`, if it has one, to be changed.
    pub fn bias_mut(&mut self) -> Option<&mut [f32]> {
        self.bias.as_deref_mut()
    }

    /// Adds the bias, if any, to every row.
    pub(super) fn add_bias(&self, y: &mut [f32]) {
        if let Some(bias) = &self.bias {
            y.par_chunks_mut(bias.len()).for_each(|row| vector::add(row, bias));
        }
    }
}

/// The norms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSlot {
    /// On the input of attention.
    BeforeAttention,
    /// On each query head, before its rotation.
    Query,
    /// On each key head, before its rotation.
    Key,
    /// On the output of attention, before it is added back.
    AfterAttention,
    /// On the input of the MLP.
    BeforeMlp,
    /// On the output of the MLP, before it is added back.
    AfterMlp,
    /// On the output of the per-layer embedding, before it is added back.
    AfterPerLayer,
}

impl NormSlot {
    /// In the order of the forward pass.
    pub const ALL: [NormSlot; 7] = [
        NormSlot::BeforeAttention,
        NormSlot::Query,
        NormSlot::Key,
        NormSlot::AfterAttention,
        NormSlot::BeforeMlp,
        NormSlot::AfterMlp,
        NormSlot::AfterPerLayer,
    ];

    /// Its name within a layer of such a model, if it has it.
    pub fn name(self, config: &Config, layer: usize) -> Option<&'static str> {
        norm_names(config, layer).find(|(slot, _)| *slot == self).map(|(_, (name, _))| name)
    }
}

/// Name within the layer and width of each norm that a layer of such a model has.
pub(super) fn norm_names(
    c: &Config,
    layer: usize,
) -> impl Iterator<Item = (NormSlot, (&'static str, usize))> {
    let norms = &c.family.norms;
    let attention = &c.attention[layer];
    let heads = |name, count: usize| match c.family.qk_norm {
        _ if c.delta_net(layer).is_some() => None,
        QkNorm::None => None,
        QkNorm::PerHead => Some((name, attention.head_dim)),
        QkNorm::AllHeads => Some((name, count * attention.head_dim)),
    };
    let names = [
        norms.before_attention.map(|name| (name, c.hidden)),
        heads("self_attn.q_norm", c.heads),
        heads("self_attn.k_norm", attention.kv_heads).filter(|_| attention.shared_from.is_none()),
        norms.after_attention.map(|name| (name, c.hidden)),
        norms.before_mlp.map(|name| (name, c.hidden)),
        norms.after_mlp.map(|name| (name, c.hidden)),
        c.per_layer.map(|_| ("post_per_layer_input_norm", c.hidden)),
    ];
    NormSlot::ALL.into_iter().zip(names).filter_map(|(slot, name)| Some((slot, name?)))
}

/// A layer of a decoder or encoder.
#[derive(Debug)]
pub struct Layer {
    info: LayerInfo,
    pub(super) config: Arc<Config>,
    rope: Option<Arc<Rope>>,
    /// Added to the scores of attention, in some encoders.
    pub(super) position_bias: Option<Arc<PositionBias>>,
    /// One for each of [`NormSlot::ALL`] that the family has.
    pub(super) norms: [Option<Norm>; NormSlot::ALL.len()],
    /// In the order of [`LayerInfo::linears`].
    pub(super) linears: Vec<Linear>,
    /// Which expert sees which token, in a layer with experts.
    pub(super) router: Option<Router>,
    /// The rest of a gated delta net, in a layer that has one instead of attention.
    pub(super) delta_net: Option<DeltaNet>,
    /// The sink of each head, if the family has them.
    sinks: Option<Arc<[f32]>>,
    /// On each head of values, if the family has it.
    pub(super) value_norm: Option<Norm>,
    /// Factor of the layer's output, if the family has one.
    scale: Option<f32>,
    /// The per-layer embedding, if the model has one.
    pub(super) per_layer: Option<PerLayerInput>,
    /// Where it stores its keys and values for later layers, or finds those of an earlier
    /// one: columns of [`Config::shared_columns`].
    pub(super) shared: Option<Range<usize>>,
}

/// Loads a matrix of `checkpoint`.
pub(super) fn load(
    checkpoint: &Checkpoint,
    tensor: &Tensor<'_>,
    storage: Storage,
) -> Result<Weight, CheckpointError> {
    Weight::load(tensor, storage).map_err(|error| {
        let (tensor, why) = (tensor.name().to_string(), error.to_string());
        CheckpointError::new(checkpoint.path(), Fault::Packed { tensor, why })
    })
}

/// `model.layers.7.`
pub(super) fn prefix(c: &Config, index: usize) -> String {
    format!("{}{index}.", c.family.names.layers)
}

impl Layer {
    /// Sets whether products of its linear layers with many rows may round their operands to
    /// bf16, if their weights are f32.
    pub fn round_products(&mut self, rounds: bool) {
        self.linears.iter_mut().for_each(|linear| linear.weight.round_products(rounds));
    }

    /// Loads layer `index`.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        config: &Arc<Config>,
        rope: &Option<Arc<Rope>>,
        index: usize,
        storage: Storage,
    ) -> Result<Self, CheckpointError> {
        let c = config.as_ref();
        let prefix = prefix(c, index);
        let norm = |name: &str, width: usize| -> Result<Norm, CheckpointError> {
            let weights =
                checkpoint.tensor_with_shape(&format!("{prefix}{name}.weight"), &[width])?;
            if c.encoder.is_some() {
                let bias =
                    checkpoint.tensor_with_shape(&format!("{prefix}{name}.bias"), &[width])?;
                return Ok(Norm::layer(weights.to_f32(), bias.to_f32(), c.norm_eps));
            }
            Ok(Norm::new(weights.to_f32(), c.family.norm_offset, c.norm_eps))
        };
        let info = LayerInfo::new(c, index);
        let linear = |info: &LinearInfo| -> Result<Linear, CheckpointError> {
            let name = &info.name;
            let tensor =
                checkpoint.tensor_with_shape(&format!("{prefix}{name}.weight"), &info.shape)?;
            let bias = match info.bias {
                true => Some(
                    checkpoint
                        .tensor_with_shape(&format!("{prefix}{name}.bias"), &info.shape[..1])?
                        .to_f32(),
                ),
                false => None,
            };
            let weight = load(checkpoint, &tensor, storage)?;
            Ok(Linear { info: info.clone(), weight, bias })
        };
        let mut norms = [const { None }; NormSlot::ALL.len()];
        for (slot, (name, width)) in norm_names(c, index) {
            norms[slot as usize] = Some(norm(name, width)?);
        }
        let router = match info.experts {
            0 => None,
            _ => Some(Router::load(checkpoint, c, &prefix)?),
        };
        let delta_net = match c.delta_net(index) {
            None => None,
            Some(sizes) => Some(DeltaNet::load(checkpoint, c, sizes, &prefix)?),
        };
        let sinks = match c.family.sinks {
            false => None,
            true => {
                let name = format!("{prefix}{SINKS}");
                Some(checkpoint.tensor_with_shape(&name, &[c.heads])?.to_f32().into())
            }
        };
        let head_dim = c.attention[index].head_dim;
        let value_norm =
            c.family.value_norm.then(|| Norm::new(vec![1.0; head_dim], 0.0, c.norm_eps));
        let scale = match c.family.layer_scale {
            false => None,
            true => {
                let tensor = checkpoint.tensor_with_shape(&format!("{prefix}{SCALE}"), &[1])?;
                tensor.to_f32().first().copied()
            }
        };
        Ok(Self {
            linears: info.linears.iter().map(linear).collect::<Result<_, _>>()?,
            info,
            config: Arc::clone(config),
            rope: rope.clone(),
            position_bias: None,
            norms,
            router,
            delta_net,
            sinks,
            value_norm,
            scale,
            per_layer: None,
            shared: c
                .shared_columns()
                .find(|(source, _)| *source == c.attention[index].shared_from.unwrap_or(index))
                .map(|(_, columns)| columns),
        })
    }

    /// The names and shapes of all tensors of layer `index`, in the order of files.
    pub(super) fn tensors(c: &Config, index: usize) -> Vec<(String, Vec<usize>)> {
        let prefix = prefix(c, index);
        // In files the norms of heads follow the others.
        let mut norms: Vec<_> = norm_names(c, index).collect();
        norms.sort_by_key(|(slot, _)| matches!(slot, NormSlot::Query | NormSlot::Key));
        let kinds: &[&str] = if c.encoder.is_some() { &["weight", "bias"] } else { &["weight"] };
        let norms = norms.into_iter().flat_map(|(_, (name, width))| {
            kinds.iter().map(move |kind| (format!("{name}.{kind}"), vec![width]))
        });
        let norms = norms.map(|(name, shape)| (format!("{prefix}{name}"), shape));
        let info = LayerInfo::new(c, index);
        let mut tensors: Vec<(String, Vec<usize>)> = norms.collect();
        if info.experts > 0 {
            tensors.extend(Router::tensors(c, &prefix));
        }
        if let Some(sizes) = c.delta_net(index) {
            let named = |(name, shape)| (format!("{prefix}{name}"), shape);
            tensors.extend(DeltaNet::tensors(c, &sizes).map(named));
        }
        if c.family.layer_scale {
            tensors.push((format!("{prefix}{SCALE}"), vec![1]));
        }
        if c.family.sinks {
            tensors.push((format!("{prefix}{SINKS}"), vec![c.heads]));
        }
        for linear in &info.linears {
            let name = format!("{prefix}{}", linear.name);
            tensors.push((format!("{name}.weight"), linear.shape.to_vec()));
            if linear.bias {
                tensors.push((format!("{name}.bias"), vec![linear.shape[0]]));
            }
        }
        tensors
    }

    /// One of its norms, if the family has it.
    pub fn norm(&self, slot: NormSlot) -> Option<&Norm> {
        self.norms[slot as usize].as_ref()
    }

    /// One of its norms, to be changed.
    pub fn norm_mut(&mut self, slot: NormSlot) -> Option<&mut Norm> {
        self.norms[slot as usize].as_mut()
    }

    /// Sizes and options of its model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The rotation of its heads, if any.
    pub(super) fn rope(&self) -> Option<&Rope> {
        self.rope.as_deref()
    }

    /// Its linear layers and their inputs.
    pub fn info(&self) -> &LayerInfo {
        &self.info
    }

    /// Its index, from 0.
    pub fn index(&self) -> usize {
        self.info.index
    }

    /// The linear layers, in the order of [`LayerInfo::linears`].
    pub fn linears(&self) -> &[Linear] {
        &self.linears
    }

    /// The linear layers, mutable.
    pub fn linears_mut(&mut self) -> &mut [Linear] {
        &mut self.linears
    }

    /// The linear layers of attention: q; k, unless it uses the keys of an earlier layer;
    /// v, unless the values are the keys or of an earlier layer.
    pub(super) fn attention_linears(&self) -> (&Linear, Option<&Linear>, Option<&Linear>) {
        let linear = |role| self.linears[..self.info.mixer].iter().find(|l| l.info.role == role);
        (&self.linears[0], linear(Role::Key), linear(Role::Value))
    }

    /// The layer whose keys and values it attends to: itself, or an earlier one.
    pub(super) fn key_layer(&self) -> usize {
        self.config.attention[self.index()].shared_from.unwrap_or(self.index())
    }

    /// The output of the mixer.
    pub(super) fn output_linear(&self) -> &Linear {
        &self.linears[self.info.mixer - 1]
    }

    /// Gate, up and down of an expert, or of the MLP that every token goes through; up
    /// twice, if it has no gate.
    pub(super) fn mlp_linears(&self, expert: Option<u16>) -> [&Linear; 3] {
        let first = self.info.first_of(expert);
        if self.config.is_ungated() {
            return [0, 0, 1].map(|i| &self.linears[first + i]);
        }
        std::array::from_fn(|i| &self.linears[first + i])
    }

    /// Size of the weights, in bytes.
    pub fn bytes(&self) -> usize {
        self.linears.iter().map(|linear| linear.weight.bytes()).sum()
    }

    /// Bytes of the weights used for one token; of all experts, only those it is routed to.
    pub fn bytes_per_token(&self) -> usize {
        let own: usize =
            self.linears.iter().filter(|l| l.info.expert.is_none()).map(|l| l.weight.bytes()).sum();
        let experts = self.bytes() - own;
        match &self.config.experts {
            Some(all) if self.info.experts > 0 => own + experts * all.active / all.count,
            _ => own,
        }
    }

    /// Runs the layer on every window, in place; `tap` receives the inputs of the
    /// linear layers, in the order of the tokens.
    pub fn forward(&self, hidden: &mut Hidden, tap: &mut dyn Tap) {
        self.each_batch(hidden, |layer, h, windows, mut carried, scratch| {
            layer.attention(h, windows, &mut carried, None, scratch, tap);
            layer.mlp(h, carried.tokens, scratch, tap);
        });
    }

    /// The first half of [`forward`](Self::forward): attention with its residual
    /// connection.
    pub fn forward_attention(&self, hidden: &mut Hidden, tap: &mut dyn Tap) {
        self.each_batch(hidden, |layer, h, windows, mut carried, scratch| {
            layer.attention(h, windows, &mut carried, None, scratch, tap)
        });
    }

    /// The second half of [`forward`](Self::forward): the MLP with its residual
    /// connection.
    pub fn forward_mlp(&self, hidden: &mut Hidden, tap: &mut dyn Tap) {
        self.each_batch(hidden, |layer, h, _, carried, scratch| {
            layer.mlp(h, carried.tokens, scratch, tap)
        });
    }

    /// One half of [`forward`](Self::forward).
    pub fn forward_half(&self, half: Half, hidden: &mut Hidden, tap: &mut dyn Tap) {
        match half {
            Half::Attention => self.forward_attention(hidden, tap),
            Half::Mlp => self.forward_mlp(hidden, tap),
        }
    }

    /// Computes the inputs up to those of `last` for `tap`, without changing the
    /// states. These must be the layer's input for [`Input::Qkv`] and [`Input::Out`],
    /// and the output of [`forward_attention`](Self::forward_attention) for the
    /// others.
    pub fn observe_inputs(&self, hidden: &mut Hidden, last: Input, tap: &mut dyn Tap) {
        self.each_batch(hidden, |layer, h, windows, mut carried, scratch| match last {
            Input::Qkv => layer.attention_input(h, scratch, tap),
            Input::Out => {
                layer.attention_input(h, scratch, tap);
                layer.attend(h.len(), windows, &mut carried, None, scratch, tap);
            }
            // They depend on the output of the MLP.
            Input::PerLayerGate | Input::PerLayerOutput => {
                layer.mlp(&mut h.to_vec(), carried.tokens, scratch, tap)
            }
            Input::GateUp | Input::Down => {
                layer.mlp_input(h, scratch, tap);
                if last == Input::Down && layer.info.has_mlp {
                    layer.gate(h.len(), scratch, tap);
                }
                if layer.router.is_some() {
                    layer.observe_experts(h, last, scratch, tap);
                }
            }
        });
    }

    /// Runs the layer on the next tokens of one sequence and appends them to its cache,
    /// which holds the tokens before. `caches` are those of all layers; a layer that uses
    /// the keys and values of an earlier one reads its cache instead.
    ///
    /// # Panics
    ///
    /// If there is more than one window.
    pub(super) fn forward_cached(&self, hidden: &mut Hidden, caches: &mut [Cache]) {
        assert_eq!(hidden.windows, 1, "a cache holds one sequence");
        let Hidden { states, carried, start, len, scratch, .. } = hidden;
        let (h, tap) = (states.data_mut(), &mut super::tap::NoTap);
        let window = Windows { len: *len, start: *start };
        let mut carried = carried.rows(0..*len, *len);
        let cache = &mut caches[self.key_layer()];
        self.attention(h, window, &mut carried, Some(cache), scratch, tap);
        self.mlp(h, carried.tokens, scratch, tap);
    }

    /// Runs `work` on the states of batches of windows, at most [`BATCH_TOKENS`] tokens
    /// or one window at a time.
    pub(super) fn each_batch(
        &self,
        hidden: &mut Hidden,
        mut work: impl FnMut(&Self, &mut [f32], Windows, CarriedRows<'_>, &mut Scratch) + Send,
    ) {
        let Hidden { states, carried, len, start, scratch, .. } = hidden;
        let (len, start, total) = (*len, *start, states.rows());
        let rows = (BATCH_TOKENS / len).max(1) * len;
        keep_awake(|| {
            let batches = states.data_mut().chunks_mut(rows * self.config.hidden);
            for (batch, first) in batches.zip((0..total).step_by(rows)) {
                let carried = carried.rows(first..total.min(first + rows), total);
                work(self, batch, Windows { len, start }, carried, scratch);
            }
        });
    }

    /// Attention within each window of a batch: `h` is `[T, hidden]`.
    fn attention(
        &self,
        h: &mut [f32],
        windows: Windows,
        carried: &mut CarriedRows<'_>,
        cache: Option<&mut Cache>,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        self.attention_input(h, scratch, tap);
        self.attend(h.len(), windows, carried, cache, scratch, tap);
        self.attention_output(h, scratch);
    }

    /// From `mixed` to `h`, with the residual connection.
    pub(super) fn attention_output(&self, h: &mut [f32], scratch: &mut Scratch) {
        let Scratch { mixed, out, .. } = scratch;
        let o_proj = self.output_linear();
        let x = MatrixRef::new(mixed, h.len() / self.config.hidden, o_proj.weight.cols());
        self.add_residual(x, o_proj, self.norm(NormSlot::AfterAttention), out, h);
    }

    /// The MLP on every token of a batch, and all that follows it in the layer.
    pub(super) fn mlp(
        &self,
        h: &mut [f32],
        tokens: &[u32],
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        self.mlp_input(h, scratch, tap);
        if self.router.is_some() {
            self.mix_experts(h, scratch, tap, None);
        } else {
            self.gate(h.len(), scratch, tap);
            let Scratch { gate, out, .. } = scratch;
            let [.., down_proj] = self.mlp_linears(None);
            let x = MatrixRef::new(gate, h.len() / self.config.hidden, down_proj.weight.cols());
            self.add_residual(x, down_proj, self.norm(NormSlot::AfterMlp), out, h);
        }
        self.finish(h, tokens, scratch, tap);
    }

    /// What follows the MLP: the per-layer embedding and the factor of the layer's output,
    /// if the model has them.
    pub(super) fn finish(
        &self,
        h: &mut [f32],
        tokens: &[u32],
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        self.add_per_layer(h, tokens, scratch, tap);
        self.scale_output(h);
    }

    /// Multiplies the layer's output, or the gradient of it, by its factor, if it has one.
    pub(super) fn scale_output(&self, h: &mut [f32]) {
        if let Some(scale) = self.scale {
            h.par_chunks_mut(ACTIVATION_CHUNK).for_each(|h| vector::scale(h, scale));
        }
    }

    /// Normalizes `h` into `normed`: `[T, hidden]`.
    pub(super) fn attention_input(&self, h: &[f32], scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.normalize(NormSlot::BeforeAttention, h, scratch);
        let d = self.config.hidden;
        tap.on_input(Input::Qkv.into(), MatrixRef::new(&scratch.normed, h.len() / d, d));
    }

    /// From `normed`, of `size` entries, to `mixed`: `[T, heads * head_dim]`.
    fn attend(
        &self,
        size: usize,
        windows: Windows,
        carried: &mut CarriedRows<'_>,
        cache: Option<&mut Cache>,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        match &self.delta_net {
            Some(net) => {
                self.project_delta(size, scratch);
                self.mix_delta(net, windows.len, cache, scratch);
            }
            None => {
                self.project_heads(size, scratch);
                self.rotate_rows(size, &|row| windows.position(row), scratch);
                self.share_keys(carried, scratch);
                self.mix(windows.len, cache, scratch);
                self.gate_heads(scratch);
            }
        }
        self.observe_mixed(size, scratch, tap);
    }

    /// Runs a gated delta net on the windows of a batch, from `q` and `v` to `mixed`. With
    /// a cache there is one window, which continues the cached tokens.
    fn mix_delta(
        &self,
        net: &DeltaNet,
        len: usize,
        mut cache: Option<&mut Cache>,
        scratch: &mut Scratch,
    ) {
        let (hidden, width) = (self.config.hidden, self.output_linear().weight.cols());
        let Scratch { normed, q, v, mixed, .. } = scratch;
        let t = normed.len() / hidden;
        let channels = q.len() / t;
        let windows = sized(mixed, t * width).chunks_exact_mut(len * width).enumerate();
        for (i, mixed) in windows {
            let part = |width: usize| i * len * width..(i + 1) * len * width;
            let projected = Projected {
                input: MatrixRef::new(&normed[part(hidden)], len, hidden),
                mixed: &q[part(channels)],
                gate: &v[part(width)],
            };
            let mut fresh = Cache::default();
            net.mix(&projected, &mut cache.as_deref_mut().unwrap_or(&mut fresh).delta, mixed);
        }
    }

    /// From `normed` to queries, keys and values together, in `q`, and the gate of the
    /// output, in `v`, of a gated delta net.
    pub(super) fn project_delta(&self, size: usize, scratch: &mut Scratch) {
        let [mixed, gate] = [0, 1].map(|i| &self.linears[i].weight);
        let t = size / self.config.hidden;
        let Scratch { normed, q, v, .. } = scratch;
        let (q, v) = (sized(q, t * mixed.rows()), sized(v, t * gate.rows()));
        apply(
            MatrixRef::new(normed, t, self.config.hidden),
            &mut [
                (mixed, MatrixMut::new(q, t, mixed.rows())),
                (gate, MatrixMut::new(v, t, gate.rows())),
            ],
        );
    }

    /// From `normed` to queries `[T, heads * head_dim]`, and keys and values
    /// `[T, kv_heads * head_dim]`, which are empty if those of an earlier layer are used.
    pub(super) fn project_heads(&self, size: usize, scratch: &mut Scratch) {
        let c = self.config.as_ref();
        let (q_proj, k_proj, v_proj) = self.attention_linears();
        let q_width = q_proj.weight.rows();
        let kv_width = k_proj.map_or(0, |k_proj| k_proj.weight.rows());
        let t = size / c.hidden;
        let Scratch { normed, q, k, v, head_gate, .. } = scratch;
        let (queries, keys) = (sized(q, t * q_width), sized(k, t * kv_width));
        let values = sized(v, t * kv_width);
        let mut products = vec![(&q_proj.weight, MatrixMut::new(queries, t, q_width))];
        if let Some(k_proj) = k_proj {
            products.push((&k_proj.weight, MatrixMut::new(keys, t, kv_width)));
        }
        if let Some(v_proj) = v_proj {
            products.push((&v_proj.weight, MatrixMut::new(values, t, kv_width)));
        }
        apply(MatrixRef::new(normed, t, c.hidden), &mut products);
        q_proj.add_bias(q);
        if let Some(k_proj) = k_proj {
            k_proj.add_bias(k);
        }
        match v_proj {
            Some(v_proj) => v_proj.add_bias(v),
            None => v.copy_from_slice(k),
        }
        if c.family.gated_attention {
            let d = c.attention[self.index()].head_dim;
            split_heads(q, head_gate, d);
        }
    }

    /// Multiplies the outputs of heads by their gates, if the family has them.
    pub(super) fn gate_heads(&self, scratch: &mut Scratch) {
        let Scratch { mixed, head_gate, .. } = scratch;
        if self.config.family.gated_attention {
            let parts = mixed.par_chunks_mut(ACTIVATION_CHUNK);
            parts
                .zip(head_gate.par_chunks(ACTIVATION_CHUNK))
                .for_each(|(mixed, gate)| vector::sigmoid_gate(mixed, gate));
        }
    }

    /// Passes the input of the output projection to `tap`.
    fn observe_mixed(&self, size: usize, scratch: &Scratch, tap: &mut dyn Tap) {
        let (t, width) = (size / self.config.hidden, self.output_linear().weight.cols());
        tap.on_input(Input::Out.into(), MatrixRef::new(&scratch.mixed, t, width));
    }

    /// Normalizes queries and keys per head where the family does, and rotates
    /// them by `position`.
    pub(super) fn rotate_rows(
        &self,
        size: usize,
        position: &(dyn Fn(usize) -> usize + Sync),
        scratch: &mut Scratch,
    ) {
        let c = self.config.as_ref();
        let t = size / c.hidden;
        let positions = (0..t).map(|row| position(row) + 1).max().unwrap_or(0);
        let table = self.rope().map(|rope| rope.table(positions));
        let rotate = |rows: &mut [f32], width: usize, slot: NormSlot| {
            let norm = self.norm(slot);
            let scaling = c.query_scaling.filter(|_| slot == NormSlot::Query);
            let rotate_row = |(i, row): (usize, &mut [f32])| {
                if let Some(norm) = norm {
                    row.chunks_exact_mut(norm.width()).for_each(|head| norm.in_place(head));
                }
                if let Some(clip) = c.clip_qkv {
                    row.iter_mut().for_each(|x| *x = x.clamp(-clip, clip));
                }
                if let Some(table) = &table {
                    table.rotate(row, position(i));
                }
                if let Some(scaling) = scaling {
                    vector::scale(row, scaling.factor(position(i)));
                }
            };
            match t {
                1 => rotate_row((0, rows)),
                _ => rows.par_chunks_mut(width).enumerate().with_min_len(32).for_each(rotate_row),
            }
        };
        let [q_width, kv_width] = [&scratch.q, &scratch.k].map(|rows| rows.len() / t);
        rotate(&mut scratch.q, q_width, NormSlot::Query);
        if kv_width > 0 {
            rotate(&mut scratch.k, kv_width, NormSlot::Key);
        }
        if let Some(norm) = &self.value_norm {
            let heads = scratch.v.par_chunks_exact_mut(norm.width()).with_min_len(32);
            heads.for_each(|head| norm.in_place(head));
        }
        if let Some(clip) = c.clip_qkv {
            scratch.v.iter_mut().for_each(|x| *x = x.clamp(-clip, clip));
        }
    }

    /// Attends within windows of `len` tokens: `mixed`, `[T, heads * head_dim]`. With a
    /// cache there is one window, which attends to the cached tokens too.
    pub(super) fn mix(&self, len: usize, cache: Option<&mut Cache>, scratch: &mut Scratch) {
        let heads = self.grouped_attention();
        let (q_width, kv_width) =
            (self.output_linear().weight.cols(), heads.kv_heads * heads.head_dim);
        let Scratch { q, k, v, mixed, .. } = scratch;
        let mixed = sized(mixed, q.len());
        if let Some(cache) = cache {
            // Empty if they are those of an earlier layer, which are in its cache.
            cache.extend(k, v);
            return heads.attend(q, cache.keys(), cache.values(), mixed);
        }
        let windows = mixed.par_chunks_mut(len * q_width).zip(q.par_chunks(len * q_width));
        let keys = k.par_chunks(len * kv_width).zip(v.par_chunks(len * kv_width));
        windows.zip(keys).for_each(|((mixed, q), (k, v))| heads.attend(q, k, v, mixed));
    }

    /// The shape of its attention.
    pub(super) fn grouped_attention(&self) -> GroupedQueryAttention {
        let c = self.config.as_ref();
        let attention = &c.attention[self.index()];
        GroupedQueryAttention {
            heads: c.heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            scale: c.attention_scale,
            cap: c.score_cap,
            window: attention.window,
            sinks: self.sinks.clone(),
            causal: c.encoder.is_none(),
            bias: self.position_bias.clone(),
        }
    }

    /// Normalizes `h` into `normed`, where the family does: `[T, hidden]`.
    fn normalize(&self, slot: NormSlot, h: &[f32], scratch: &mut Scratch) {
        let normed = sized(&mut scratch.normed, h.len());
        match self.norm(slot) {
            Some(norm) => norm.apply(h, normed),
            None => normed.copy_from_slice(h),
        }
    }

    /// Normalizes `h` into `normed`: `[T, hidden]`.
    pub(super) fn mlp_input(&self, h: &[f32], scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.normalize(NormSlot::BeforeMlp, h, scratch);
        let d = self.config.hidden;
        if self.info.has_mlp || tap.wants(Input::GateUp.into()) {
            tap.on_input(Input::GateUp.into(), MatrixRef::new(&scratch.normed, h.len() / d, d));
        }
    }

    /// From `normed`, of `size` entries, to `gate`: `[T, ff]`.
    pub(super) fn gate(&self, size: usize, scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.project_gate(size, scratch);
        self.activate_gate(size, scratch, tap);
    }

    /// From `normed` to `gate`, before its activation, and `up`: `[T, ff]`.
    pub(super) fn project_gate(&self, size: usize, scratch: &mut Scratch) {
        let Scratch { normed, gate, up, .. } = scratch;
        let x = MatrixRef::new(normed, size / self.config.hidden, self.config.hidden);
        self.project_mlp(None, x, gate, up);
    }

    /// Gate, before its activation, and up of an expert, or of the MLP that every token
    /// goes through.
    pub(super) fn project_mlp(
        &self,
        expert: Option<u16>,
        x: MatrixRef<'_>,
        gate: &mut Vec<f32>,
        up: &mut Vec<f32>,
    ) {
        let [gate_proj, up_proj, _] = self.mlp_linears(expert);
        let (t, ff) = (x.rows(), gate_proj.weight.rows());
        if self.config.is_ungated() {
            let gate = sized(gate, t * ff);
            apply(x, &mut [(&gate_proj.weight, MatrixMut::new(gate, t, ff))]);
            return gate_proj.add_bias(gate);
        }
        let (gate, up) = (sized(gate, t * ff), sized(up, t * ff));
        apply(
            x,
            &mut [
                (&gate_proj.weight, MatrixMut::new(gate, t, ff)),
                (&up_proj.weight, MatrixMut::new(up, t, ff)),
            ],
        );
        gate_proj.add_bias(gate);
        up_proj.add_bias(up);
    }

    /// `gate <- act(gate) o up`.
    pub(super) fn activate_gate(&self, size: usize, scratch: &mut Scratch, tap: &mut dyn Tap) {
        let t = size / self.config.hidden;
        let Scratch { gate, up, .. } = scratch;
        self.activate(gate, up);
        tap.on_input(Input::Down.into(), MatrixRef::new(gate, t, gate.len() / t));
    }

    /// `gate <- act(gate) o up`; without a gate, `act(gate)`, where `gate` is up.
    pub(super) fn activate(&self, gate: &mut [f32], up: &[f32]) {
        let activation = self.config.activation;
        if self.config.is_ungated() {
            return gate.par_chunks_mut(ACTIVATION_CHUNK).for_each(|x| match activation {
                Activation::Gelu => vector::gelu(x),
                Activation::GeluTanh => vector::gelu_tanh(x),
                Activation::Silu => vector::silu(x),
                Activation::ClampedSwiglu { .. } => unreachable!("it is of a gate"),
            });
        }
        let parts = gate.par_chunks_mut(ACTIVATION_CHUNK).zip(up.par_chunks(ACTIVATION_CHUNK));
        parts.for_each(|(g, u)| match activation {
            Activation::Gelu => unreachable!("no gated MLP has it"),
            Activation::Silu => vector::silu_gate(g, u),
            Activation::GeluTanh => vector::gelu_gate(g, u),
            Activation::ClampedSwiglu { alpha, limit } => {
                vector::clamped_swiglu_gate(g, u, alpha, limit)
            }
        });
    }

    /// `h <- h + norm(x W' + b)`, with the norm if the family has one; in encoders
    /// `h <- norm(h + x W' + b)`.
    fn add_residual(
        &self,
        x: MatrixRef<'_>,
        linear: &Linear,
        norm: Option<&Norm>,
        out: &mut Vec<f32>,
        h: &mut [f32],
    ) {
        let (t, d) = (x.rows(), self.config.hidden);
        let factor = self.config.residual_scale;
        let sum_is_normed = self.config.encoder.is_some();
        if (norm.is_none() || sum_is_normed) && factor == 1.0 {
            apply_add(x, &linear.weight, MatrixMut::new(h, t, d));
            linear.add_bias(h);
            if let Some(norm) = norm {
                norm.rows_in_place(h);
            }
            return;
        }
        let out = sized(out, t * d);
        apply(x, &mut [(&linear.weight, MatrixMut::new(out, t, d))]);
        linear.add_bias(out);
        self.add_output(out, norm, h);
    }

    /// `h <- h + norm(out)`, with the norm and the factor if the family has them.
    pub(super) fn add_output(&self, out: &mut [f32], norm: Option<&Norm>, h: &mut [f32]) {
        let factor = self.config.residual_scale;
        match norm {
            Some(norm) if factor == 1.0 => return norm.apply_add(out, h),
            Some(norm) => out.chunks_exact_mut(norm.width()).for_each(|row| norm.in_place(row)),
            None => {}
        }
        if factor != 1.0 {
            vector::scale(out, factor);
        }
        let parts = h.par_chunks_mut(ACTIVATION_CHUNK).zip(out.par_chunks(ACTIVATION_CHUNK));
        parts.for_each(|(h, out)| vector::add(h, out));
    }
}

/// Separates the queries of every head from its gate, which follows: `q` keeps the former,
/// `gate` receives the latter.
fn split_heads(q: &mut Vec<f32>, gate: &mut Vec<f32>, head_dim: usize) {
    let half = q.len() / 2;
    let gate = sized(gate, half);
    for (i, gate) in gate.chunks_exact_mut(head_dim).enumerate() {
        let from = 2 * i * head_dim;
        gate.copy_from_slice(&q[from + head_dim..][..head_dim]);
        q.copy_within(from..from + head_dim, i * head_dim);
    }
    q.truncate(half);
}

/// The name of the sinks within a layer.
const SINKS: &str = "self_attn.sinks";
/// The name of a layer's factor.
const SCALE: &str = "layer_scalar";

/// Elements per task of the activation.
pub(super) const ACTIVATION_CHUNK: usize = 1 << 14;

/// The buffer resized to `len` elements of unspecified value.
pub(super) fn sized(scratch: &mut Vec<f32>, len: usize) -> &mut [f32] {
    scratch.resize(len, 0.0);
    scratch
}
