//! Dense matrices of codes times a vector, in integers.
//!
//! The vector is rounded with a scale per 32 entries, `x_i = t_b q_i`: to 16 bits, which
//! changes it by at most 2^-16 of the largest of the 32, or with VNNI to 8 bits if
//! [`Activations`] say so. A row is then
//!
//! ```text
//! y = sum over blocks b of 32   s_b t_b sum_i c_i q_i
//! ```
//!
//! with the scale `s_b` of the codes `c_i`. The inner sums are exact: 32 products of 8 and
//! 16 bits stay below 2^27.

use super::activations::Activations;
use super::kernel::Kernel;
use super::quant::{CodeBits, Quantized, UNIT};
use super::rounded::{Rounded, scale_products};
#[cfg(target_arch = "x86_64")]
use super::{planes::Planes, vnni};
use std::cell::RefCell;
use std::ops::Range;

/// Rows that are read side by side: memory is faster in several streams than in one.
const ROWS: usize = 4;

/// `y = W x` for some rows of a matrix whose rows are runs of codes.
///
/// # Panics
///
/// If the codes do not have the rows, each with as many groups as `x` needs.
pub(super) fn matvec(
    w: &Quantized,
    rows: Range<usize>,
    x: &[f32],
    y: &mut [f32],
    (kernel, activations): (Kernel, Activations),
) {
    assert_eq!(rows.len(), y.len(), "one output per row");
    let groups = x.len().div_ceil(w.group());
    let blocks = groups * w.group() / UNIT;
    assert!(rows.end * groups <= w.scales().len(), "groups of all rows");
    assert!(w.bits().bytes(rows.end * blocks * UNIT) <= w.codes().len(), "codes of all rows");
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Avx512 && vnni::available() {
        // SAFETY: the machine has AVX-512 and VNNI; all rows have their codes and scales.
        unsafe {
            let x = Planes::new(x, activations.planes());
            return side_by_side(
                rows.start,
                y,
                |of| x86::rows_vnni::<ROWS>(w, of, blocks, &x),
                |of| x86::rows_vnni::<1>(w, of, blocks, &x),
            );
        }
    }
    let _ = activations;
    let x = Rounded::new(x, blocks, kernel);
    // Scales of a few rows times those of the vector, block by block.
    let scales = RefCell::new(vec![0.0f32; ROWS * blocks]);
    side_by_side(
        rows.start,
        y,
        |of| sums::<ROWS>(w, of, &x, &mut scales.borrow_mut(), kernel),
        |of| sums::<1>(w, of, &x, &mut scales.borrow_mut(), kernel),
    );
}

/// Computes the rows from `first` on, a few at a time, the rest one by one.
fn side_by_side(
    first: usize,
    y: &mut [f32],
    few: impl Fn([usize; ROWS]) -> [f32; ROWS],
    one: impl Fn([usize; 1]) -> [f32; 1],
) {
    let quarter = y.len() / ROWS;
    for i in 0..quarter {
        // Row i goes with rows i + quarter, i + 2 quarter ..
        let sums = few(std::array::from_fn(|r| first + i + r * quarter));
        sums.into_iter().enumerate().for_each(|(r, sum)| y[i + r * quarter] = sum);
    }
    for i in ROWS * quarter..y.len() {
        [y[i]] = one([first + i]);
    }
}

/// The products of `N` rows.
fn sums<const N: usize>(
    w: &Quantized,
    rows: [usize; N],
    x: &Rounded,
    scales: &mut [f32],
    kernel: Kernel,
) -> [f32; N] {
    let blocks = x.scales.len();
    let groups = blocks * UNIT / w.group();
    let bytes = w.bits().bytes(blocks * UNIT);
    let codes: [&[u8]; N] = std::array::from_fn(|r| &w.codes()[rows[r] * bytes..][..bytes]);
    for (r, scales) in scales.chunks_exact_mut(blocks.max(1)).take(N).enumerate() {
        let own = &w.scales()[rows[r] * groups..][..groups];
        scale_products(own, w.group() / UNIT, &x.scales, scales, kernel);
    }
    let scales = &scales[..N * blocks];
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the machine has the kernel; rows and scales have all blocks.
    unsafe {
        match (kernel, w.bits()) {
            (Kernel::Avx2 | Kernel::Avx512, CodeBits::Eight) => {
                return x86::sums_avx2::<N, 8>(codes, &x.codes, scales);
            }
            (Kernel::Avx2 | Kernel::Avx512, CodeBits::Four) => {
                return x86::sums_avx2::<N, 4>(codes, &x.codes, scales);
            }
            (Kernel::Scalar, _) => {}
        }
    }
    let _ = kernel;
    std::array::from_fn(|r| scalar(w.bits(), codes[r], &x.codes, &scales[r * blocks..][..blocks]))
}

/// The product of one row, in portable code.
fn scalar(bits: CodeBits, codes: &[u8], x: &[i16], scales: &[f32]) -> f32 {
    let block = bits.bytes(UNIT);
    let each = codes.chunks_exact(block).zip(x.chunks_exact(UNIT)).zip(scales);
    each.map(|((codes, x), scale)| {
        let sum: i32 = match bits {
            CodeBits::Eight => {
                codes.iter().zip(x).map(|(&c, &x)| i32::from(c as i8) * i32::from(x)).sum()
            }
            CodeBits::Four => {
                let (low, high) = x.split_at(UNIT / 2);
                let product = |half: u8, x: i16| (i32::from(half) - 8) * i32::from(x);
                let pairs = codes.iter().zip(low).zip(high);
                pairs.map(|((&c, &a), &b)| product(c & 15, a) + product(c >> 4, b)).sum()
            }
        };
        scale * sum as f32
    })
    .sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::planes::Planes;
    use super::super::quant::{CodeBits, Quantized};
    use super::super::{kernel, vnni};
    use super::UNIT;
    use std::arch::x86_64::*;

    /// The products of `N` rows of `blocks` blocks of 32 codes.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512 F, BW, VL, VNNI and VBMI; the rows have their codes and scales,
    /// and `x` has the blocks.
    pub(super) unsafe fn rows_vnni<const N: usize>(
        w: &Quantized,
        rows: [usize; N],
        blocks: usize,
        x: &Planes,
    ) -> [f32; N] {
        // SAFETY: as for this function.
        unsafe {
            match (w.bits(), x.planes()) {
                (_, 0) => [0.0; N],
                (CodeBits::Eight, 1) => sums_vnni::<N, 8, 1>(w, rows, blocks, x),
                (CodeBits::Eight, _) => sums_vnni::<N, 8, 2>(w, rows, blocks, x),
                (CodeBits::Four, 1) => sums_vnni::<N, 4, 1>(w, rows, blocks, x),
                (CodeBits::Four, _) => sums_vnni::<N, 4, 2>(w, rows, blocks, x),
            }
        }
    }

    /// The same with codes of `BITS` bits and a vector in `PLANES` planes.
    ///
    /// # Safety
    ///
    /// As for [`rows_vnni`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn sums_vnni<const N: usize, const BITS: usize, const PLANES: usize>(
        w: &Quantized,
        rows: [usize; N],
        blocks: usize,
        x: &Planes,
    ) -> [f32; N] {
        const QUAD: usize = vnni::QUAD;
        let groups = blocks * UNIT / w.group();
        let planes = x.split::<PLANES>();
        assert!(x.quads() >= blocks.div_ceil(QUAD), "a vector as long as a row");
        let codes = rows.map(|row| w.codes()[row * blocks * UNIT * BITS / 8..].as_ptr());
        let own = rows.map(|row| w.scales()[row * groups..].as_ptr());
        let scales = vnni::Scales::new(w.group());
        let mut part = scales.part::<BITS>(QUAD);
        let mut sums = [_mm512_setzero_ps(); N];
        for quad in 0..blocks.div_ceil(QUAD) {
            let unit = QUAD * quad;
            if blocks - unit < QUAD {
                part = scales.part::<BITS>(blocks - unit);
            }
            // SAFETY: every row has the quad's codes and scales, and the vector its entries.
            unsafe {
                let inputs = Planes::quad(planes, quad);
                let start = vnni::start::<BITS, 2, PLANES>(inputs);
                let of_x = x.quad_scales(quad);
                for r in 0..N {
                    let at = codes[r].add(unit * UNIT * BITS / 8);
                    vnni::prefetch_codes::<BITS>(at);
                    let quad = vnni::codes::<BITS>(at, part);
                    let products = vnni::sums(quad, inputs, start);
                    let scale = _mm512_mul_ps(scales.load(own[r], unit, part), of_x);
                    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), scale, sums[r]);
                }
            }
        }
        let mut out = [0.0; N];
        for r in 0..N {
            out[r] = _mm512_reduce_add_ps(sums[r]);
        }
        out
    }
    /// The same with AVX2.
    ///
    /// # Safety
    ///
    /// The machine has AVX2 and FMA; otherwise as for [`sums_avx512`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn sums_avx2<const N: usize, const BITS: usize>(
        rows: [&[u8]; N],
        x: &[i16],
        scales: &[f32],
    ) -> [f32; N] {
        let blocks = x.len() / UNIT;
        let bytes = 4 * BITS;
        assert!(rows.iter().all(|row| row.len() == blocks * bytes), "codes of all blocks");
        assert_eq!(scales.len(), N * blocks, "a scale for each block of each row");
        let mut sums = [_mm256_setzero_ps(); N];
        let (low, eight) = (_mm_set1_epi8(15), _mm_set1_epi8(8));
        // SAFETY: by the assertions; loads need no alignment.
        unsafe {
            for b in 0..blocks {
                let x0 = _mm256_loadu_si256(x.as_ptr().add(UNIT * b).cast());
                let x1 = _mm256_loadu_si256(x.as_ptr().add(UNIT * b + 16).cast());
                for r in 0..N {
                    let at = rows[r].as_ptr().add(bytes * b);
                    if BITS == 8 && b % 2 == 0 || b % 4 == 0 {
                        kernel::prefetch(at);
                    }
                    let first = _mm_loadu_si128(at.cast());
                    let (a, b2) = match BITS {
                        8 => (first, _mm_loadu_si128(at.add(16).cast())),
                        _ => {
                            let high = _mm_and_si128(_mm_srli_epi16::<4>(first), low);
                            let codes = _mm_and_si128(first, low);
                            (_mm_sub_epi8(codes, eight), _mm_sub_epi8(high, eight))
                        }
                    };
                    let products = _mm256_add_epi32(
                        _mm256_madd_epi16(_mm256_cvtepi8_epi16(a), x0),
                        _mm256_madd_epi16(_mm256_cvtepi8_epi16(b2), x1),
                    );
                    let scale = _mm256_set1_ps(*scales.get_unchecked(r * blocks + b));
                    sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, sums[r]);
                }
            }
        }
        let mut out = [0.0; N];
        for r in 0..N {
            let sum = sums[r];
            let four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            out[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(i: usize) -> f32 {
        ((i * 7919 + 13) % 257) as f32 / 128.0 - 1.0
    }

    fn means() -> impl Iterator<Item = (Kernel, Activations)> {
        Kernel::available().flat_map(|kernel| Activations::ALL.map(|width| (kernel, width)))
    }

    #[test]
    fn kernels_equal_their_slow_twin_at_every_size() {
        for bits in [CodeBits::Eight, CodeBits::Four] {
            for group in super::super::GROUPS {
                for k in (1..=70).chain([128, 129, 257]) {
                    let rows = 1 + k % 10;
                    let mut w = Quantized::new(bits, group);
                    (0..rows).for_each(|r| {
                        w.push(&(0..k).map(|i| number(r * k + i)).collect::<Vec<_>>());
                    });
                    let x: Vec<f32> = (0..k).map(|i| number(i + 500)).collect();
                    let mut row = vec![0.0; k];
                    for means in means() {
                        let mut y = vec![f32::NAN; rows];
                        matvec(&w, 0..rows, &x, &mut y, means);
                        for (r, &y) in y.iter().enumerate() {
                            w.read(r * k.div_ceil(group), &mut row);
                            let exact = |(w, x): (&f32, &f32)| f64::from(*w) * f64::from(*x);
                            let want: f64 = row.iter().zip(&x).map(exact).sum();
                            // Half a step for every entry.
                            let step = if means.1 == Activations::Eight { 4e-3 } else { 1.6e-5 };
                            let far = step * (1.0 + k as f64);
                            assert!((f64::from(y) - want).abs() <= far, "{means:?} {k}: {want}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let mut w = Quantized::new(CodeBits::Eight, 32);
        w.push(&[1.0; 40]);
        for odd in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0; 40];
            x[35] = odd;
            for means in means() {
                let mut y = [0.0];
                matvec(&w, 0..1, &x, &mut y, means);
                assert!(!y[0].is_finite(), "{means:?}");
            }
        }
    }
}
