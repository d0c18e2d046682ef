//! The parameters of a layer, for training: their order, their numbers, and how they are
//! stored.

use super::config::Config;
use super::layer::{Layer, NormSlot, norm_names, prefix};
use super::linear::LayerInfo;
use super::norm::Norm;
use std::borrow::Cow;

/// The halves of a layer, each with its residual connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Attention, with its norms and projections.
    Attention,
    /// The MLP, with its norms.
    Mlp,
}

impl Half {
    /// In the order of the forward pass.
    pub const ALL: [Half; 2] = [Half::Attention, Half::Mlp];
}

/// A tensor of a layer that can be trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// The weights of a linear layer, by its index in [`LayerInfo::linears`].
    Weight(usize),
    /// The bias of a linear layer.
    Bias(usize),
    /// The factors of a norm.
    Norm(NormSlot),
}

impl Parameter {
    /// Every parameter that a layer may have, in the order of its gradients.
    pub fn all(info: &LayerInfo) -> impl Iterator<Item = Self> + use<> {
        let linears = 0..info.linears.len();
        let weights = linears.clone().map(Self::Weight);
        weights.chain(linears.map(Self::Bias)).chain(NormSlot::ALL.into_iter().map(Self::Norm))
    }

    /// The half that it belongs to.
    pub fn half(self, info: &LayerInfo) -> Half {
        match self {
            Self::Weight(linear) | Self::Bias(linear) => info.linears[linear].role.input().half(),
            Self::Norm(slot) => slot.half(),
        }
    }
}

impl NormSlot {
    /// The half that it belongs to.
    pub fn half(self) -> Half {
        match self {
            NormSlot::BeforeMlp | NormSlot::AfterMlp | NormSlot::AfterPerLayer => Half::Mlp,
            _ => Half::Attention,
        }
    }
}

impl Layer {
    /// Every parameter with its numbers, in the order of [`Parameter::all`]; empty where
    /// the layer has none. Those of a norm are its factors.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = (Parameter, &mut [f32])> {
        let info = self.info().clone();
        let Self { linears, norms, .. } = self;
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for linear in linears {
            let matrix = linear.weight.matrix_mut().expect("training needs f32 weights");
            weights.push(matrix.data_mut());
            biases.push(linear.bias.as_deref_mut().unwrap_or_default());
        }
        let norms = norms.iter_mut().map(|norm| match norm {
            Some(norm) => norm.factors_mut(),
            None => Default::default(),
        });
        Parameter::all(&info).zip(weights.into_iter().chain(biases).chain(norms))
    }

    /// The numbers of a parameter, as [`parameters_mut`](Self::parameters_mut) gives them;
    /// empty if the layer does not have it.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn parameter(&self, parameter: Parameter) -> &[f32] {
        match parameter {
            Parameter::Weight(linear) => {
                self.linears[linear].matrix().expect("training needs f32 weights").data()
            }
            Parameter::Bias(linear) => self.linears[linear].bias().unwrap_or_default(),
            Parameter::Norm(slot) => self.norm(slot).map_or(&[], Norm::factors),
        }
    }

    /// The tensor of layer `index` that has this name, as a parameter.
    pub fn parameter_named(config: &Config, index: usize, name: &str) -> Option<Parameter> {
        let name = name.strip_prefix(&prefix(config, index))?;
        if let Some((slot, _)) = norm_names(config, index)
            .find(|(_, (norm, _))| name.strip_suffix(".weight") == Some(norm))
        {
            return Some(Parameter::Norm(slot));
        }
        let (linear, kind) = name.rsplit_once('.')?;
        let info = LayerInfo::new(config, index);
        let linear = info.linears.iter().position(|known| known.name == linear)?;
        match kind {
            "weight" => Some(Parameter::Weight(linear)),
            "bias" => Some(Parameter::Bias(linear)),
            _ => None,
        }
    }

    /// A parameter as it is stored: the factors of a norm without the family's offset.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn stored(&self, parameter: Parameter) -> Cow<'_, [f32]> {
        let (numbers, offset) = (self.parameter(parameter), self.config.family.norm_offset);
        match parameter {
            Parameter::Norm(_) if offset != 0.0 => numbers.iter().map(|f| f - offset).collect(),
            _ => numbers.into(),
        }
    }

    /// Rounds every parameter as it will be stored.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn round(&mut self, round: impl Fn(&mut [f32])) {
        let offset = self.config.family.norm_offset;
        for (parameter, numbers) in self.parameters_mut() {
            let offset = if matches!(parameter, Parameter::Norm(_)) { offset } else { 0.0 };
            if offset == 0.0 {
                round(numbers);
                continue;
            }
            numbers.iter_mut().for_each(|x| *x -= offset);
            round(numbers);
            numbers.iter_mut().for_each(|x| *x += offset);
        }
    }
}
