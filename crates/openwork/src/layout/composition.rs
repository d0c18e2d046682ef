//! Composition: one layout after another.
//!
//! Read `A`, coalesced to modes `s_0 .. s_m` with strides `d_0 .. d_m`, as a
//! number system: the index `i` has digits `i mod s_0`, `i / s_0 mod s_1` and
//! so on, the last digit without bound, and `A(i)` is the sum of digits times
//! strides. A leaf `n:r` of `B` counts in steps of `r`. It has a layout if
//! its digits are those of independent counters, one for each mode of `A`
//! that it runs through: [`digits`] finds these or refuses.
//!
//! Leaves are added. `A` of a sum is the sum of the `A`s if no digit carries,
//! that is if in every mode but the last the largest digits of all leaves
//! add up to less than `s_k`. And *only* if: let the leaves reach `s_k` or
//! more together. Each alone stays below `s_k`, so adding them one by one,
//! other digits zero, some partial sum carries exactly 1 into mode `k+1`
//! and no further (`s_{k+1} >= 2`), which changes the offset by `d_{k+1} - s_k*d_k`. That is
//! not zero, as `A` is coalesced. So the check refuses exactly the sums that
//! no layout can follow.

use super::coalesce::{follows, merged};
use super::error::clip;
use super::{IntTuple, Layout, LayoutError, Tiler};

/// A counter that runs through one mode of `A`.
struct Digit {
    /// The mode of coalesced `A`.
    mode: usize,
    /// How many values it takes.
    count: i64,
    /// How far apart they are, in units of the mode.
    step: i64,
}

impl Layout {
    /// `R` with `R(c) = A(B(c))` for every coordinate `c` of `B`; `A` is
    /// `self`. The shape of `B` is compatible with that of `R`. `B` may run
    /// past the end of `A`, whose last leaf then extends.
    ///
    /// Refused where no layout fits, or where a leaf of `B` steps across a
    /// mode of `A` unevenly.
    ///
    /// ```
    /// use openwork::Layout;
    /// let a: Layout = "(6,2):(8,2)".parse()?;
    /// let b: Layout = "(4,3):(3,1)".parse()?;
    /// assert_eq!(a.composition(&b)?.to_string(), "((2,2),3):((24,2),8)");
    ///
    /// // B(7) = 3 + 2 = 5 carries past the first mode of A, and A(5) = 101;
    /// // digit by digit one would get 3 + 2.
    /// let a: Layout = "(4,3):(1,100)".parse()?;
    /// let b: Layout = "(4,2):(1,2)".parse()?;
    /// assert!(a.composition(&b).is_err());
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn composition(&self, b: &Layout) -> Result<Layout, LayoutError> {
        self.refuse_negative("composition")?;
        b.refuse_negative("composition")?;
        if self.flat().is_empty() && b.cosize() > 1 {
            // No leaf that could extend.
            return Err(LayoutError::coordinate(b.cosize() - 1, self.shape()));
        }
        let a = extended(self);
        let mut reach = vec![0_i128; a.len()];
        let result = compose(&a, b.shape(), b.stride(), &mut reach)?;
        // The last mode has no bound.
        for (mode, (&(size, _), &reach)) in a.iter().zip(&reach).enumerate().take(a.len() - 1) {
            if reach >= i128::from(size) {
                return Err(LayoutError::Carry {
                    b: clip(b),
                    a: clip(shown(&a)),
                    mode,
                    size,
                    reach,
                });
            }
        }
        Ok(result)
    }

    /// Composition mode by mode: each layout of the tiler with its mode.
    pub fn composition_tiler(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        tiler.by_mode(self, &Layout::composition)
    }
}

/// The modes of coalesced `a`, such that they give `a(i)` also for `i >=
/// size`: a last leaf of size 1 stays, since it is the one that extends.
/// There is at least one mode, and all but the last have two values or more.
fn extended(a: &Layout) -> Vec<(i64, i64)> {
    let flat = a.flat();
    let last = flat.last().copied().unwrap_or((1, 0));
    let mut modes = merged(flat);
    if last.0 == 1 && !modes.last().is_some_and(|&mode| follows(mode, last.1)) {
        modes.push(last);
    }
    modes
}

fn shown(a: &[(i64, i64)]) -> String {
    Layout::from_flat(a).map_or_else(|error| error.to_string(), |a| a.to_string())
}

/// Composes every leaf of `B` with `a` and adds its largest digits to `reach`.
fn compose(
    a: &[(i64, i64)],
    shape: &IntTuple,
    stride: &IntTuple,
    reach: &mut [i128],
) -> Result<Layout, LayoutError> {
    match (shape, stride) {
        (IntTuple::Tuple(shapes), IntTuple::Tuple(strides)) => {
            let modes: Result<Vec<_>, _> =
                shapes.iter().zip(strides).map(|(s, d)| compose(a, s, d, reach)).collect();
            Layout::from_modes(modes?)
        }
        // n:0 -> n:0 and 1:r -> 1:0.
        (&IntTuple::Int(n), &IntTuple::Int(r)) if n == 1 || r == 0 => Layout::from_flat(&[(n, 0)]),
        (&IntTuple::Int(n), &IntTuple::Int(r)) => {
            let mut flat = Vec::new();
            for digit in digits(a, n, r)? {
                reach[digit.mode] += i128::from(digit.count - 1) * i128::from(digit.step);
                let stride = digit.step.checked_mul(a[digit.mode].1).ok_or_else(|| {
                    LayoutError::overflow(format_args!(
                        "the composition of {} and {n}:{r}",
                        shown(a)
                    ))
                })?;
                flat.push((digit.count, stride));
            }
            Layout::from_flat(&flat)
        }
        _ => unreachable!("shape and stride of a layout are congruent"),
    }
}

/// The counters of the leaf `n:r` with `n > 1` and `r > 0`, by mode of `a`.
fn digits(a: &[(i64, i64)], mut n: i64, mut r: i64) -> Result<Vec<Digit>, LayoutError> {
    let (asked_n, asked_r) = (n, r);
    let mut result = Vec::new();
    for (mode, &(s, _)) in a[..a.len() - 1].iter().enumerate() {
        let uneven = |reason: String| LayoutError::Uneven {
            leaf: format!("{asked_n}:{asked_r}"),
            mode,
            size: s,
            a: clip(shown(a)),
            reason,
        };
        if r % s == 0 {
            r /= s;
            continue;
        }
        if r > s {
            return Err(uneven(format!("its step {r} there is not a multiple of {s}")));
        }
        // Values of the digit before it would carry: ceil(s / r).
        let values = s / r + i64::from(s % r != 0);
        if s % r != 0 && n > values {
            return Err(uneven(format!("its step {r} there does not divide {s}")));
        }
        let count = values.min(n);
        if n % count != 0 {
            return Err(uneven(format!("{n} entries do not fill rows of {count}")));
        }
        if count > 1 {
            result.push(Digit { mode, count, step: r });
        }
        n /= count;
        r = 1;
        if n == 1 {
            return Ok(result);
        }
    }
    result.push(Digit { mode: a.len() - 1, count: n, step: r });
    Ok(result)
}
