//! Rotary position embedding (RoPE).
//!
//! A head `x` of width `2 h` at position `p` is rotated in `h` planes, that of
//! `(x_i, x_{i+h})` by the angle `a = p f_i`:
//!
//! ```text
//! x_i     <- x_i cos a - x_{i+h} sin a          f_i = theta^(-i/h), then scaled
//! x_{i+h} <- x_{i+h} cos a + x_i sin a
//! ```

use std::f64::consts::TAU;
use std::sync::{Arc, Mutex};

/// How frequencies are scaled for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: frequencies of wavelengths above `original / low` are divided by
    /// `factor`, those below `original / high` kept, others interpolated.
    Llama3 {
        /// The divisor for long wavelengths.
        factor: f64,
        /// Periods within `original` below which a wavelength is long.
        low: f64,
        /// Periods within `original` above which a wavelength is short.
        high: f64,
        /// The original context length.
        original: usize,
    },
}

impl Scaling {
    /// The scaled frequency.
    pub(crate) fn scale(&self, f: f64) -> f64 {
        match *self {
            Scaling::None => f,
            Scaling::Linear { factor } => f / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                let turns = original as f64 * f / TAU;
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - keep) * f / factor + keep * f
            }
        }
    }
}

/// Cosines and sines of the first positions, `[positions, h]` each.
#[derive(Debug)]
pub struct Table {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Table {
    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }

    /// Rotates every head of a row at position `p`.
    pub fn rotate(&self, row: &mut [f32], p: usize) {
        self.rotate_by(row, p, 1.0);
    }

    /// The inverse of [`rotate`](Self::rotate), and so its backward pass.
    pub fn rotate_back(&self, row: &mut [f32], p: usize) {
        self.rotate_by(row, p, -1.0);
    }

    #[inline(always)]
    fn rotate_by(&self, row: &mut [f32], p: usize, sign: f32) {
        let h = self.half;
        let (cos, sin) = (&self.cos[p * h..][..h], &self.sin[p * h..][..h]);
        for head in row.chunks_exact_mut(2 * h) {
            let (left, right) = head.split_at_mut(h);
            for i in 0..h {
                let (x, y, sin) = (left[i], right[i], sign * sin[i]);
                left[i] = x * cos[i] - y * sin;
                right[i] = y * cos[i] + x * sin;
            }
        }
    }
}

/// A RoPE with its table, which grows to the longest requested sequence.
#[derive(Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    table: Mutex<Arc<Table>>,
}

impl Rope {
    /// RoPE for heads of width `head_dim` with base `theta`.
    pub fn new(head_dim: usize, theta: f64, scaling: &Scaling) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|i| scaling.scale(theta.powf(-(i as f64) / half as f64)) as f32)
            .collect();
        Self { frequencies, table: Mutex::new(Arc::new(Table { half, cos: vec![], sin: vec![] })) }
    }

    /// A table of at least `positions` positions.
    pub fn table(&self, positions: usize) -> Arc<Table> {
        // No code that holds the lock can panic.
        let mut table = self.table.lock().unwrap_or_else(|poison| poison.into_inner());
        if table.positions() < positions {
            let positions = positions.next_power_of_two();
            // The angle is rounded to f32 first, as in transformers.
            let angles = || {
                (0..positions)
                    .flat_map(|p| self.frequencies.iter().map(move |f| f64::from(p as f32 * f)))
            };
            *table = Arc::new(Table {
                half: self.frequencies.len(),
                cos: angles().map(|a| a.cos() as f32).collect(),
                sin: angles().map(|a| a.sin() as f32).collect(),
            });
        }
        Arc::clone(&table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_depend_on_the_distance_only() {
        let rope = Rope::new(8, 10_000.0, &Scaling::None);
        let table = rope.table(64);
        let q: Vec<f32> = (0..8).map(|i| (i as f32 * 0.7).sin()).collect();
        let k: Vec<f32> = (0..8).map(|i| (i as f32 * 1.3).cos()).collect();
        let score = |p: usize, r: usize| {
            let (mut q, mut k) = (q.clone(), k.clone());
            table.rotate(&mut q, p);
            table.rotate(&mut k, r);
            q.iter().zip(&k).map(|(a, b)| a * b).sum::<f32>()
        };
        for d in 0..20 {
            assert!((score(d, 0) - score(40 + d, 40)).abs() < 1e-5);
        }
    }

    #[test]
    fn llama3_keeps_short_waves_and_divides_long_ones() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        assert_eq!(scaling.scale(1.0), 1.0);
        assert_eq!(scaling.scale(1e-5), 1e-5 / 8.0);
        let between = scaling.scale(TAU * 2.5 / 8192.0);
        assert!(between > TAU * 2.5 / 8192.0 / 8.0 && between < TAU * 2.5 / 8192.0);
    }
}
