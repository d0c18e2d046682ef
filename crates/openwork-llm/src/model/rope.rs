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

/// Scaling of RoPE frequencies for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// All frequencies divided.
    Linear {
        /// By this.
        factor: f64,
    },
    /// Llama 3.1: long waves divided, short ones kept, a ramp between.
    Llama3 {
        /// Divides long waves.
        factor: f64,
        /// Waves with fewer turns than this in the original context are long.
        low: f64,
        /// Waves with more turns than this are short.
        high: f64,
        /// Tokens of the original context.
        original: usize,
    },
    /// YaRN: low planes kept, high ones divided, a ramp between, and a factor of the scores.
    Yarn {
        /// Divides the frequencies of high planes.
        factor: f64,
        /// Turns in the original context above which a frequency is kept.
        fast: f64,
        /// Turns below which it is divided.
        slow: f64,
        /// Tokens of the original context.
        original: usize,
        /// Whether the ends of the ramp are rounded to planes.
        truncate: bool,
        /// Factor of cosines and sines.
        attention: f64,
    },
    /// Only the first planes are rotated.
    Proportional {
        /// How many are.
        planes: usize,
        /// Divides their frequencies.
        factor: f64,
    },
    /// LongRoPE: a divisor for every plane, and a second set beyond the original context.
    Long {
        /// Divisors within the original context.
        short: Vec<f64>,
        /// Divisors beyond.
        long: Vec<f64>,
        /// Tokens of the original context.
        original: usize,
        /// Factor of cosines and sines.
        attention: f64,
    },
}

impl Scaling {
    /// The frequencies of `half` planes, for sequences of up to and beyond the original
    /// context.
    fn frequencies(&self, theta: f64, half: usize, beyond: bool) -> Vec<f64> {
        let plain = |i: usize| theta.powf(-(i as f64) / half as f64);
        let scaled = |i: usize| match self {
            Scaling::None => plain(i),
            Scaling::Linear { factor } => plain(i) / factor,
            Scaling::Proportional { planes, factor } => match i < *planes {
                true => plain(i) / factor,
                false => 0.0,
            },
            Scaling::Llama3 { factor, low, high, original } => {
                let f = plain(i);
                let turns = *original as f64 * f / TAU;
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - keep) * f / factor + keep * f
            }
            Scaling::Yarn { factor, fast, slow, original, truncate, .. } => {
                // The plane whose frequency makes that many turns.
                let plane =
                    |turns: f64| half as f64 * (*original as f64 / (turns * TAU)).ln() / theta.ln();
                let (first, last) = match truncate {
                    true => (plane(*fast).floor(), plane(*slow).ceil()),
                    false => (plane(*fast), plane(*slow)),
                };
                let (first, last) = (first.max(0.0), last.min(2.0 * half as f64 - 1.0));
                let width = if first == last { 0.001 } else { last - first };
                let divided = ((i as f64 - first) / width).clamp(0.0, 1.0);
                plain(i) * (divided / factor + (1.0 - divided))
            }
            Scaling::Long { short, long, .. } => plain(i) / if beyond { long } else { short }[i],
        };
        (0..half).map(scaled).collect()
    }

    /// What the frequencies of `half` planes are divided by.
    pub(crate) fn divisors(&self, theta: f64, half: usize) -> Vec<f32> {
        let plain = Scaling::None.frequencies(theta, half, false);
        let scaled = self.frequencies(theta, half, false);
        plain.iter().zip(scaled).map(|(plain, scaled)| (plain / scaled) as f32).collect()
    }

    /// Factor of cosines and sines.
    fn attention(&self) -> f64 {
        match self {
            Scaling::Yarn { attention, .. } | Scaling::Long { attention, .. } => *attention,
            _ => 1.0,
        }
    }

    /// The context beyond which other frequencies apply, if any.
    fn limit(&self) -> usize {
        if let Scaling::Long { original, .. } = self { *original } else { usize::MAX }
    }
}

/// Which entries of a head are rotated, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParameters {
    /// Base of the frequencies.
    pub theta: f64,
    /// For long contexts.
    pub scaling: Scaling,
    /// Entries of a head that are rotated, from the first on.
    pub rotated: usize,
    /// Whether neighbors are rotated together, instead of entries half that many apart.
    pub interleaved: bool,
}

/// Cosines and sines of the angles of some positions.
#[derive(Debug)]
pub struct Table {
    half: usize,
    head_dim: usize,
    interleaved: bool,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Table {
    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }

    /// Rotates all heads of a row at position `p`.
    pub fn rotate(&self, row: &mut [f32], p: usize) {
        self.rotate_by(row, p, 1.0);
    }

    /// The transpose of [`rotate`](Self::rotate): for gradients.
    pub fn rotate_back(&self, row: &mut [f32], p: usize) {
        self.rotate_by(row, p, -1.0);
    }

    #[inline(always)]
    fn rotate_by(&self, row: &mut [f32], p: usize, sign: f32) {
        let h = self.half;
        let (cos, sin) = (&self.cos[p * h..][..h], &self.sin[p * h..][..h]);
        for head in row.chunks_exact_mut(self.head_dim) {
            let head = &mut head[..2 * h];
            if self.interleaved {
                for (i, pair) in head.chunks_exact_mut(2).enumerate() {
                    let (x, y, sin) = (pair[0], pair[1], sign * sin[i]);
                    pair[0] = x * cos[i] - y * sin;
                    pair[1] = y * cos[i] + x * sin;
                }
                continue;
            }
            let (left, right) = head.split_at_mut(h);
            for i in 0..h {
                let (x, y, sin) = (left[i], right[i], sign * sin[i]);
                left[i] = x * cos[i] - y * sin;
                right[i] = y * cos[i] + x * sin;
            }
        }
    }
}

/// The rotation of a layer's heads; its table grows with the positions requested.
#[derive(Debug)]
pub struct Rope {
    parameters: RopeParameters,
    head_dim: usize,
    /// Within the original context, and beyond.
    tables: Mutex<[Arc<Table>; 2]>,
}

impl Rope {
    /// For heads of this size.
    pub fn new(head_dim: usize, parameters: &RopeParameters) -> Self {
        let (half, interleaved) = (parameters.rotated / 2, parameters.interleaved);
        let empty = || Arc::new(Table { half, head_dim, interleaved, cos: vec![], sin: vec![] });
        let tables = Mutex::new([empty(), empty()]);
        Self { parameters: parameters.clone(), head_dim, tables }
    }

    /// A table of at least this many positions.
    pub fn table(&self, positions: usize) -> Arc<Table> {
        let RopeParameters { theta, scaling, rotated, interleaved } = &self.parameters;
        let beyond = positions > scaling.limit();
        // No code that holds the lock can panic.
        let mut tables = self.tables.lock().unwrap_or_else(|poison| poison.into_inner());
        let table = &mut tables[usize::from(beyond)];
        if table.positions() < positions {
            let positions = positions.next_power_of_two();
            let half = rotated / 2;
            let frequencies = scaling.frequencies(*theta, half, beyond);
            let attention = scaling.attention() as f32;
            // The angle is rounded to f32 first, as in transformers.
            let angles = || {
                (0..positions)
                    .flat_map(|p| frequencies.iter().map(move |&f| f64::from(p as f32 * f as f32)))
            };
            *table = Arc::new(Table {
                half,
                head_dim: self.head_dim,
                interleaved: *interleaved,
                cos: angles().map(|a| a.cos() as f32 * attention).collect(),
                sin: angles().map(|a| a.sin() as f32 * attention).collect(),
            });
        }
        Arc::clone(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_depend_on_the_distance_only() {
        for (rotated, interleaved) in [(8, false), (8, true), (4, false), (6, true)] {
            let (theta, scaling) = (10_000.0, Scaling::None);
            let rope = Rope::new(8, &RopeParameters { theta, scaling, rotated, interleaved });
            let table = rope.table(64);
            let q: Vec<f32> = (0..8).map(|i| (i as f32 * 0.7).sin()).collect();
            let k: Vec<f32> = (0..8).map(|i| (i as f32 * 1.3).cos()).collect();
            let score = |p: usize, r: usize| {
                let (mut q, mut k) = (q.clone(), k.clone());
                table.rotate(&mut q, p);
                table.rotate(&mut k, r);
                assert_eq!(
                    q[rotated..],
                    (rotated..8).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>()
                );
                q.iter().zip(&k).map(|(a, b)| a * b).sum::<f32>()
            };
            for d in 0..20 {
                assert!((score(d, 0) - score(40 + d, 40)).abs() < 1e-5);
            }
            let mut back = q.clone();
            table.rotate(&mut back, 7);
            table.rotate_back(&mut back, 7);
            assert!(back.iter().zip(&q).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }

    #[test]
    fn llama3_keeps_short_waves_and_divides_long_ones() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let (scaled, plain) =
            (scaling.frequencies(1e5, 64, false), Scaling::None.frequencies(1e5, 64, false));
        let ratio: Vec<f64> = scaled.iter().zip(&plain).map(|(a, b)| a / b).collect();
        assert_eq!((ratio[0], ratio[63]), (1.0, 0.125));
        assert!(ratio.is_sorted_by(|a, b| a >= b));
        assert!(ratio.iter().any(|r| *r > 0.126 && *r < 0.999));
    }
}
