//! Which decoder layers to drop: those that change the hidden states least.
//!
//! The effect of a layer is how far it turns the hidden state `x` of a token, as a
//! mean over the tokens of the calibration windows:
//!
//! ```text
//! effect = mean(1 - cos(x, y))        y = layer(x)
//! ```
//!
//! A sum of squares over all tokens would not work: a few tokens have states a
//! hundred times longer than the others and would dominate. The layer with the
//! least effect is dropped, and the remaining ones are measured again.

use super::PipelineError;
use super::calibration::Calibration;
use crate::model::{Model, NoTap, Storage};

/// Called with the index of a layer and the share of the work that is done.
pub type Seen<'a> = dyn Fn(usize, f64) -> Result<(), PipelineError> + 'a;

/// The `kept` layers to keep, in their order.
pub fn choose(
    model: &Model<'_>,
    calibration: &Calibration,
    kept: usize,
    seen: &Seen<'_>,
) -> Result<Vec<usize>, PipelineError> {
    let mut layers: Vec<usize> = (0..model.config().layers).collect();
    let rounds = layers.len().saturating_sub(kept.max(1));
    for round in 0..rounds {
        let share = |layer, part: f64| seen(layer, (round as f64 + part) / rounds as f64);
        let effects = effects(model, calibration, &layers, &share)?;
        // transformers makes the last layer of Gemma 4 a global one, so it stays.
        let last = usize::from(model.config().family.differing_heads);
        // Ties break by index, so that runs repeat.
        let least = (0..effects.len() - last).min_by(|&a, &b| effects[a].total_cmp(&effects[b]));
        layers.remove(least.unwrap_or(0));
    }
    Ok(layers)
}

/// The effect of each of `layers`, in a model of only these.
pub fn effects(
    model: &Model<'_>,
    calibration: &Calibration,
    layers: &[usize],
    seen: &Seen<'_>,
) -> Result<Vec<f64>, PipelineError> {
    let mut hidden = model.embed(calibration.chunks().next().unwrap_or_default())?;
    let mut effects = Vec::with_capacity(layers.len());
    for (done, &index) in layers.iter().enumerate() {
        seen(index, done as f64 / layers.len() as f64)?;
        let before = hidden.states().clone();
        model.layer(index, Storage::F32)?.forward(&mut hidden, &mut NoTap);
        let rows = before.rows();
        let turned: f64 = (0..rows).map(|i| turn(before.row(i), hidden.states().row(i))).sum();
        effects.push(turned / rows as f64);
        model.checkpoint().release();
    }
    Ok(effects)
}

/// `1 - cos(x, y)`.
fn turn(x: &[f32], y: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let lengths = (dot(x, x) * dot(y, y)).sqrt();
    if lengths > 0.0 { 1.0 - dot(x, y) / lengths } else { 0.0 }
}
