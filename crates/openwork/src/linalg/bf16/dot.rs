//! The product of one panel of rows and one panel of columns by AVX-512's dot products of
//! pairs of bf16 numbers, which have twice the rate of f32 instructions.

use super::PANEL;
use super::pack::Line;
use super::sums::Sums;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Whether this machine has the instructions.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16")
    })
}

/// Rows whose sums are held in registers at a time, two registers each.
const ROWS: usize = 8;
/// Rows of a tile.
const TILE: usize = 16;

/// `sums <- A B` of two packed panels with one term each.
///
/// # Panics
///
/// If the two have different numbers of steps, or the machine lacks the instructions.
pub fn multiply(a: &[Line], b: &[Line], sums: &mut Sums) {
    assert!(available(), "no dot products of bf16");
    assert!(a.len() == b.len() && a.len().is_multiple_of(PANEL), "panels of different depth");
    for first in (0..PANEL).step_by(ROWS) {
        // SAFETY: the machine has the instructions, and the panels consist of whole steps of
        // 32 lines, which the function reads from row `first` on.
        unsafe { rows(a, b, first, sums) };
    }
}

/// Sums of the rows `first..first + 8`. A step of `a` is 32 lines, one per row, of 16 pairs; a
/// step of `b` two tiles of 16 lines, one per pair, of 16 columns.
///
/// # Safety
///
/// Both have the same number of steps, and the machine has the features.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rows(a: &[Line], b: &[Line], first: usize, sums: &mut Sums) {
    let mut acc = [[_mm512_setzero_ps(); 2]; ROWS];
    let steps = a.len() / PANEL;
    let (mut a, mut b) = (a.as_ptr().cast::<i32>(), b.as_ptr().cast::<i32>());
    // A line has 16 pairs of 4 bytes.
    // SAFETY: `first + ROWS <= 32` rows.
    a = unsafe { a.add(first * 16) };
    for _ in 0..steps {
        for pair in 0..16 {
            // SAFETY: within the lines of this step.
            unsafe {
                let left = bits(_mm512_loadu_si512(b.add(pair * 16).cast()));
                let right = bits(_mm512_loadu_si512(b.add((TILE + pair) * 16).cast()));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let x = bits(_mm512_set1_epi32(*a.add(i * 16 + pair)));
                    acc[0] = _mm512_dpbf16_ps(acc[0], x, left);
                    acc[1] = _mm512_dpbf16_ps(acc[1], x, right);
                }
            }
        }
        // SAFETY: at most one past the last line.
        unsafe {
            a = a.wrapping_add(PANEL * 16);
            b = b.add(PANEL * 16);
        }
    }
    for (row, acc) in sums.0[first..].iter_mut().zip(acc) {
        // SAFETY: a row has 32 numbers.
        unsafe {
            _mm512_storeu_ps(row.as_mut_ptr(), acc[0]);
            _mm512_storeu_ps(row.as_mut_ptr().add(16), acc[1]);
        }
    }
}

/// 32 numbers of bf16.
#[inline]
#[target_feature(enable = "avx512f")]
fn bits(x: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, and every pattern is a number.
    unsafe { std::mem::transmute(x) }
}
