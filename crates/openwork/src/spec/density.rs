//! Exact densities.

use super::{Side, Spec, Tensor};
use std::fmt;

/// An exact fraction in lowest terms; its denominator is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// The numerator.
    pub numerator: u128,
    /// The denominator.
    pub denominator: u128,
}

impl Ratio {
    const ZERO: Self = Self { numerator: 0, denominator: 1 };
    const ONE: Self = Self { numerator: 1, denominator: 1 };

    fn new(numerator: u128, denominator: u128) -> Self {
        let (mut a, mut b) = (numerator, denominator);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        Self { numerator: numerator / a, denominator: denominator / a }
    }

    fn times(self, other: Self) -> Option<Self> {
        // Reduced crosswise first, so that only a result that is too large is refused.
        let a = Self::new(self.numerator, other.denominator);
        let b = Self::new(other.numerator, self.denominator);
        let numerator = a.numerator.checked_mul(b.numerator)?;
        Some(Self::new(numerator, a.denominator.checked_mul(b.denominator)?))
    }

    fn plus(self, other: Self) -> Option<Self> {
        let a = self.numerator.checked_mul(other.denominator)?;
        let b = other.numerator.checked_mul(self.denominator)?;
        Some(Self::new(a.checked_add(b)?, self.denominator.checked_mul(other.denominator)?))
    }

    /// The nearest number.
    pub fn value(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

impl Spec {
    /// The share of the domain that is kept, padding included:
    ///
    /// ```text
    /// d = k/m d(then) + (1 - k/m) d(else)
    /// ```
    ///
    /// for `k` of `m` blocks kept; d(then) is 1 and d(else) is 0 if the level is not there.
    pub fn density(&self) -> f64 {
        self.density_ratio().map_or_else(|| self.approximate(), Ratio::value)
    }

    /// The share of kept blocks of the outermost level, `keep / blocks_per_scope`.
    pub fn block_density(&self) -> f64 {
        self.keep as f64 / self.blocks_per_scope as f64
    }

    /// The same as [`Spec::density`], exact; `None` if the numbers exceed 128 bits.
    ///
    /// ```
    /// let text = "block (16,16) scope (1,_) keep 50% else 2:4";
    /// let spec = text.parse::<openwork::Pattern>().unwrap().bind(&[32, 64]).unwrap();
    /// assert_eq!(spec.density_ratio().unwrap().to_string(), "3/4");
    /// ```
    pub fn density_ratio(&self) -> Option<Ratio> {
        let blocks = self.blocks_per_scope as u128;
        let side = |side: Side, share: usize| {
            Ratio::new(share as u128, blocks).times(self.inner_density(side)?)
        };
        side(Side::Kept, self.keep)?.plus(side(Side::Dropped, self.blocks_per_scope - self.keep)?)
    }

    /// The share of a side's weights that stay.
    fn inner_density(&self, side: Side) -> Option<Ratio> {
        let Some(level) = self.level(side) else {
            return Some(side.pick(Ratio::ONE, Ratio::ZERO));
        };
        let tensor = &level.spec().tensors[0];
        let (all, domain) = sizes(tensor);
        // What is outside the domain of the inner level stays.
        let inside =
            Ratio::new(domain as u128, all as u128).times(level.spec().density_ratio()?)?;
        inside.plus(Ratio::new((all - domain) as u128, all as u128))
    }

    fn approximate(&self) -> f64 {
        let share = self.block_density();
        let side = |side: Side| {
            self.level(side).map_or(side.pick(1.0, 0.0), |level| {
                let (all, domain) = sizes(&level.spec().tensors[0]);
                let domain = domain as f64 / all as f64;
                1.0 - domain + domain * level.spec().approximate()
            })
        };
        share * side(Side::Kept) + (1.0 - share) * side(Side::Dropped)
    }
}

/// The number of elements, and of those in the domain.
fn sizes(tensor: &Tensor) -> (usize, usize) {
    (tensor.size, tensor.domain_size())
}
