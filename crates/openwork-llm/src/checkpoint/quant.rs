//! Dequantization of ggml's block formats, in which 32 or 256 weights share
//! scales. One function per type dequantizes one block.
//!
//! In every formula `d` and `m` are the block's f16 scale and offset, and `q` its
//! quantized integers. All arithmetic is f32 in ggml's order, so results equal
//! ggml's bit for bit.

use super::grids;
use half::f16;

/// Elements of a simple block.
const SIMPLE: usize = 32;
/// Elements of a super-block of the `_K` types.
const SUPER: usize = 256;

/// Runs `one` over every block of `bytes`.
pub(super) fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (bytes, _) = bytes.as_chunks::<B>();
    let (out, _) = out.as_chunks_mut::<N>();
    for (bytes, out) in bytes.iter().zip(out) {
        one(bytes, out);
    }
}

fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// `w_i = d q_i`, `q` signed bytes.
pub(super) fn q8_0(b: &[u8; 34], w: &mut [f32; SIMPLE]) {
    let d = half(b[0], b[1]);
    for (w, &q) in w.iter_mut().zip(&b[2..]) {
        *w = d * f32::from(q as i8);
    }
}

/// `w_i = d (q_i - 8)`; the low nibbles are the first half, the high the second.
pub(super) fn q4_0(b: &[u8; 18], w: &mut [f32; SIMPLE]) {
    let d = half(b[0], b[1]);
    for (i, &q) in b[2..].iter().enumerate() {
        w[i] = d * (f32::from(q & 15) - 8.0);
        w[i + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// `w_i = d / 2 q_i`, where `d` is a power of two and `q_i` an entry of [`MXFP4`]; the low
/// nibbles are the first half, the high the second.
pub(super) fn mxfp4(b: &[u8; 17], w: &mut [f32; SIMPLE]) {
    // Half of 2^(b_0 - 127), which is subnormal for the two smallest.
    let half = match u32::from(b[0]) {
        small @ 0..2 => 0x0020_0000 << small,
        exponent => (exponent - 1) << 23,
    };
    let half = f32::from_bits(half);
    for (i, &q) in b[1..].iter().enumerate() {
        w[i] = half * f32::from(MXFP4[usize::from(q & 15)]);
        w[i + 16] = half * f32::from(MXFP4[usize::from(q >> 4)]);
    }
}

/// Twice the numbers of the 4-bit codes: a sign, two bits of exponent, one of mantissa.
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `w_i = d q_i + m`.
pub(super) fn q4_1(b: &[u8; 20], w: &mut [f32; SIMPLE]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    for (i, &q) in b[4..].iter().enumerate() {
        w[i] = d * f32::from(q & 15) + m;
        w[i + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The fifth bit of `q_i`, shifted into place.
fn fifth(bits: &[u8], i: usize) -> u8 {
    ((bits[i / 8] >> (i % 8)) & 1) << 4
}

/// `w_i = d (q_i - 16)`, the fifth bits of `q` stored apart.
pub(super) fn q5_0(b: &[u8; 22], w: &mut [f32; SIMPLE]) {
    let d = half(b[0], b[1]);
    let high = &b[2..6];
    for (i, &q) in b[6..].iter().enumerate() {
        w[i] = d * (f32::from(q & 15 | fifth(high, i)) - 16.0);
        w[i + 16] = d * (f32::from(q >> 4 | fifth(high, i + 16)) - 16.0);
    }
}

/// `w_i = d q_i + m`, the fifth bits of `q` stored apart.
pub(super) fn q5_1(b: &[u8; 24], w: &mut [f32; SIMPLE]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    let high = &b[4..8];
    for (i, &q) in b[8..].iter().enumerate() {
        w[i] = d * f32::from(q & 15 | fifth(high, i)) + m;
        w[i + 16] = d * f32::from(q >> 4 | fifth(high, i + 16)) + m;
    }
}

/// Scale and offset of group `j` of eight, six bits each, packed in 12 bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// Eight groups of 32: `w_i = (d s_j) q_i - (m o_j)`.
pub(super) fn q4_k(b: &[u8; 144], w: &mut [f32; SUPER]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    let (scales, qs) = (&b[4..16], &b[16..]);
    for (j, w) in w.chunks_exact_mut(32).enumerate() {
        let (s, o) = scale_and_min(scales, j);
        let (s, o) = (d * s, m * o);
        for (w, &q) in w.iter_mut().zip(&qs[j / 2 * 32..]) {
            *w = s * f32::from(q >> (4 * (j % 2)) & 15) - o;
        }
    }
}

/// As [`q4_k`] with fifth bits: bit `j` of `high[i]` belongs to element `i` of
/// group `j`.
pub(super) fn q5_k(b: &[u8; 176], w: &mut [f32; SUPER]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    let (scales, high, qs) = (&b[4..16], &b[16..48], &b[48..]);
    for (j, w) in w.chunks_exact_mut(32).enumerate() {
        let (s, o) = scale_and_min(scales, j);
        let (s, o) = (d * s, m * o);
        for ((w, &q), &h) in w.iter_mut().zip(&qs[j / 2 * 32..]).zip(high) {
            let q = q >> (4 * (j % 2)) & 15 | (h >> j & 1) << 4;
            *w = s * f32::from(q) - o;
        }
    }
}

/// Sixteen groups of 16 with signed byte scales: `w_i = (d s_j) (q_i - 32)`.
/// Each half of 128 elements is four runs of 32: run `r` takes nibble `r / 2`
/// of the low bits and bit pair `r` of the high bits.
pub(super) fn q6_k(b: &[u8; 210], w: &mut [f32; SUPER]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half(b[208], b[209]);
    for (run, w) in w.chunks_exact_mut(32).enumerate() {
        let (n, r) = (run / 4, run % 4);
        let low = &low[64 * n + 32 * (r % 2)..][..32];
        let high = &high[32 * n..][..32];
        for (i, w) in w.iter_mut().enumerate() {
            let q = low[i] >> (4 * (r / 2)) & 15 | (high[i] >> (2 * r) & 3) << 4;
            let s = f32::from(scales[2 * run + i / 16] as i8);
            *w = d * s * (f32::from(q) - 32.0);
        }
    }
}

/// Sixteen groups of 16: `w_i = (d s_j) q_i - (m o_j)` with scales and offsets of 4 bits.
/// Each half of 128 elements is four runs of 32; run `r` takes bit pair `r` of 32 bytes.
pub(super) fn q2_k(b: &[u8; 84], w: &mut [f32; SUPER]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, m) = (half(b[80], b[81]), half(b[82], b[83]));
    for (j, w) in w.chunks_exact_mut(16).enumerate() {
        let (run, s) = (j / 2, scales[j]);
        let (s, o) = (d * f32::from(s & 15), m * f32::from(s >> 4));
        let qs = &qs[32 * (run / 4) + 16 * (j % 2)..];
        for (w, &q) in w.iter_mut().zip(qs) {
            *w = s * f32::from(q >> (2 * (run % 4)) & 3) - o;
        }
    }
}

/// Sixteen groups of 16 with scales of 6 bits: `w_i = d (s_j - 32) (q_i - 4)`. The low two
/// bits of `q` lie as in [`q2_k`]; bit `r` of 32 bytes is the third bit of run `r`.
pub(super) fn q3_k(b: &[u8; 110], w: &mut [f32; SUPER]) {
    let (high, qs, scales) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half(b[108], b[109]);
    for (j, w) in w.chunks_exact_mut(16).enumerate() {
        let low = scales[j % 8] >> (4 * (j / 8)) & 15;
        let s = low | (scales[8 + j % 4] >> (2 * (j / 4)) & 3) << 4;
        let s = d * (f32::from(s) - 32.0);
        let (run, half) = (j / 2, 16 * (j % 2));
        let qs = &qs[32 * (run / 4) + half..];
        for (i, w) in w.iter_mut().enumerate() {
            let q = qs[i] >> (2 * (run % 4)) & 3 | (high[half + i] >> run & 1) << 2;
            *w = s * (f32::from(q) - 4.0);
        }
    }
}

/// Negates where the signs of eight elements are set: seven bits, and an eighth that makes
/// their number even.
fn with_signs(seven: u32, w: &mut [f32]) {
    let signs = seven | (seven.count_ones() & 1) << 7;
    for (i, w) in w.iter_mut().enumerate() {
        *w = if signs >> i & 1 == 1 { -*w } else { *w };
    }
}

fn word(b: &[u8]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// Eight groups of 32: `w = d (s + 1/2) / 4 times magnitudes` of four codes of eight
/// elements. A word has four times seven signs and the scale in its upper four bits.
pub(super) fn iq2_xxs(b: &[u8; 66], w: &mut [f32; SUPER]) {
    let d = half(b[0], b[1]);
    for (b, w) in b[2..].chunks_exact(8).zip(w.chunks_exact_mut(32)) {
        let word = word(&b[4..]);
        let s = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (j, w) in w.chunks_exact_mut(8).enumerate() {
            let code = grids::IQ2_XXS[usize::from(b[j])];
            for (i, w) in w.iter_mut().enumerate() {
                let index = usize::from(code >> (2 * i) & 3);
                *w = s * f32::from(grids::IQ2_XXS_VALUES[index]);
            }
            with_signs(word >> (7 * j) & 127, w);
        }
    }
}

/// As [`iq2_xxs`] with eight codes of four elements per group, `w = d (s + 1/2) / 2 times
/// magnitudes`; the words follow all codes.
pub(super) fn iq3_xxs(b: &[u8; 98], w: &mut [f32; SUPER]) {
    let d = half(b[0], b[1]);
    let (codes, words) = b[2..].split_at(64);
    for ((codes, b), w) in
        codes.chunks_exact(8).zip(words.chunks_exact(4)).zip(w.chunks_exact_mut(32))
    {
        let word = word(b);
        let s = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (w, &code) in w.chunks_exact_mut(4).zip(codes) {
            let code = grids::IQ3_XXS[usize::from(code)];
            for (i, w) in w.iter_mut().enumerate() {
                let index = usize::from(code >> (4 * i) & 7);
                *w = s * f32::from(grids::IQ3_XXS_VALUES[index]);
            }
        }
        for (j, w) in w.chunks_exact_mut(8).enumerate() {
            with_signs(word >> (7 * j) & 127, w);
        }
    }
}

/// The numbers that codes of IQ4 types stand for.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `w_i = s v(q_i)` for 32 elements: the low nibbles are the first half.
fn iq4(s: f32, qs: &[u8], w: &mut [f32]) {
    for (i, &q) in qs.iter().enumerate() {
        w[i] = s * f32::from(IQ4[usize::from(q & 15)]);
        w[i + 16] = s * f32::from(IQ4[usize::from(q >> 4)]);
    }
}

/// `w_i = d v(q_i)`, v a table of 16 numbers.
pub(super) fn iq4_nl(b: &[u8; 18], w: &mut [f32; SIMPLE]) {
    iq4(half(b[0], b[1]), &b[2..], w);
}

/// Eight groups of 32 with scales of 6 bits: `w_i = d (s_j - 32) v(q_i)`.
pub(super) fn iq4_xs(b: &[u8; 136], w: &mut [f32; SUPER]) {
    let (d, high) = (half(b[0], b[1]), u16::from_le_bytes([b[2], b[3]]));
    let (low, qs) = (&b[4..8], &b[8..]);
    for (j, (qs, w)) in qs.chunks_exact(16).zip(w.chunks_exact_mut(32)).enumerate() {
        let s = low[j / 2] >> (4 * (j % 2)) & 15 | ((high >> (2 * j) & 3) as u8) << 4;
        iq4(d * (f32::from(s) - 32.0), qs, w);
    }
}
