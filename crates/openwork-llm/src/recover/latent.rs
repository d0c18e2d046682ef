//! Training of quantized weights: latent weights in f32 behind their codes.
//!
//! ```text
//! w = s round(v / s), limited to the range of codes        v <- v - step(dL/dw)
//! ```
//!
//! Forward and backward passes see the codes' values `w`; the optimizer updates the latent
//! weights `v` with the gradients of `w` (the straight-through estimator). The scales `s`
//! stay those that `+quant` chose, so every weight that training returns is a value of a
//! code in the groups of the packed form.

use super::regrow::PatternGroup;
use crate::model::{Layer, Parameter};
use openwork::sparse::{CodeGroups, PackError};

/// A linear layer whose weights are values of codes.
#[derive(Clone, Debug)]
pub struct CodedLinear {
    /// Its index in the layer.
    pub linear: usize,
    /// Its codes.
    pub groups: CodeGroups,
}

impl CodedLinear {
    /// The linears of a group; none if the run did not round them to codes.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn of_group(layer: &Layer, group: &PatternGroup) -> Result<Vec<Self>, PackError> {
        let PatternGroup { linears, spec, encoding } = group;
        let Some(encoding) = *encoding else { return Ok(Vec::new()) };
        let weights = linears.iter().map(|&linear| {
            layer.linears()[linear].matrix().expect("training needs f32 weights").data()
        });
        let weights: Vec<&[f32]> = weights.collect();
        let found = CodeGroups::find(spec, &weights, encoding)?;
        let pairs = linears.iter().zip(found);
        Ok(pairs.map(|(&linear, groups)| Self { linear, groups }).collect())
    }
}

/// The latent weights of a layer.
#[derive(Clone, Debug)]
pub(super) struct LatentWeights<'a> {
    /// One for each parameter, in the order of [`Parameter::all`]; `None` where the layer
    /// holds the weights in training itself.
    parameters: Vec<Option<(&'a CodeGroups, Vec<f32>)>>,
}

impl<'a> LatentWeights<'a> {
    /// Those of a layer with these codes: the values of the codes. A kept weight of zero
    /// becomes the smallest number, because training leaves zeros alone.
    pub fn new(layer: &mut Layer, coded: &'a [CodedLinear]) -> Self {
        let latent = |(parameter, numbers): (Parameter, &mut [f32])| {
            let Parameter::Weight(linear) = parameter else { return None };
            let coded = coded.iter().find(|coded| coded.linear == linear)?;
            let mut latent = numbers.to_vec();
            coded.groups.each(|at| {
                if latent[at] == 0.0 {
                    latent[at] = f32::MIN_POSITIVE;
                }
            });
            Some((&coded.groups, latent))
        };
        Self { parameters: layer.parameters_mut().map(latent).collect() }
    }

    /// Every parameter with the numbers that are trained, in the order of
    /// [`Parameter::all`].
    pub fn parameters_mut<'b>(
        &'b mut self,
        layer: &'b mut Layer,
    ) -> impl Iterator<Item = (Parameter, &'b mut [f32])> {
        let latent = self.parameters.iter_mut();
        layer.parameters_mut().zip(latent).map(|((parameter, numbers), latent)| match latent {
            Some((_, latent)) => (parameter, latent.as_mut_slice()),
            None => (parameter, numbers),
        })
    }

    /// Gives the layer the values of the codes that are nearest to the latent weights.
    pub fn encode(&mut self, layer: &mut Layer) {
        for ((_, numbers), latent) in layer.parameters_mut().zip(&mut self.parameters) {
            if let Some((groups, latent)) = latent {
                groups.round(latent, numbers);
            }
        }
    }
}
