//! Dequantization of ggml's block formats, in which 32 or 256 weights share
//! scales. One function per type dequantizes one block.
//!
//! In every formula `d` and `m` are the block's f16 scale and offset, and `q` its
//! quantized integers. All arithmetic is f32 in ggml's order, so results equal
//! ggml's bit for bit.

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
