//! Splits a vector into the entries of kept and of dropped blocks of columns.

use super::kernel::Kernel;

/// `kept` and `dropped` receive the entries of `x` in blocks of `c` whose bits are set
/// and clear; what follows them is undefined.
///
/// # Panics
///
/// If a side does not have room for all of `x` and one more block or vector.
pub(super) fn split(
    bits: &[u8],
    c: usize,
    x: &[f32],
    kept: &mut [f32],
    dropped: &mut [f32],
    kernel: Kernel,
) {
    assert!(8 * bits.len() >= x.len() / c, "a bit per block");
    #[cfg(target_arch = "x86_64")]
    if kernel > Kernel::Scalar {
        // SAFETY: the machine has the kernel.
        return unsafe {
            match kernel {
                Kernel::Avx512 if c == 1 => single_columns(bits, x, kept, dropped),
                Kernel::Avx512 => split_avx512(bits, c, x, kept, dropped),
                _ => split_avx2(bits, c, x, kept, dropped),
            }
        };
    }
    let _ = kernel;
    by_width(bits, c, x, kept, dropped);
}

/// [`by_width`], compiled for AVX2.
///
/// # Safety
///
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn split_avx2(bits: &[u8], c: usize, x: &[f32], kept: &mut [f32], dropped: &mut [f32]) {
    by_width(bits, c, x, kept, dropped);
}

/// [`by_width`], compiled for AVX-512.
///
/// # Safety
///
/// The machine has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn split_avx512(bits: &[u8], c: usize, x: &[f32], kept: &mut [f32], dropped: &mut [f32]) {
    by_width(bits, c, x, kept, dropped);
}

#[inline(always)]
fn by_width(bits: &[u8], c: usize, x: &[f32], kept: &mut [f32], dropped: &mut [f32]) {
    match c {
        1 => blocks::<1>(bits, x, kept, dropped),
        2 => blocks::<2>(bits, x, kept, dropped),
        4 => blocks::<4>(bits, x, kept, dropped),
        8 => blocks::<8>(bits, x, kept, dropped),
        16 => blocks::<16>(bits, x, kept, dropped),
        32 => blocks::<32>(bits, x, kept, dropped),
        _ => any(bits, c, x, kept, dropped),
    }
}

/// Blocks of `C` columns. Both sides receive every block and one of them moves on, which
/// needs no branch on bits that nothing predicts.
///
/// # Panics
///
/// If a side has fewer than `C` entries more than `x`.
#[inline(always)]
fn blocks<const C: usize>(bits: &[u8], x: &[f32], kept: &mut [f32], dropped: &mut [f32]) {
    assert!(kept.len() >= x.len() + C && dropped.len() >= x.len() + C, "room");
    let (mut k, mut d) = (kept.as_mut_ptr(), dropped.as_mut_ptr());
    for (byte, x) in bits.iter().zip(x.chunks(8 * C)) {
        for (i, x) in x.as_chunks::<C>().0.iter().enumerate() {
            let set = usize::from(byte >> i & 1);
            // SAFETY: both are at most at the number of blocks before this one, for each
            // of which there is room, and for one more.
            unsafe {
                k.cast::<[f32; C]>().write_unaligned(*x);
                d.cast::<[f32; C]>().write_unaligned(*x);
                k = k.add(C * set);
                d = d.add(C * (1 - set));
            }
        }
    }
}

fn any(bits: &[u8], c: usize, x: &[f32], kept: &mut [f32], dropped: &mut [f32]) {
    let (mut k, mut d) = (0, 0);
    for (i, x) in x.chunks_exact(c).enumerate() {
        let (to, at) = match bits[i / 8] >> (i % 8) & 1 {
            1 => (&mut *kept, &mut k),
            _ => (&mut *dropped, &mut d),
        };
        to[*at..*at + c].copy_from_slice(x);
        *at += c;
    }
}

/// Blocks of one column, sixteen at a time.
///
/// # Safety
///
/// The machine has AVX-512F.
///
/// # Panics
///
/// If a side has fewer than 16 entries more than `x`, or there are too few bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
unsafe fn single_columns(bits: &[u8], x: &[f32], kept: &mut [f32], dropped: &mut [f32]) {
    use std::arch::x86_64::*;
    const LANES: usize = 16;
    assert!(kept.len() >= x.len() + LANES && dropped.len() >= x.len() + LANES, "room");
    assert!(8 * bits.len() >= x.len(), "a bit per column");
    let (mut k, mut d) = (0, 0);
    let whole = x.len() / LANES;
    for i in 0..whole {
        let mask = u16::from_le_bytes([bits[2 * i], bits[2 * i + 1]]);
        // SAFETY: x has 16 entries from here on; k and d are at most 16 i, and 16 more fit.
        unsafe {
            let x = _mm512_loadu_ps(x.as_ptr().add(LANES * i));
            let set = _mm512_maskz_compress_ps(mask, x);
            _mm512_storeu_ps(kept.as_mut_ptr().add(k), set);
            let clear = _mm512_maskz_compress_ps(!mask, x);
            _mm512_storeu_ps(dropped.as_mut_ptr().add(d), clear);
        }
        k += mask.count_ones() as usize;
        d += mask.count_zeros() as usize;
    }
    for (i, &x) in x.iter().enumerate().skip(LANES * whole) {
        let set = usize::from(bits[i / 8] >> (i % 8) & 1);
        kept[k] = x;
        dropped[d] = x;
        k += set;
        d += 1 - set;
    }
}
