//! Combines the measurements of layers over the passes of a run.

use crate::model::{Config, LayerInfo, Role};
use crate::report::{self, LayerRecord, LinearRecord, Record, Totals};

/// Sums and means over the linears of a pass.
pub(super) fn totals(layers: &[LayerRecord]) -> Totals {
    let linears: Vec<&LinearRecord> = layers.iter().flat_map(|layer| &layer.linears).collect();
    let errors: Vec<f64> = linears.iter().filter(|l| l.spec.is_some()).map(|l| l.error).collect();
    let weights = |linear: &LinearRecord| (linear.shape[0] * linear.shape[1]) as f64;
    let all: f64 = linears.iter().map(|linear| weights(linear)).sum();
    let kept: f64 = linears.iter().map(|linear| linear.density * weights(linear)).sum();
    Totals {
        mean_error: report::mean(&errors),
        density: kept / all.max(1.0),
        weights: all as u64,
        ..Totals::default()
    }
}

/// Copies the specs and errors of linears from the record of the run that pruned them.
pub(super) fn inherit(layers: &mut [LayerRecord], earlier: &Record) {
    for linear in layers.iter_mut().flat_map(|layer| &mut layer.linears) {
        if let Some(known) = earlier.linears().find(|known| known.name == linear.name) {
            let density = linear.density;
            *linear = LinearRecord { density, ..known.clone() };
        }
    }
}

/// Removes dropped layers and renumbers the others.
pub(super) fn renumber(layers: &mut Vec<LayerRecord>, dropped: &[usize]) {
    layers.retain(|layer| !dropped.contains(&layer.index));
    for (number, LayerRecord { index, linears, .. }) in layers.iter_mut().enumerate() {
        let (old, new) = (format!("model.layers.{index}."), format!("model.layers.{number}."));
        for linear in linears {
            linear.name = linear.name.replacen(&old, &new, 1);
        }
        *index = number;
    }
}

/// Removes dropped experts and renumbers the others; `config` is that of the smaller
/// model.
pub(super) fn drop_experts(layers: &mut [LayerRecord], dropped: &[Vec<usize>], config: &Config) {
    for (layer, dropped) in layers.iter_mut().zip(dropped).filter(|(_, d)| !d.is_empty()) {
        let after = LayerInfo::new(config, layer.index);
        let first = after.first_of(Some(0));
        let mut place = 0;
        layer.linears.retain(|_| {
            let gone = place >= first && dropped.contains(&((place - first) / Role::MLP.len()));
            place += 1;
            !gone
        });
        for (i, linear) in layer.linears.iter_mut().enumerate() {
            linear.name = after.weight_name(i);
        }
    }
}

/// Updates the shapes of linears that became smaller. Their pruned part is removed, so
/// they are dense again.
pub(super) fn resize(layers: &mut [LayerRecord], config: &Config) {
    for layer in layers {
        let info = LayerInfo::new(config, layer.index);
        let shapes = info.linears.iter().map(|linear| linear.shape);
        for (linear, shape) in layer.linears.iter_mut().zip(shapes) {
            if linear.shape == shape {
                continue;
            }
            let [n, k] = linear.shape;
            let kept = linear.density * (n * k) as f64;
            linear.density = (kept / (shape[0] * shape[1]) as f64).min(1.0);
            linear.shape = shape;
            if let Some(spec) = linear.spec.take() {
                let written = linear.spec_as_written.take().unwrap_or(spec);
                linear.notes.push(format!("was {n} x {k} before `{written}` removed a part of it"));
            }
        }
    }
}
