//! Elementwise loops and reductions, compiled for the baseline, for AVX2 with FMA
//! and for AVX-512, and chosen at run time.
//!
//! Reductions use [`LANES`] partial sums so that they vectorize; their order
//! depends neither on the machine nor on the number of threads.

/// Partial sums of a reduction.
const LANES: usize = 32;

/// Compiles a function also with AVX2 and FMA and with AVX-512, and calls the best
/// version that the machine supports. In the body, `FMA` is whether multiply-adds
/// are fused.
macro_rules! vectorized {
    ($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        pub fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            fn body<const FMA: bool>($($arg: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    body::<true>($($arg),*)
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                        // SAFETY: the features were detected.
                        return unsafe { avx512($($arg),*) };
                    }
                    // SAFETY: the features were detected.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body::<false>($($arg),*)
        }
    };
}

/// `a b + c`, rounded once if it is one instruction.
#[inline(always)]
fn madd<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` for `x <= 88`, within 2 units in the last place; tiny below -87.
///
/// `x = n ln 2 + r`, `|r| <= ln 2 / 2`; `e^r` by its Taylor polynomial, `2^n`
/// by its bits.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    // ln 2 in two parts, so that `n * HIGH` is exact (Cody and Waite).
    const HIGH: f32 = 355.0 / 512.0;
    const LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it, in two's
    // complement, in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = madd::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = madd::<FMA>(n, -LOW, madd::<FMA>(n, -HIGH, x));
    let p = 1.0 / 5040.0;
    let p = madd::<FMA>(p, r, 1.0 / 720.0);
    let p = madd::<FMA>(p, r, 1.0 / 120.0);
    let p = madd::<FMA>(p, r, 1.0 / 24.0);
    let p = madd::<FMA>(p, r, 1.0 / 6.0);
    let p = madd::<FMA>(p, r, 0.5);
    let p = madd::<FMA>(p, r, 1.0);
    let p = madd::<FMA>(p, r, 1.0);
    // The exponent bits of 2^n; higher bits are shifted out.
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// `2 sqrt(2/pi)`, and the coefficient of `x^3`, of gelu's tanh approximation.
const TWO_ROOT: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// Sums the partial sums pairwise.
#[inline(always)]
fn fold(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

vectorized! {
    /// The sum.
    pub fn sum(x: &[f32]) -> f32 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                sums[i] += block[i];
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += x;
        }
        fold(sums)
    }
}

vectorized! {
    /// The sum of `(x_i - from)^2`.
    pub fn sum_of_squares_from(x: &[f32], from: f32) -> f32 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                let d = block[i] - from;
                sums[i] = madd::<FMA>(d, d, sums[i]);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += (x - from) * (x - from);
        }
        fold(sums)
    }
}

vectorized! {
    /// `x_i <- (x_i - mean) scale w_i + b_i`.
    pub fn scale_and_shift(x: &mut [f32], mean: f32, scale: f32, w: &[f32], b: &[f32]) {
        for ((x, w), b) in x.iter_mut().zip(w).zip(b) {
            *x = madd::<FMA>((*x - mean) * scale, *w, *b);
        }
    }
}

vectorized! {
    /// The sum of squares.
    pub fn sum_of_squares(x: &[f32]) -> f32 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                sums[i] = madd::<FMA>(block[i], block[i], sums[i]);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += x * x;
        }
        fold(sums)
    }
}

vectorized! {
    /// The largest element; minus infinity if there is none. NaN is ignored.
    pub fn max(x: &[f32]) -> f32 {
        let mut most = [f32::NEG_INFINITY; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                most[i] = if block[i] > most[i] { block[i] } else { most[i] };
            }
        }
        most.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
    }
}

vectorized! {
    /// `x_i <- e^(x_i - shift)`; returns their sum.
    pub fn exp_in_place(x: &mut [f32], shift: f32) -> f32 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = x.as_chunks_mut::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                block[i] = exp::<FMA>(block[i] - shift);
                sums[i] += block[i];
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *x = exp::<FMA>(*x - shift);
            *sum += *x;
        }
        fold(sums)
    }
}

vectorized! {
    /// The sum of `e^(x_i - shift)`.
    pub fn sum_of_exp(x: &[f32], shift: f32) -> f32 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                sums[i] += exp::<FMA>(block[i] - shift);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += exp::<FMA>(*x - shift);
        }
        fold(sums)
    }
}

vectorized! {
    /// `out_s <- a q . k_s`, where `k_s` are rows of `keys`, `stride` elements apart.
    pub fn scaled_dots(out: &mut [f32], q: &[f32], keys: &[f32], stride: usize, a: f32) {
        for (s, out) in out.iter_mut().enumerate() {
            let mut sums = [0.0; LANES];
            let (q_blocks, q_rest) = q.as_chunks::<LANES>();
            let (k_blocks, k_rest) = keys[s * stride..][..q.len()].as_chunks::<LANES>();
            for (q, k) in q_blocks.iter().zip(k_blocks) {
                for i in 0..LANES {
                    sums[i] = madd::<FMA>(q[i], k[i], sums[i]);
                }
            }
            for ((sum, q), k) in sums.iter_mut().zip(q_rest).zip(k_rest) {
                *sum += q * k;
            }
            *out = a * fold(sums);
        }
    }
}

vectorized! {
    /// `out <- sum of p_s v_s`, where `v_s` are rows of `values`, `stride` elements apart.
    pub fn mix(out: &mut [f32], p: &[f32], values: &[f32], stride: usize) {
        for (b, out) in out.chunks_mut(LANES).enumerate() {
            let mut sums = [0.0; LANES];
            for (s, &p) in p.iter().enumerate() {
                let v = &values[s * stride + b * LANES..][..out.len()];
                for (sum, &v) in sums.iter_mut().zip(v) {
                    *sum = madd::<FMA>(p, v, *sum);
                }
            }
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}

vectorized! {
    /// `x_i <- a x_i`.
    pub fn scale(x: &mut [f32], a: f32) {
        for x in x {
            *x *= a;
        }
    }
}

vectorized! {
    /// `x_i <- x_i + y_i`.
    pub fn add(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

vectorized! {
    /// `out_i <- a x_i w_i`.
    pub fn scaled_product(out: &mut [f32], x: &[f32], w: &[f32], a: f32) {
        for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
            *out = x * a * w;
        }
    }
}

vectorized! {
    /// `g_i <- silu(g_i) u_i`, where `silu(x) = x / (1 + e^-x)`.
    pub fn silu_gate(g: &mut [f32], u: &[f32]) {
        for (g, u) in g.iter_mut().zip(u) {
            *g = *g / (1.0 + exp::<FMA>(-*g)) * u;
        }
    }
}

vectorized! {
    /// `g_i <- gelu(g_i) u_i`, where, with `z = sqrt(2/pi) (x + 0.044715 x^3)`,
    /// `gelu(x) = x (1 + tanh z) / 2 = x / (1 + e^(-2z))`.
    pub fn gelu_gate(g: &mut [f32], u: &[f32]) {
        for (g, u) in g.iter_mut().zip(u) {
            let x = *g;
            let two_z = TWO_ROOT * (x + CUBIC * x * x * x);
            *g = x / (1.0 + exp::<FMA>(-two_z)) * u;
        }
    }
}

vectorized! {
    /// `g_i <- g sigmoid(alpha g) (u + 1)`, where `g` is `g_i`, at most `limit`, and `u` is
    /// `u_i`, within plus and minus `limit`.
    pub fn clamped_swiglu_gate(g: &mut [f32], u: &[f32], alpha: f32, limit: f32) {
        for (g, u) in g.iter_mut().zip(u) {
            let (x, u) = (g.min(limit), u.clamp(-limit, limit));
            *g = x / (1.0 + exp::<FMA>(-alpha * x)) * (u + 1.0);
        }
    }
}

vectorized! {
    /// `x_i <- x_i (1 + erf(x_i / sqrt 2)) / 2`.
    ///
    /// erf by Abramowitz and Stegun 7.1.26, within 1.5e-7:
    ///
    /// ```text
    /// erf z = 1 - (a_1 t + .. + a_5 t^5) e^(-z^2)        t = 1 / (1 + p z)        z >= 0
    /// ```
    pub fn gelu(x: &mut [f32]) {
        const P: f32 = 0.327_591_1;
        const A: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];
        for x in x {
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / madd::<FMA>(P, z, 1.0);
            let p = madd::<FMA>(A[4], t, A[3]);
            let p = madd::<FMA>(p, t, A[2]);
            let p = madd::<FMA>(p, t, A[1]);
            let p = madd::<FMA>(p, t, A[0]) * t;
            // 1 - erf z, halved.
            let tail = 0.5 * p * exp::<FMA>(-z * z);
            *x *= if *x < 0.0 { tail } else { 1.0 - tail };
        }
    }
}

vectorized! {
    /// `x_i <- x_i sigmoid(g_i)`.
    pub fn sigmoid_gate(x: &mut [f32], g: &[f32]) {
        for (x, g) in x.iter_mut().zip(g) {
            *x /= 1.0 + exp::<FMA>(-*g);
        }
    }
}

vectorized! {
    /// `x_i <- silu(x_i)`.
    pub fn silu(x: &mut [f32]) {
        for x in x {
            *x /= 1.0 + exp::<FMA>(-*x);
        }
    }
}

vectorized! {
    /// `x_i <- gelu(x_i)`, by its tanh approximation.
    pub fn gelu_tanh(x: &mut [f32]) {
        for x in x {
            let two_z = TWO_ROOT * (*x + CUBIC * *x * *x * *x);
            *x /= 1.0 + exp::<FMA>(-two_z);
        }
    }
}

vectorized! {
    /// The sum of `x_i y_i`.
    pub fn dot(x: &[f32], y: &[f32]) -> f32 {
        let mut sums = [0.0; LANES];
        let (x_blocks, x_rest) = x.as_chunks::<LANES>();
        let (y_blocks, y_rest) = y[..x.len()].as_chunks::<LANES>();
        for (x, y) in x_blocks.iter().zip(y_blocks) {
            for i in 0..LANES {
                sums[i] = madd::<FMA>(x[i], y[i], sums[i]);
            }
        }
        for ((sum, x), y) in sums.iter_mut().zip(x_rest).zip(y_rest) {
            *sum += x * y;
        }
        fold(sums)
    }
}

vectorized! {
    /// The sum of `x_i y_i z_i`.
    pub fn triple_dot(x: &[f32], y: &[f32], z: &[f32]) -> f32 {
        let mut sums = [0.0; LANES];
        let (x_blocks, x_rest) = x.as_chunks::<LANES>();
        let (y_blocks, y_rest) = y[..x.len()].as_chunks::<LANES>();
        let (z_blocks, z_rest) = z[..x.len()].as_chunks::<LANES>();
        for ((x, y), z) in x_blocks.iter().zip(y_blocks).zip(z_blocks) {
            for i in 0..LANES {
                sums[i] = madd::<FMA>(x[i] * y[i], z[i], sums[i]);
            }
        }
        for (((sum, x), y), z) in sums.iter_mut().zip(x_rest).zip(y_rest).zip(z_rest) {
            *sum += x * y * z;
        }
        fold(sums)
    }
}

vectorized! {
    /// `out_i <- out_i + a x_i y_i`.
    pub fn add_scaled_product(out: &mut [f32], x: &[f32], y: &[f32], a: f32) {
        for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
            *out = madd::<FMA>(a * x, *y, *out);
        }
    }
}

vectorized! {
    /// `out_i <- out_i + a x_i`.
    pub fn add_scaled(out: &mut [f32], x: &[f32], a: f32) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = madd::<FMA>(a, *x, *out);
        }
    }
}

vectorized! {
    /// The softmax's backward step on one row: `d_i <- p_i (d_i - mean)`.
    pub fn softmax_backward(d: &mut [f32], p: &[f32], mean: f32) {
        for (d, p) in d.iter_mut().zip(p) {
            *d = p * (*d - mean);
        }
    }
}

vectorized! {
    /// The gradients of `silu(g_i) u_i`, given that of the result in `d`: `g`
    /// and `u` are replaced by their own. With `s = 1 / (1 + e^-g)`:
    ///
    /// ```text
    /// dg = d u s (1 + g (1 - s))        du = d g s
    /// ```
    pub fn silu_gate_backward(g: &mut [f32], u: &mut [f32], d: &[f32]) {
        for ((g, u), d) in g.iter_mut().zip(u).zip(d) {
            let s = 1.0 / (1.0 + exp::<FMA>(-*g));
            let (dg, du) = (d * *u * s * (1.0 + *g * (1.0 - s)), d * *g * s);
            (*g, *u) = (dg, du);
        }
    }
}

vectorized! {
    /// The gradient of `silu(x_i)`: `d_i <- d_i s (1 + x_i (1 - s))`, `s = 1 / (1 + e^-x_i)`.
    pub fn silu_backward(d: &mut [f32], x: &[f32]) {
        for (d, x) in d.iter_mut().zip(x) {
            let s = 1.0 / (1.0 + exp::<FMA>(-*x));
            *d *= s * (1.0 + x * (1.0 - s));
        }
    }
}

vectorized! {
    /// The gradients of `x_i sigmoid(g_i)`, given that of the result in `d`: `g` is replaced
    /// by its own, `d` by that of `x`. With `s = 1 / (1 + e^-g)`:
    ///
    /// ```text
    /// dg = d x s (1 - s)        dx = d s
    /// ```
    pub fn sigmoid_gate_backward(g: &mut [f32], x: &[f32], d: &mut [f32]) {
        for ((g, x), d) in g.iter_mut().zip(x).zip(d) {
            let s = 1.0 / (1.0 + exp::<FMA>(-*g));
            (*g, *d) = (*d * x * s * (1.0 - s), *d * s);
        }
    }
}

vectorized! {
    /// The gradients of `gelu(g_i) u_i`, given that of the result in `d`: `g`
    /// and `u` are replaced by their own. With `z` as in [`gelu_gate`],
    /// `z' = 2 dz/dg` and `s = 1 / (1 + e^(-2z))`:
    ///
    /// ```text
    /// dg = d u s (1 + g z' (1 - s))        du = d g s
    /// ```
    pub fn gelu_gate_backward(g: &mut [f32], u: &mut [f32], d: &[f32]) {
        for ((g, u), d) in g.iter_mut().zip(u).zip(d) {
            let x = *g;
            let s = 1.0 / (1.0 + exp::<FMA>(-TWO_ROOT * (x + CUBIC * x * x * x)));
            let slope = TWO_ROOT * (1.0 + 3.0 * CUBIC * x * x);
            let (dg, du) = (d * *u * s * (1.0 + x * slope * (1.0 - s)), d * x * s);
            (*g, *u) = (dg, du);
        }
    }
}

vectorized! {
    /// The gradient of `y = cap tanh(x / cap)`: `d_i <- d_i (1 - (y_i / cap)^2)`.
    pub fn tanh_backward(d: &mut [f32], y: &[f32], cap: f32) {
        let by = cap.recip();
        for (d, y) in d.iter_mut().zip(y) {
            let t = y * by;
            *d *= madd::<FMA>(-t, t, 1.0);
        }
    }
}

vectorized! {
    /// The sum of `e^(a x_i - shift)`.
    pub fn sum_of_scaled_exp(x: &[f32], a: f32, shift: f32) -> f32 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                sums[i] += exp::<FMA>(madd::<FMA>(a, block[i], -shift));
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += exp::<FMA>(madd::<FMA>(a, *x, -shift));
        }
        fold(sums)
    }
}

/// The softmax of `a x`, by its normalization: `p_i = e^(a x_i - shift) / sum`.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// `a`.
    pub factor: f32,
    /// The largest of `a x`.
    pub shift: f32,
    /// `1 / sum`.
    pub scale: f32,
}

vectorized! {
    /// With the softmaxes `p` of `z` and `q` of `y`: returns the sum of `q_i (y_i - z_i)`, and
    /// replaces `z_i` by `w (p_i - q_i)`.
    pub fn distill(z: &mut [f32], y: &[f32], p: Softmax, q: Softmax, w: f32) -> f32 {
        let mut sums = [0.0; LANES];
        let one = |z: &mut f32, y: f32, sum: &mut f32| {
            let p = exp::<FMA>(madd::<FMA>(p.factor, *z, -p.shift)) * p.scale;
            let q = exp::<FMA>(madd::<FMA>(q.factor, y, -q.shift)) * q.scale;
            *sum = madd::<FMA>(q, y - *z, *sum);
            *z = w * (p - q);
        };
        let (z_blocks, z_rest) = z.as_chunks_mut::<LANES>();
        let (y_blocks, y_rest) = y.as_chunks::<LANES>();
        for (z, y) in z_blocks.iter_mut().zip(y_blocks) {
            for i in 0..LANES {
                one(&mut z[i], y[i], &mut sums[i]);
            }
        }
        for ((z, y), sum) in z_rest.iter_mut().zip(y_rest).zip(&mut sums) {
            one(z, *y, sum);
        }
        fold(sums)
    }
}

vectorized! {
    /// The gradients of [`clamped_swiglu_gate`], given that of the result in `d`: `g` and
    /// `u` are replaced by their own. With `s = 1 / (1 + e^(-alpha g))`:
    ///
    /// ```text
    /// dg = d (u + 1) s (1 + alpha g (1 - s))        du = d g s        both zero beyond the limit
    /// ```
    pub fn clamped_swiglu_backward(
        g: &mut [f32],
        u: &mut [f32],
        d: &[f32],
        alpha: f32,
        limit: f32
    ) {
        for ((g, u), d) in g.iter_mut().zip(u).zip(d) {
            let (x, y) = (g.min(limit), u.clamp(-limit, limit));
            let s = 1.0 / (1.0 + exp::<FMA>(-alpha * x));
            let dg = d * (y + 1.0) * s * (1.0 + alpha * x * (1.0 - s));
            let du = d * x * s;
            *g = if *g > limit { 0.0 } else { dg };
            *u = if u.abs() > limit { 0.0 } else { du };
        }
    }
}

/// The coefficients of one step of Adam, see [`adam`].
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// Factor of the gradients.
    pub scale: f32,
    /// Learning rate.
    pub lr: f32,
    /// Decay of the means of the gradients.
    pub beta1: f32,
    /// Decay of the means of their squares.
    pub beta2: f32,
    /// `1 / (1 - beta1^t)`.
    pub correction1: f32,
    /// `1 / (1 - beta2^t)`.
    pub correction2: f32,
    /// Added to the root.
    pub eps: f32,
    /// Whether weights that are zero stay zero, and others never become zero.
    pub sparse: bool,
}

vectorized! {
    /// A step of Adam on the weights `w`, given their gradients `g` and the means `m` of
    /// the gradients and `v` of their squares. With `sparse`, a zero weight is one that
    /// was pruned: it stays zero, and a weight that would become zero takes the smallest
    /// number instead.
    pub fn adam(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: &AdamStep) {
        let AdamStep { scale, lr, beta1, beta2, correction1, correction2, eps, sparse } = *step;
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let g = scale * g;
            *m = madd::<FMA>(beta1, *m, (1.0 - beta1) * g);
            *v = madd::<FMA>(beta2, *v, (1.0 - beta2) * g * g);
            let root = (*v * correction2).sqrt() + eps;
            let mut new = *w - lr * (*m * correction1) / root;
            if sparse {
                new = if new == 0.0 { f32::MIN_POSITIVE } else { new };
                new = if *w == 0.0 { 0.0 } else { new };
            }
            *w = new;
        }
    }
}

vectorized! {
    /// `w <- w + a (to - w)`. A zero stays zero and other numbers never become zero, as in
    /// [`adam`]: a weight that was dropped is not pulled back.
    pub fn pull(w: &mut [f32], to: &[f32], a: f32) {
        for (w, to) in w.iter_mut().zip(to) {
            let new = madd::<FMA>(a, to - *w, *w);
            let new = if new == 0.0 { f32::MIN_POSITIVE } else { new };
            *w = if *w == 0.0 { 0.0 } else { new };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 7.0 - 8.0).collect()
    }

    fn close(got: f32, want: f64, what: &str) {
        assert!(
            (f64::from(got) - want).abs() <= 2e-6 * (1.0 + want.abs()),
            "{what}: {got} for {want}"
        );
    }

    #[test]
    fn exp_is_within_two_units() {
        for i in -86_000..88_000 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp();
            for got in [exp::<true>(x), exp::<false>(x)] {
                assert!((f64::from(got) / want - 1.0).abs() < 2.4e-7, "e^{x}");
            }
        }
        assert!(exp::<true>(f32::NEG_INFINITY) < 2e-38);
        assert!(exp::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_is_within_the_error_of_its_polynomial() {
        // x / 2 (1 + erf(x / sqrt 2)), by Python's math.erf.
        for (x, want) in [
            (-9.0, 0.0),
            (-3.0, -0.004_049_694_095_114_2),
            (-1.0, -0.158_655_253_931_457_05),
            (-0.1, -0.046_017_216_272_297_1),
            (0.0, 0.0),
            (0.5, 0.345_731_230_637_006_7),
            (2.0, 1.954_499_736_103_641_5),
            (12.0, 12.0),
        ] {
            let mut got = [x as f32; 33];
            gelu(&mut got);
            got.iter().for_each(|got| close(*got, want, "gelu"));
        }
    }

    #[test]
    fn loops_equal_their_definitions_at_every_size() {
        for n in 0..=64 {
            let (x, y) = (some(n), some(n + 5)[5..].to_vec());
            let wide = |x: &f32| f64::from(*x);
            close(sum_of_squares(&x), x.iter().map(|x| wide(x).powi(2)).sum(), "squares");
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let want: f64 = x.iter().map(|x| (wide(x) - 6.0).exp()).sum();
            close(sum_of_exp(&x, 6.0), want, "exp");
            let mut e = x.clone();
            close(exp_in_place(&mut e, 6.0), want, "exp");
            let (rows, stride) = (some(3 * (n + 2)), n + 2);
            let (mut dots, mut mean) = ([0.0; 3], vec![f32::NAN; n]);
            scaled_dots(&mut dots, &x, &rows, stride, 0.5);
            mix(&mut mean, &[0.5, -1.0, 2.0], &rows, stride);
            for (s, &dot) in dots.iter().enumerate() {
                let want: f64 = (0..n).map(|i| wide(&x[i]) * wide(&rows[s * stride + i])).sum();
                assert!((f64::from(dot) - 0.5 * want).abs() <= 1e-3, "{dot} for {want} / 2");
            }
            for (i, &mean) in mean.iter().enumerate() {
                let at = |s: usize| wide(&rows[s * stride + i]);
                close(mean, 0.5 * at(0) - at(1) + 2.0 * at(2), "mix");
            }
            let (mut silu, mut gelu) = (x.clone(), x.clone());
            silu_gate(&mut silu, &y);
            gelu_gate(&mut gelu, &y);
            for i in 0..n {
                let (a, b) = (wide(&x[i]), wide(&y[i]));
                close(e[i], (a - 6.0).exp(), "exp");
                close(silu[i], a / (1.0 + (-a).exp()) * b, "silu");
                let z = (2.0 / std::f64::consts::PI).sqrt() * (a + 0.044_715 * a.powi(3));
                close(gelu[i], a * 0.5 * (1.0 + z.tanh()) * b, "gelu");
            }
            let weights = some(n + 9)[9..].to_vec();
            let (silu, gelu) = (
                |x: f64| x / (1.0 + (-x).exp()),
                |x: f64| {
                    let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                    x * 0.5 * (1.0 + z.tanh())
                },
            );
            let both: [(fn(&mut [f32], &mut [f32], &[f32]), &dyn Fn(f64) -> f64); 2] =
                [(silu_gate_backward, &silu), (gelu_gate_backward, &gelu)];
            for (backward, activation) in both {
                let (mut dg, mut du) = (x.clone(), y.clone());
                backward(&mut dg, &mut du, &weights);
                for i in 0..n {
                    let (a, b, w) = (wide(&x[i]), wide(&y[i]), wide(&weights[i]));
                    let slope = (activation(a + 1e-5) - activation(a - 1e-5)) / 2e-5;
                    close(du[i], activation(a) * w, "gradient of the factor");
                    let want = slope * b * w;
                    assert!((wide(&dg[i]) - want).abs() <= 1e-5 * (1.0 + want.abs()), "{a}");
                }
            }
            let limit = 3.05;
            let (mut dg, mut du) = (x.clone(), y.clone());
            clamped_swiglu_backward(&mut dg, &mut du, &weights, 1.7, limit as f32);
            let gate = |a: f64, b: f64| {
                let (a, b) = (a.min(limit), b.clamp(-limit, limit));
                a / (1.0 + (-1.7 * a).exp()) * (b + 1.0)
            };
            for i in 0..n {
                let (a, b, w) = (wide(&x[i]), wide(&y[i]), wide(&weights[i]));
                let slope_a = (gate(a + 1e-5, b) - gate(a - 1e-5, b)) / 2e-5;
                let slope_b = (gate(a, b + 1e-5) - gate(a, b - 1e-5)) / 2e-5;
                for (got, want) in [(dg[i], slope_a * w), (du[i], slope_b * w)] {
                    assert!((wide(&got) - want).abs() <= 1e-5 * (1.0 + want.abs()), "{a}, {b}");
                }
            }
            let (mut d, silu) = (weights.clone(), |x: f64| x / (1.0 + (-x).exp()));
            silu_backward(&mut d, &x);
            for i in 0..n {
                let a = wide(&x[i]);
                let want = (silu(a + 1e-5) - silu(a - 1e-5)) / 2e-5 * wide(&weights[i]);
                assert!((wide(&d[i]) - want).abs() <= 1e-5 * (1.0 + want.abs()), "{a}");
            }
            let (mut dg, mut dx) = (x.clone(), weights.clone());
            sigmoid_gate_backward(&mut dg, &y, &mut dx);
            for i in 0..n {
                let s = 1.0 / (1.0 + (-wide(&x[i])).exp());
                close(dx[i], wide(&weights[i]) * s, "gradient of what is gated");
                let want = wide(&weights[i]) * wide(&y[i]) * s * (1.0 - s);
                assert!((wide(&dg[i]) - want).abs() <= 1e-5 * (1.0 + want.abs()));
            }
            let mut d = weights.clone();
            let bounded: Vec<f32> = x.iter().map(|x| 2.0 * (x / 2.0).tanh()).collect();
            tanh_backward(&mut d, &bounded, 2.0);
            for i in 0..n {
                let slope = 1.0 - (wide(&x[i]) / 2.0).tanh().powi(2);
                assert!((wide(&d[i]) - wide(&weights[i]) * slope).abs() <= 1e-5);
            }
            let want: f64 = (0..n).map(|i| wide(&x[i]) * wide(&y[i])).sum();
            let size: f64 = (0..n).map(|i| (wide(&x[i]) * wide(&y[i])).abs()).sum();
            assert!((wide(&dot(&x, &y)) - want).abs() <= 1e-6 * size);
            let want: f64 = (0..n).map(|i| wide(&x[i]) * wide(&y[i]) * wide(&weights[i])).sum();
            let size: f64 =
                (0..n).map(|i| (wide(&x[i]) * wide(&y[i]) * wide(&weights[i])).abs()).sum();
            assert!((wide(&triple_dot(&x, &y, &weights)) - want).abs() <= 1e-6 * size);
        }
    }
}
