//! Coordinate descent on codes and scales: every change lowers the error of a strip.
//!
//! With r = w - q the rest and g = r A, changing q_j alone is best at q_j + g_j, because A
//! has a unit diagonal. If the nearest code to that is another one:
//!
//! ```text
//! d = s (c_new - c_j)        error' = error - 2 d g_j + d^2        g <- g - d A_j:
//! ```

use super::Tensor;
use crate::matrix::Matrix;
use rayon::prelude::*;

/// Codes, scales per strip and group, and what is left of the target, in units of the
/// curvature.
pub(super) struct Rounded {
    pub codes: Matrix,
    pub scales: Vec<Vec<f32>>,
    pub left: Matrix,
}

impl Rounded {
    /// Takes other codes and scales in every strip where they have less error.
    pub fn take_better(
        &mut self,
        tensor: &Tensor<'_>,
        (codes, scales): (Matrix, Vec<Vec<f32>>),
        target: &Matrix,
    ) {
        let mut left = target.clone();
        let (cols, unit) = (tensor.cols, tensor.curvature.scale());
        let height = tensor.strips[0].rows.len() * cols;
        left.data_mut().par_chunks_mut(height).zip(&tensor.strips).zip(&scales).for_each(
            |((left, strip), scales)| {
                let codes = &codes.data()[strip.rows.start * cols..];
                for (group, &scale) in strip.offsets.chunks(strip.group).zip(scales) {
                    for &at in group {
                        left[at] -= (f64::from(scale * codes[at]) * unit[at % cols]) as f32;
                    }
                }
            },
        );
        let (mine, other) = (errors(tensor, &self.left), errors(tensor, &left));
        for (strip, (mine, other)) in mine.iter().zip(&other).enumerate() {
            if other < mine {
                let range = strip * height..(strip * height + height).min(left.data().len());
                self.codes.data_mut()[range.clone()].copy_from_slice(&codes.data()[range.clone()]);
                self.left.data_mut()[range.clone()].copy_from_slice(&left.data()[range]);
                self.scales[strip].copy_from_slice(&scales[strip]);
            }
        }
    }

    /// Changes codes and scales one at a time, in passes over all columns, until a pass
    /// changes no code.
    pub fn descend(&mut self, tensor: &Tensor<'_>, passes: usize) {
        if passes == 0 {
            return;
        }
        let mut gradient = tensor.times_a(&self.left);
        let height = tensor.strips[0].rows.len() * tensor.cols;
        (gradient.data_mut().par_chunks_mut(height), self.codes.data_mut().par_chunks_mut(height))
            .into_par_iter()
            .zip(&tensor.strips)
            .zip(&mut self.scales)
            .for_each(|(((gradient, codes), strip), scales)| {
                let mut state = Descent { tensor, gradient, codes };
                for _ in 0..passes {
                    let mut changed = false;
                    for (group, scale) in strip.offsets.chunks(strip.group).zip(scales.iter_mut()) {
                        for &at in group {
                            changed |= state.change_code(at, *scale);
                        }
                        state.change_scale(group, scale);
                    }
                    if !changed {
                        break;
                    }
                }
            });
    }

    /// Writes the codes' values; -0.0 for zero.
    pub fn write(&self, tensor: &Tensor<'_>, weights: &mut Matrix) {
        let height = tensor.strips[0].rows.len() * tensor.cols;
        weights
            .data_mut()
            .par_chunks_mut(height)
            .zip(self.codes.data().par_chunks(height))
            .zip(&tensor.strips)
            .zip(&self.scales)
            .for_each(|(((weights, codes), strip), scales)| {
                for (group, &scale) in strip.offsets.chunks(strip.group).zip(scales) {
                    for &at in group {
                        let value = scale * codes[at];
                        weights[at] = if value == 0.0 { -0.0 } else { value };
                    }
                }
            });
    }
}

/// A strip during descent.
struct Descent<'a> {
    tensor: &'a Tensor<'a>,
    /// r A of its rows.
    gradient: &'a mut [f32],
    codes: &'a mut [f32],
}

impl Descent<'_> {
    /// Changes a code if that lowers the error; whether it did.
    fn change_code(&mut self, at: usize, scale: f32) -> bool {
        let step = f64::from(scale) * self.unit(at);
        if step == 0.0 {
            return false;
        }
        let (old, g) = (self.codes[at], f64::from(self.gradient[at]));
        let best = (f64::from(old) + g / step) * f64::from(scale);
        let new = self.tensor.quantizer.code(best as f32, scale);
        let d = f64::from(new - old) * step;
        // The nearest code, rounded, may be no step down.
        let lower = new != old && d * (2.0 * g - d) > 0.0;
        if lower {
            self.codes[at] = new;
            self.move_by(at, d);
        }
        lower
    }

    /// Changes the scale of a group to one near its least-squares fit, with v_j = c_j in
    /// units of the curvature, if that lowers the error:
    ///
    /// ```text
    /// s' = s + (g v') / (v A v')        error' = error - 2 (s' - s) g v' + (s' - s)^2 v A v'
    /// ```
    fn change_scale(&mut self, group: &[usize], scale: &mut f32) {
        let (cols, a) = (self.tensor.cols, self.tensor.curvature.matrix());
        let v: Vec<f64> =
            group.iter().map(|&at| f64::from(self.codes[at]) * self.unit(at)).collect();
        let gv: f64 = group.iter().zip(&v).map(|(&at, v)| f64::from(self.gradient[at]) * v).sum();
        let mut vav = 0.0;
        for (&i, v_i) in group.iter().zip(&v) {
            let row = a.row(i % cols);
            let same = group.iter().zip(&v).filter(|(j, _)| *j / cols == i / cols);
            vav += v_i * same.map(|(&j, v_j)| v_j * f64::from(row[j % cols])).sum::<f64>();
        }
        let old = f64::from(*scale);
        let gain = |new: f32| (f64::from(new) - old) * (2.0 * gv - (f64::from(new) - old) * vav);
        let near = self.tensor.quantizer.near((old + gv / vav) as f32);
        let best = near.map(|new| (gain(new), new)).max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((gain, new)) = best
            && gain > 0.0
        {
            for (&at, v) in group.iter().zip(&v) {
                self.move_by(at, (f64::from(new) - old) * v);
            }
            *scale = new;
        }
    }

    /// Takes a change of a weight out of its row's gradient.
    fn move_by(&mut self, at: usize, d: f64) {
        let cols = self.tensor.cols;
        let (row, d) = (at / cols * cols, d as f32);
        let a = self.tensor.curvature.matrix().row(at % cols);
        for (g, a) in self.gradient[row..row + cols].iter_mut().zip(a) {
            *g -= d * a;
        }
    }

    fn unit(&self, at: usize) -> f64 {
        self.tensor.curvature.scale()[at % self.tensor.cols]
    }
}

/// r A r' summed over the rows of each strip.
fn errors(tensor: &Tensor<'_>, left: &Matrix) -> Vec<f64> {
    let gradient = tensor.times_a(left);
    let height = tensor.strips[0].rows.len() * tensor.cols;
    let both = left.data().par_chunks(height).zip(gradient.data().par_chunks(height));
    both.map(|(r, g)| r.iter().zip(g).map(|(&r, &g)| f64::from(r) * f64::from(g)).sum()).collect()
}
