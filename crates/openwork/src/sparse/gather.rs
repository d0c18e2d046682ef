//! Gathers the entries of a vector in the kept, or in the dropped, blocks of columns.

use super::kernel::Kernel;

/// Entries ahead of a store whose memory is prefetched: streams of weights evict the
/// gathered columns from the first-level cache, and stores that miss it wait for each other.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 256;

/// `out` receives the entries of `x` in blocks of `c` whose bits are `wanted`; what follows
/// them is undefined.
///
/// # Panics
///
/// If there are not enough bits, or `out` does not have room for all of `x` and one more
/// vector.
pub(super) fn gather(
    bits: &[u8],
    wanted: bool,
    c: usize,
    x: &[f32],
    out: &mut [f32],
    kernel: Kernel,
) {
    assert!(x.len().is_multiple_of(c) && 8 * bits.len() >= x.len() / c, "a bit per block");
    let flip = if wanted { 0 } else { !0 };
    #[cfg(target_arch = "x86_64")]
    if kernel > Kernel::Scalar {
        // SAFETY: the machine has the kernel.
        return unsafe {
            match kernel {
                Kernel::Avx512 if c == 1 => single_columns(bits, flip, x, out),
                Kernel::Avx512 => gather_avx512(bits, flip, c, x, out),
                _ => gather_avx2(bits, flip, c, x, out),
            }
        };
    }
    let _ = kernel;
    by_width(bits, flip, c, x, out);
}

/// [`by_width`], compiled for AVX2.
///
/// # Safety
///
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn gather_avx2(bits: &[u8], flip: u8, c: usize, x: &[f32], out: &mut [f32]) {
    by_width(bits, flip, c, x, out);
}

/// [`by_width`], compiled for AVX-512.
///
/// # Safety
///
/// The machine has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn gather_avx512(bits: &[u8], flip: u8, c: usize, x: &[f32], out: &mut [f32]) {
    by_width(bits, flip, c, x, out);
}

#[inline(always)]
fn by_width(bits: &[u8], flip: u8, c: usize, x: &[f32], out: &mut [f32]) {
    match c {
        1 => blocks::<1>(bits, flip, x, out),
        2 => blocks::<2>(bits, flip, x, out),
        4 => blocks::<4>(bits, flip, x, out),
        8 => blocks::<8>(bits, flip, x, out),
        16 => blocks::<16>(bits, flip, x, out),
        32 => blocks::<32>(bits, flip, x, out),
        _ => any(bits, flip, c, x, out),
    }
}

/// Blocks of `C` columns.
///
/// # Panics
///
/// If `out` has too few entries.
#[inline(always)]
fn blocks<const C: usize>(bits: &[u8], flip: u8, x: &[f32], out: &mut [f32]) {
    let out = out.as_chunks_mut::<C>().0;
    let mut at = 0;
    for (bits, x) in bits.chunks(8).zip(x.chunks(64 * C)) {
        let x = x.as_chunks::<C>().0;
        let mut word = [0; 8];
        word[..bits.len()].copy_from_slice(bits);
        let flip = u64::from_le_bytes([flip; 8]);
        let mut word = (u64::from_le_bytes(word) ^ flip) & (u64::MAX >> (64 - x.len()));
        while word != 0 {
            let block = &mut out[at];
            prefetch(block.as_ptr());
            *block = x[word.trailing_zeros() as usize];
            at += 1;
            word &= word - 1;
        }
    }
}

fn any(bits: &[u8], flip: u8, c: usize, x: &[f32], out: &mut [f32]) {
    let mut at = 0;
    for (i, x) in x.chunks_exact(c).enumerate() {
        if (bits[i / 8] ^ flip) >> (i % 8) & 1 == 1 {
            out[at..at + c].copy_from_slice(x);
            at += c;
        }
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
/// If `out` has fewer than 16 entries more than `x`, or there are too few bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
unsafe fn single_columns(bits: &[u8], flip: u8, x: &[f32], out: &mut [f32]) {
    use std::arch::x86_64::*;
    const LANES: usize = 16;
    assert!(out.len() >= x.len() + LANES, "room");
    assert!(8 * bits.len() >= x.len(), "a bit per column");
    let mut at = 0;
    let whole = x.len() / LANES;
    for i in 0..whole {
        let mask = u16::from_le_bytes([bits[2 * i] ^ flip, bits[2 * i + 1] ^ flip]);
        prefetch(out.as_ptr().wrapping_add(at));
        // SAFETY: x has 16 entries from here on; `at` is at most 16 i, and 16 more fit.
        unsafe {
            let x = _mm512_loadu_ps(x.as_ptr().add(LANES * i));
            let found = _mm512_maskz_compress_ps(mask, x);
            _mm512_storeu_ps(out.as_mut_ptr().add(at), found);
        }
        at += mask.count_ones() as usize;
    }
    for (i, &x) in x.iter().enumerate().skip(LANES * whole) {
        out[at] = x;
        at += usize::from((bits[i / 8] ^ flip) >> (i % 8) & 1);
    }
}

/// Prefetches what is written soon.
#[inline(always)]
fn prefetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads no memory, whatever its address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
