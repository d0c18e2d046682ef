//! MXFP4 as stored in safetensors files: 4-bit numbers in blocks of 32, with a power-of-two
//! scale per block in a separate tensor.
//!
//! ```text
//! NAME_blocks  [.., blocks, 16]  two numbers in a byte, the first in its lower half
//! NAME_scales  [.., blocks]      the exponent, plus 127
//! ```

/// Numbers of a block.
pub(super) const BLOCK: usize = 32;
/// Bytes of a block, without its scale.
pub(super) const BYTES: usize = 16;

/// The value of each 4-bit code: a sign, two bits of exponent, one of mantissa.
const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Decodes blocks with their scales.
pub(super) fn decode(blocks: &[u8], scales: &[u8], out: &mut [f32]) {
    let all = blocks.chunks_exact(BYTES).zip(scales).zip(out.chunks_exact_mut(BLOCK));
    for ((block, &scale), out) in all {
        // Exact in f64 from 2^-127 to 2^128; the largest are infinite in f32.
        let scale = 2.0f64.powi(i32::from(scale) - 127);
        for (byte, out) in block.iter().zip(out.chunks_exact_mut(2)) {
            for (out, code) in out.iter_mut().zip([byte & 15, byte >> 4]) {
                *out = (f64::from(VALUES[usize::from(code)]) * scale) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_decode_to_their_values() {
        let mut blocks = [0; BYTES];
        blocks[0] = 0x71;
        blocks[15] = 0xf2;
        let mut out = [f32::NAN; BLOCK];
        decode(&blocks, &[128], &mut out);
        assert_eq!((out[0], out[1], out[30], out[31]), (1.0, 12.0, 2.0, -12.0));
        assert!(out[2..30].iter().all(|x| *x == 0.0));
        decode(&blocks, &[0], &mut out);
        assert_eq!(out[0], 0.5 * 2.0f32.powi(-127));
    }
}
