//! Packs operands as bf16 terms in the order in which the kernels read them.

use super::{PANEL, PARTS, STEP};
use crate::linalg::Threads;
use crate::matrix::MatrixRef;
use rayon::prelude::*;
use std::arch::x86_64::*;

/// One row of a tile: 32 numbers of bf16.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Line([u16; 32]);

/// Rows of a tile.
const TILE: usize = 16;

/// The arrangement of a tile.
#[derive(Clone, Copy, PartialEq)]
pub enum Order {
    /// A row's 32 numbers, of 16 rows: for the left operand.
    Rows,
    /// Two numbers of each of 16 rows, side by side, for 16 pairs of numbers:
    /// for the right operand, whose rows here are its columns.
    Pairs,
}

/// How a number becomes terms of bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Three, whose sum is the number; as few as a panel of a right operand needs.
    Three,
    /// The nearest.
    Nearest,
    /// One of the two neighbors: the one above if the number's distance from the one below
    /// exceeds a threshold of its position. Thresholds spread evenly, so that on average over
    /// positions nothing is lost: small changes of numbers that bf16 represents exactly, as
    /// those of weights in training, would all be rounded away otherwise.
    Dithered,
}

impl Terms {
    /// The largest number of terms.
    pub fn count(self) -> usize {
        match self {
            Terms::Three => PARTS,
            Terms::Nearest | Terms::Dithered => 1,
        }
    }
}

/// The rows of a matrix in panels of 32: for every 32 columns and every part, two
/// tiles. Entries beyond the matrix are zero.
#[derive(Default)]
pub struct Operand {
    /// `terms` of every panel, and possibly unused panels.
    lines: Vec<Line>,
    /// The largest number of terms of a panel.
    terms: usize,
    /// The number of terms of each panel.
    parts: Vec<usize>,
    /// Tiles along the columns.
    steps: usize,
}

impl Operand {
    /// No panels.
    pub const EMPTY: Self = Self { lines: Vec::new(), terms: 0, parts: Vec::new(), steps: 0 };

    /// Packs a matrix whose rows or columns are contiguous. A left operand has all terms, the
    /// panels of a right operand those that they need.
    pub fn pack(&mut self, x: MatrixRef<'_>, order: Order, kind: Terms, threads: Threads) {
        let terms = kind.count();
        (self.steps, self.terms) = (x.cols().div_ceil(STEP), terms);
        let (panels, size) = (x.rows().div_ceil(PANEL), self.steps * terms * PANEL);
        // The buffer only grows; old contents are overwritten.
        if self.lines.len() < panels * size {
            self.lines.resize(panels * size, Line([0; 32]));
        }
        self.parts.clear();
        self.parts.resize(panels, terms);
        let task = |(i, (out, parts)): (usize, (&mut [Line], &mut usize))| {
            let rows = PANEL.min(x.rows() - i * PANEL);
            let x = x.part(i * PANEL, rows, 0, x.cols());
            if order == Order::Pairs && terms > 1 {
                // SAFETY: a machine with the unit has AVX-512.
                *parts = unsafe { needed(x) };
            }
            for half in [0, TILE] {
                let first = half.min(rows);
                let x = x.part(first, TILE.min(rows - first), 0, x.cols());
                let out = &mut out[half..self.steps * *parts * PANEL];
                // SAFETY: machines that multiply bf16 have these features.
                unsafe { pack_tiles(x, order, (kind, *parts), i * PANEL + half, out) };
            }
        };
        let lines = &mut self.lines[..panels * size];
        match threads {
            Threads::One => {
                lines.chunks_exact_mut(size).zip(&mut self.parts).enumerate().for_each(task)
            }
            Threads::All => {
                lines.par_chunks_exact_mut(size).zip(&mut self.parts).enumerate().for_each(task)
            }
        }
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.parts.len()
    }

    /// The lines of panel `i`, and its number of terms.
    pub fn panel(&self, i: usize) -> (&[Line], usize) {
        let first = i * self.steps * self.terms * PANEL;
        (&self.lines[first..][..self.steps * self.parts[i] * PANEL], self.parts[i])
    }
}

/// The number of bf16 terms that represent the entries exactly: 1, 2 or 3.
#[target_feature(enable = "avx512f")]
fn needed(x: MatrixRef<'_>) -> usize {
    let x = if x.strides().1 == 1 { x } else { x.t() };
    let mut bits = 0;
    for i in 0..x.rows() {
        for x in x.row(i) {
            bits |= x.to_bits();
        }
    }
    match bits {
        _ if bits & 0xffff == 0 => 1,
        _ if bits & 0xff == 0 => 2,
        _ => 3,
    }
}

/// Up to 16 rows, of which `first` come before in the matrix; the tile of step `s` and part
/// `p` begins at line `(s * parts + p) * PANEL` of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_tiles(
    x: MatrixRef<'_>,
    order: Order,
    (kind, parts): (Terms, usize),
    first: usize,
    out: &mut [Line],
) {
    let natural = match x.strides() {
        (_, 1) => Order::Rows,
        _ => Order::Pairs,
    };
    for (step, out) in out.chunks_mut(parts * PANEL).enumerate() {
        let (left, depth) = (step * STEP, STEP.min(x.cols() - step * STEP));
        let x = x.part(0, x.rows(), left, depth);
        for line in 0..TILE {
            let [low, high] = match natural {
                Order::Rows if line >= x.rows() => [_mm512_setzero_ps(); 2],
                Order::Rows => {
                    let row = x.row(line);
                    let (low, high) = row.split_at(depth.min(16));
                    [load(low), load(high)]
                }
                Order::Pairs => {
                    let x = x.t();
                    let row = |i: usize| match i < x.rows() {
                        true => load(x.row(i)),
                        false => _mm512_setzero_ps(),
                    };
                    [row(2 * line), row(2 * line + 1)]
                }
            };
            let bits = match kind {
                Terms::Three => split(low, high),
                Terms::Nearest => [nearest(low, high); PARTS],
                Terms::Dithered => [dithered(low, high, first + line, step); PARTS],
            };
            for (part, &bits) in bits.iter().enumerate().take(parts) {
                let bits = match natural {
                    Order::Rows => bits,
                    Order::Pairs => interleave(bits),
                };
                out[part * PANEL + line].store(bits);
            }
        }
        if natural != order {
            for part in 0..parts {
                // 16 lines are there: a part has 32, and this is its first or second half.
                if let Some(tile) = out[part * PANEL..].first_chunk_mut() {
                    transpose(tile);
                }
            }
        }
    }
}

/// Up to 16 numbers, then zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(x: &[f32]) -> __m512 {
    if let Some(x) = x.first_chunk::<16>() {
        // SAFETY: the slice has 16 numbers.
        return unsafe { _mm512_loadu_ps(x.as_ptr()) };
    }
    // SAFETY: the mask excludes entries beyond the slice.
    unsafe { _mm512_maskz_loadu_ps((1 << x.len()) - 1, x.as_ptr()) }
}

/// The nearest bf16 numbers to 32 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn nearest(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 512 bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// One of the neighbors of each of 32 numbers in bf16, by the thresholds of a line of a step.
///
/// The threshold of lane `i` of line `l` in step `s` is the fractional part of
/// `a i + b l + c s`, for the square roots `a`, `b` and `c` of 2, 3 and 5.
#[inline]
#[target_feature(enable = "avx512f")]
fn dithered(low: __m512, high: __m512, line: usize, step: usize) -> __m512i {
    const LANE: u16 = 27146; // 2^16 (sqrt(2) - 1)
    const ROW: u16 = 47975; // 2^16 (sqrt(3) - 1)
    const DEPTH: u16 = 15471; // 2^16 (sqrt(5) - 2)
    const LANES: [u32; 32] = {
        let mut lanes = [0; 32];
        let mut i = 0;
        while i < 32 {
            lanes[i] = LANE.wrapping_mul(i as u16) as u32;
            i += 1;
        }
        lanes
    };
    let start = ROW.wrapping_mul(line as u16).wrapping_add(DEPTH.wrapping_mul(step as u16));
    let start = _mm512_set1_epi32(i32::from(start));
    let below = _mm512_set1_epi32(0xffff);
    let mut halves = [_mm256_setzero_si256(); 2];
    for (i, (half, x)) in halves.iter_mut().zip([low, high]).enumerate() {
        // SAFETY: 32 lanes of 4 bytes, 16 at a time.
        let lanes = unsafe { _mm512_loadu_si512(LANES.as_ptr().add(16 * i).cast()) };
        let threshold = _mm512_and_si512(_mm512_add_epi32(start, lanes), below);
        let bits = _mm512_add_epi32(_mm512_castps_si512(x), threshold);
        *half = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits));
    }
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1])
}

/// The three bf16 terms of 32 numbers, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn split(mut low: __m512, mut high: __m512) -> [__m512i; 3] {
    let mut parts = [_mm512_setzero_si512(); 3];
    for part in &mut parts {
        // SAFETY: both are 512 bits.
        *part = unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(*part)));
        high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64::<1>(*part)));
    }
    parts
}

/// 16 numbers of bf16 as f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// Interleaves the first 16 and the last 16 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave(bits: __m512i) -> __m512i {
    const TURNS: [u16; 32] = {
        let mut turns = [0; 32];
        let mut i = 0;
        while i < 32 {
            turns[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        turns
    };
    // SAFETY: 32 numbers of 16 bits.
    let turns = unsafe { _mm512_loadu_si512(TURNS.as_ptr().cast()) };
    _mm512_permutexvar_epi16(turns, bits)
}

impl Line {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(&self) -> __m512i {
        // SAFETY: a line has 64 bytes.
        unsafe { _mm512_loadu_si512(self.0.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(&mut self, bits: __m512i) {
        // SAFETY: a line has 64 bytes.
        unsafe { _mm512_storeu_si512(self.0.as_mut_ptr().cast(), bits) };
    }
}

/// Transposes 16 x 16 pairs.
#[target_feature(enable = "avx512f")]
fn transpose(tile: &mut [Line; TILE]) {
    // Loops, not closures, so that they are compiled with the features of this function.
    let zero = [_mm512_setzero_si512(); TILE];
    let (mut x, mut y) = (zero, zero);
    // Pairs of two lines side by side, then of four, then of 16.
    for i in (0..TILE).step_by(2) {
        let (a, b) = (tile[i].load(), tile[i + 1].load());
        x[i] = _mm512_unpacklo_epi32(a, b);
        x[i + 1] = _mm512_unpackhi_epi32(a, b);
    }
    for g in (0..TILE).step_by(4) {
        y[g] = _mm512_unpacklo_epi64(x[g], x[g + 2]);
        y[g + 1] = _mm512_unpackhi_epi64(x[g], x[g + 2]);
        y[g + 2] = _mm512_unpacklo_epi64(x[g + 1], x[g + 3]);
        y[g + 3] = _mm512_unpackhi_epi64(x[g + 1], x[g + 3]);
    }
    // y[g + c]: lines g to g + 3, pair c of every quarter, in that quarter.
    for c in 0..4 {
        let even = [
            _mm512_shuffle_i32x4::<0x88>(y[c], y[4 + c]),
            _mm512_shuffle_i32x4::<0x88>(y[8 + c], y[12 + c]),
        ];
        let odd = [
            _mm512_shuffle_i32x4::<0xdd>(y[c], y[4 + c]),
            _mm512_shuffle_i32x4::<0xdd>(y[8 + c], y[12 + c]),
        ];
        tile[c].store(_mm512_shuffle_i32x4::<0x88>(even[0], even[1]));
        tile[4 + c].store(_mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]));
        tile[8 + c].store(_mm512_shuffle_i32x4::<0xdd>(even[0], even[1]));
        tile[12 + c].store(_mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]));
    }
}
