//! A decoder layer: its tensors, its seven linear layers, its forward pass.

use super::attention::GroupedQueryAttention;
use super::cache::Cache;
use super::config::{Activation, Config};
use super::hidden::{Hidden, Scratch};
use super::keep_awake::keep_awake;
use super::norm::Norm;
use super::parameter::Half;
use super::rope::Rope;
use super::tap::{Site, Tap};
use super::vector;
use super::weight::{Storage, Weight, apply, apply_add};
use crate::checkpoint::{Checkpoint, CheckpointError, Fault, Tensor};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::sync::Arc;

/// The seven linear layers of a decoder layer and the input each reads, in the
/// order of [`Layer::linears`].
pub const LINEARS: [(&str, Site); 7] = [
    ("self_attn.q_proj", Site::Qkv),
    ("self_attn.k_proj", Site::Qkv),
    ("self_attn.v_proj", Site::Qkv),
    ("self_attn.o_proj", Site::Out),
    ("mlp.gate_proj", Site::GateUp),
    ("mlp.up_proj", Site::GateUp),
    ("mlp.down_proj", Site::Down),
];

/// A linear layer: `y = W x + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    name: &'static str,
    site: Site,
    pub(super) weight: Weight,
    pub(super) bias: Option<Vec<f32>>,
}

impl Linear {
    /// Its name in the layer, as in [`LINEARS`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Which input it reads.
    pub fn site(&self) -> Site {
        self.site
    }

    /// `[out, in]`.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// `[out, in]`, if the layer was loaded as [`Storage::F32`].
    pub fn matrix(&self) -> Option<&Matrix> {
        match &self.weight {
            Weight::F32(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// Replaces the weights by others of the same shape, such as packed ones.
    ///
    /// # Panics
    ///
    /// If their shape differs.
    pub fn set_weight(&mut self, weight: Weight) {
        let shape = (self.weight.rows(), self.weight.cols());
        assert_eq!((weight.rows(), weight.cols()), shape, "weights of {}", self.name);
        self.weight = weight;
    }

    /// `[out, in]`, mutable, if the layer was loaded as [`Storage::F32`].
    pub fn matrix_mut(&mut self) -> Option<&mut Matrix> {
        match &mut self.weight {
            Weight::F32(matrix) => Some(matrix),
            _ => None,
        }
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

/// The norms of a layer; every family has the two before the halves.
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
}

impl NormSlot {
    /// In the order of the forward pass.
    pub const ALL: [NormSlot; 6] = [
        NormSlot::BeforeAttention,
        NormSlot::Query,
        NormSlot::Key,
        NormSlot::AfterAttention,
        NormSlot::BeforeMlp,
        NormSlot::AfterMlp,
    ];

    /// Its name within the layers of such a model, if they have it.
    pub fn name(self, config: &Config) -> Option<&'static str> {
        norm_names(config).find(|(slot, _)| *slot == self).map(|(_, (name, _))| name)
    }
}

/// Name within the layer and width of each norm that such a model's layers have.
pub(super) fn norm_names(c: &Config) -> impl Iterator<Item = (NormSlot, (&'static str, usize))> {
    let norms = &c.family.norms;
    let head = |name| c.family.qk_norm.then_some((name, c.head_dim));
    let names = [
        Some((norms.before_attention, c.hidden)),
        head("self_attn.q_norm"),
        head("self_attn.k_norm"),
        norms.after_attention.map(|name| (name, c.hidden)),
        Some((norms.before_mlp, c.hidden)),
        norms.after_mlp.map(|name| (name, c.hidden)),
    ];
    NormSlot::ALL.into_iter().zip(names).filter_map(|(slot, name)| Some((slot, name?)))
}

/// A decoder layer.
#[derive(Debug)]
pub struct Layer {
    index: usize,
    pub(super) config: Arc<Config>,
    rope: Arc<Rope>,
    /// One for each of [`NormSlot::ALL`] that the family has.
    pub(super) norms: [Option<Norm>; 6],
    pub(super) linears: [Linear; 7],
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
pub(super) fn prefix(index: usize) -> String {
    format!("model.layers.{index}.")
}

impl Layer {
    /// Loads layer `index`.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        config: &Arc<Config>,
        rope: &Arc<Rope>,
        index: usize,
        storage: Storage,
    ) -> Result<Self, CheckpointError> {
        let c = config.as_ref();
        let prefix = prefix(index);
        let norm = |name: &str, width: usize| -> Result<Norm, CheckpointError> {
            let weights =
                checkpoint.tensor_with_shape(&format!("{prefix}{name}.weight"), &[width])?;
            Ok(Norm::new(weights.to_f32(), c.family.norm_offset, c.norm_eps))
        };
        let shapes = shapes(c);
        let linear = |i: usize| -> Result<Linear, CheckpointError> {
            let (name, site) = LINEARS[i];
            let ([n, k], has_bias) = shapes[i];
            let tensor =
                checkpoint.tensor_with_shape(&format!("{prefix}{name}.weight"), &[n, k])?;
            let bias = match has_bias {
                true => Some(
                    checkpoint.tensor_with_shape(&format!("{prefix}{name}.bias"), &[n])?.to_f32(),
                ),
                false => None,
            };
            let weight = load(checkpoint, &tensor, storage)?;
            Ok(Linear { name, site, weight, bias })
        };
        let mut norms = [const { None }; 6];
        for (slot, (name, width)) in norm_names(c) {
            norms[slot as usize] = Some(norm(name, width)?);
        }
        Ok(Self {
            index,
            config: Arc::clone(config),
            rope: Arc::clone(rope),
            norms,
            linears: [
                linear(0)?,
                linear(1)?,
                linear(2)?,
                linear(3)?,
                linear(4)?,
                linear(5)?,
                linear(6)?,
            ],
        })
    }

    /// The names and shapes of all tensors of layer `index`, in the order of files.
    pub(super) fn tensors(c: &Config, index: usize) -> Vec<(String, Vec<usize>)> {
        let prefix = prefix(index);
        // In files the norms of heads follow the others.
        let mut norms: Vec<_> = norm_names(c).collect();
        norms.sort_by_key(|(slot, _)| matches!(slot, NormSlot::Query | NormSlot::Key));
        let norms = norms
            .into_iter()
            .map(|(_, (name, width))| (format!("{prefix}{name}.weight"), vec![width]));
        let linears = LINEARS.iter().zip(shapes(c)).flat_map(|((name, _), ([n, k], bias))| {
            let bias = bias.then(|| (format!("{prefix}{name}.bias"), vec![n]));
            [Some((format!("{prefix}{name}.weight"), vec![n, k])), bias].into_iter().flatten()
        });
        norms.chain(linears).collect()
    }

    /// The full name of the weights of a linear layer in layer `index`.
    pub fn weight_name(index: usize, linear: usize) -> String {
        format!("{}{}.weight", prefix(index), LINEARS[linear].0)
    }

    /// Shapes `[out, in]` of the linear layers.
    pub fn linear_shapes(config: &Config) -> [[usize; 2]; 7] {
        shapes(config).map(|(shape, _)| shape)
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

    /// The rotation of its heads.
    pub(super) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Its index, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The seven linear layers, in the order of [`LINEARS`].
    pub fn linears(&self) -> &[Linear; 7] {
        &self.linears
    }

    /// The seven linear layers, mutable.
    pub fn linears_mut(&mut self) -> &mut [Linear; 7] {
        &mut self.linears
    }

    /// Size of the weights, in bytes.
    pub fn bytes(&self) -> usize {
        self.linears.iter().map(|linear| linear.weight.bytes()).sum()
    }

    /// Runs the layer on every window, in place; `tap` receives the inputs of the
    /// linear layers, window by window.
    pub fn forward(&self, hidden: &mut Hidden, tap: &mut dyn Tap) {
        self.each_window(hidden, |layer, h, start, scratch| {
            layer.attention(h, start, None, scratch, tap);
            layer.mlp(h, scratch, tap);
        });
    }

    /// The first half of [`forward`](Self::forward): attention with its residual
    /// connection.
    pub fn forward_attention(&self, hidden: &mut Hidden, tap: &mut dyn Tap) {
        self.each_window(hidden, |layer, h, start, scratch| {
            layer.attention(h, start, None, scratch, tap)
        });
    }

    /// The second half of [`forward`](Self::forward): the MLP with its residual
    /// connection.
    pub fn forward_mlp(&self, hidden: &mut Hidden, tap: &mut dyn Tap) {
        self.each_window(hidden, |layer, h, _, scratch| layer.mlp(h, scratch, tap));
    }

    /// One half of [`forward`](Self::forward).
    pub fn forward_half(&self, half: Half, hidden: &mut Hidden, tap: &mut dyn Tap) {
        match half {
            Half::Attention => self.forward_attention(hidden, tap),
            Half::Mlp => self.forward_mlp(hidden, tap),
        }
    }

    /// Computes the inputs up to those of `site` for `tap`, without changing the
    /// states. These must be the layer's input for [`Site::Qkv`] and [`Site::Out`],
    /// and the output of [`forward_attention`](Self::forward_attention) for the
    /// others.
    pub fn observe_inputs(&self, hidden: &mut Hidden, site: Site, tap: &mut dyn Tap) {
        self.each_window(hidden, |layer, h, start, scratch| match site {
            Site::Qkv => layer.attention_input(h, scratch, tap),
            Site::Out => {
                layer.attention_input(h, scratch, tap);
                layer.attend(h.len(), start, None, scratch, tap);
            }
            Site::GateUp => layer.mlp_input(h, scratch, tap),
            Site::Down => {
                layer.mlp_input(h, scratch, tap);
                layer.gate(h.len(), scratch, tap);
            }
        });
    }

    /// Runs the layer on the next tokens of one sequence and appends them to
    /// `cache`, which holds the tokens before.
    ///
    /// # Panics
    ///
    /// If there is more than one window.
    pub(super) fn forward_cached(&self, hidden: &mut Hidden, cache: &mut Cache) {
        assert_eq!(hidden.windows, 1, "a cache holds one sequence");
        let Hidden { states, start, scratch, .. } = hidden;
        let (h, tap) = (states.data_mut(), &mut super::tap::NoTap);
        self.attention(h, *start, Some(cache), scratch, tap);
        self.mlp(h, scratch, tap);
    }

    /// Runs `work` on the states of each window, given the position of its first
    /// token.
    fn each_window(
        &self,
        hidden: &mut Hidden,
        mut work: impl FnMut(&Self, &mut [f32], usize, &mut Scratch) + Send,
    ) {
        let Hidden { states, windows, len, start, scratch } = hidden;
        let size = *len * self.config.hidden;
        keep_awake(|| {
            for window in states.data_mut().chunks_exact_mut(size).take(*windows) {
                work(self, window, *start, scratch);
            }
        });
    }

    /// Attention on one window: `h` is `[T, hidden]`, its first token at
    /// position `start`.
    fn attention(
        &self,
        h: &mut [f32],
        start: usize,
        cache: Option<&mut Cache>,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        self.attention_input(h, scratch, tap);
        self.attend(h.len(), start, cache, scratch, tap);
        self.attention_output(h, scratch);
    }

    /// From `mixed` to `h`, with the residual connection.
    pub(super) fn attention_output(&self, h: &mut [f32], scratch: &mut Scratch) {
        let Scratch { mixed, out, .. } = scratch;
        let q_width = self.config.q_width();
        let x = MatrixRef::new(mixed, h.len() / self.config.hidden, q_width);
        self.add_residual(x, &self.linears[3], self.norm(NormSlot::AfterAttention), out, h);
    }

    /// The MLP on one window.
    pub(super) fn mlp(&self, h: &mut [f32], scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.mlp_input(h, scratch, tap);
        self.gate(h.len(), scratch, tap);
        let Scratch { gate, out, .. } = scratch;
        let x = MatrixRef::new(gate, h.len() / self.config.hidden, self.config.ff);
        self.add_residual(x, &self.linears[6], self.norm(NormSlot::AfterMlp), out, h);
    }

    /// Normalizes `h` into `normed`: `[T, hidden]`.
    pub(super) fn attention_input(&self, h: &[f32], scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.normalize(NormSlot::BeforeAttention, h, scratch);
        let d = self.config.hidden;
        tap.on_input(Site::Qkv, MatrixRef::new(&scratch.normed, h.len() / d, d));
    }

    /// From `normed`, of `size` entries, to `mixed`: `[T, heads * head_dim]`.
    fn attend(
        &self,
        size: usize,
        start: usize,
        cache: Option<&mut Cache>,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        self.project_heads(size, scratch);
        self.rotate_heads(size, start, scratch);
        self.mix(size, cache, scratch, tap);
    }

    /// From `normed` to queries `[T, heads * head_dim]`, and keys and values
    /// `[T, kv_heads * head_dim]`.
    pub(super) fn project_heads(&self, size: usize, scratch: &mut Scratch) {
        let c = self.config.as_ref();
        let [q_proj, k_proj, v_proj, ..] = &self.linears;
        let (d, q_width, kv_width) = (c.hidden, c.q_width(), c.kv_width());
        let t = size / d;
        let Scratch { normed, q, k, v, .. } = scratch;
        let (q, k, v) = (sized(q, t * q_width), sized(k, t * kv_width), sized(v, t * kv_width));
        apply(
            MatrixRef::new(normed, t, d),
            &mut [
                (&q_proj.weight, MatrixMut::new(q, t, q_width)),
                (&k_proj.weight, MatrixMut::new(k, t, kv_width)),
                (&v_proj.weight, MatrixMut::new(v, t, kv_width)),
            ],
        );
        q_proj.add_bias(q);
        k_proj.add_bias(k);
        v_proj.add_bias(v);
    }

    /// Normalizes queries and keys per head where the family does, and rotates
    /// them by position.
    pub(super) fn rotate_heads(&self, size: usize, start: usize, scratch: &mut Scratch) {
        self.rotate_rows(size, &|row| start + row, scratch);
    }

    /// As [`rotate_heads`](Self::rotate_heads), for rows at any positions.
    pub(super) fn rotate_rows(
        &self,
        size: usize,
        position: &(dyn Fn(usize) -> usize + Sync),
        scratch: &mut Scratch,
    ) {
        let c = self.config.as_ref();
        let t = size / c.hidden;
        let table = self.rope.table((0..t).map(|row| position(row) + 1).max().unwrap_or(0));
        let rotate = |rows: &mut [f32], width: usize, slot: NormSlot| {
            let norm = self.norm(slot);
            let rotate_row = |(i, row): (usize, &mut [f32])| {
                if let Some(norm) = norm {
                    row.chunks_exact_mut(c.head_dim).for_each(|head| norm.in_place(head));
                }
                table.rotate(row, position(i));
            };
            match t {
                1 => rotate_row((0, rows)),
                _ => rows.par_chunks_mut(width).enumerate().with_min_len(32).for_each(rotate_row),
            }
        };
        rotate(&mut scratch.q, c.q_width(), NormSlot::Query);
        rotate(&mut scratch.k, c.kv_width(), NormSlot::Key);
    }

    /// Attends, to the cached tokens too: `mixed`, `[T, heads * head_dim]`.
    pub(super) fn mix(
        &self,
        size: usize,
        cache: Option<&mut Cache>,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        let (t, q_width) = (size / self.config.hidden, self.config.q_width());
        let Scratch { q, k, v, mixed, .. } = scratch;
        let mixed = sized(mixed, t * q_width);
        let heads = self.grouped_attention();
        match cache {
            None => heads.attend(q, k, v, mixed),
            Some(cache) => {
                cache.extend(k, v);
                heads.attend(q, cache.keys(), cache.values(), mixed);
            }
        }
        tap.on_input(Site::Out, MatrixRef::new(mixed, t, q_width));
    }

    /// The shape of its attention.
    pub(super) fn grouped_attention(&self) -> GroupedQueryAttention {
        let c = self.config.as_ref();
        GroupedQueryAttention {
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            scale: c.attention_scale,
            window: c.attention[self.index].window,
        }
    }

    /// Normalizes `h` into `normed`: `[T, hidden]`.
    fn normalize(&self, slot: NormSlot, h: &[f32], scratch: &mut Scratch) {
        let norm = self.norm(slot).expect("every family normalizes the input of both halves");
        norm.apply(h, sized(&mut scratch.normed, h.len()));
    }

    /// Normalizes `h` into `normed`: `[T, hidden]`.
    pub(super) fn mlp_input(&self, h: &[f32], scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.normalize(NormSlot::BeforeMlp, h, scratch);
        let d = self.config.hidden;
        tap.on_input(Site::GateUp, MatrixRef::new(&scratch.normed, h.len() / d, d));
    }

    /// From `normed`, of `size` entries, to `gate`: `[T, ff]`.
    fn gate(&self, size: usize, scratch: &mut Scratch, tap: &mut dyn Tap) {
        self.project_gate(size, scratch);
        self.activate_gate(size, scratch, tap);
    }

    /// From `normed` to `gate`, before its activation, and `up`: `[T, ff]`.
    pub(super) fn project_gate(&self, size: usize, scratch: &mut Scratch) {
        let c = self.config.as_ref();
        let [_, _, _, _, gate_proj, up_proj, _] = &self.linears;
        let (t, ff) = (size / c.hidden, c.ff);
        let Scratch { normed, gate, up, .. } = scratch;
        let (gate, up) = (sized(gate, t * ff), sized(up, t * ff));
        apply(
            MatrixRef::new(normed, t, c.hidden),
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
        let c = self.config.as_ref();
        let Scratch { gate, up, .. } = scratch;
        let activation = match c.activation {
            Activation::Silu => vector::silu_gate,
            Activation::GeluTanh => vector::gelu_gate,
        };
        gate.par_chunks_mut(ACTIVATION_CHUNK)
            .zip(up.par_chunks(ACTIVATION_CHUNK))
            .for_each(|(g, u)| activation(g, u));
        tap.on_input(Site::Down, MatrixRef::new(gate, size / c.hidden, c.ff));
    }

    /// `h <- h + norm(x W' + b)`, with the norm if the family has one.
    fn add_residual(
        &self,
        x: MatrixRef<'_>,
        linear: &Linear,
        norm: Option<&Norm>,
        out: &mut Vec<f32>,
        h: &mut [f32],
    ) {
        let (t, d) = (x.rows(), self.config.hidden);
        match norm {
            None => {
                apply_add(x, &linear.weight, MatrixMut::new(h, t, d));
                linear.add_bias(h);
            }
            Some(norm) => {
                let out = sized(out, t * d);
                apply(x, &mut [(&linear.weight, MatrixMut::new(out, t, d))]);
                linear.add_bias(out);
                norm.apply_add(out, h);
            }
        }
    }
}

/// Elements per task of the activation.
pub(super) const ACTIVATION_CHUNK: usize = 1 << 14;

/// The buffer resized to `len` elements of unspecified value.
fn sized(scratch: &mut Vec<f32>, len: usize) -> &mut [f32] {
    scratch.resize(len, 0.0);
    scratch
}

/// Shape `[out, in]` of each linear layer, and whether it has a bias.
fn shapes(c: &Config) -> [([usize; 2], bool); 7] {
    let (d, q, kv) = (c.hidden, c.q_width(), c.kv_width());
    [
        ([q, d], c.qkv_bias),
        ([kv, d], c.qkv_bias),
        ([kv, d], c.qkv_bias),
        ([d, q], c.out_bias),
        ([c.ff, d], c.mlp_bias),
        ([c.ff, d], c.mlp_bias),
        ([d, c.ff], c.mlp_bias),
    ]
}
