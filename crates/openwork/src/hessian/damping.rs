//! Damping: what is added to the diagonal of H before it is inverted.

use std::fmt;
use std::str::FromStr;

/// What is added to the diagonal of H.
///
/// ```text
/// diag:L   H + L diag(H)           every column by its own scale
/// mean:L   H + L mean(diag H) I    every column alike
/// abs:A    H + A I
/// auto     diag:L, L chosen by the error on held-out samples
/// ```
///
/// Text and value round-trip:
///
/// ```
/// use openwork::hessian::Damping;
/// let damping: Damping = "diag:0.1".parse().unwrap();
/// assert_eq!(damping, Damping::Diag(0.1));
/// assert_eq!(damping.to_string(), "diag:0.1");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Damping {
    /// `H + L diag(H)`: the same share of every column's own curvature.
    Diag(f64),
    /// `H + L mean(diag H) I`.
    Mean(f64),
    /// `H + A I`.
    Absolute(f64),
    /// Chosen from [`super::AUTO_SHARES`] by [`super::choose`].
    #[default]
    Auto,
}

/// Invalid damping text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("invalid damping `{text}`: {why}; write diag:0.1, mean:0.01, abs:1e-3 or auto")]
pub struct DampingError {
    text: String,
    why: &'static str,
}

impl FromStr for Damping {
    type Err = DampingError;

    fn from_str(text: &str) -> Result<Self, DampingError> {
        let wrong = |why| DampingError { text: text.to_string(), why };
        let trimmed = text.trim();
        if trimmed == "auto" {
            return Ok(Self::Auto);
        }
        let (kind, number) = trimmed.split_once(':').ok_or_else(|| wrong("a colon is missing"))?;
        let number: f64 = number.trim().parse().map_err(|_| wrong("no number after the colon"))?;
        if !number.is_finite() || number < 0.0 {
            return Err(wrong("the number must be finite and not negative"));
        }
        // Adding +0 turns -0 into 0, so that text and value round-trip.
        let number = number + 0.0;
        match kind.trim() {
            "diag" => Ok(Self::Diag(number)),
            "mean" => Ok(Self::Mean(number)),
            "abs" => Ok(Self::Absolute(number)),
            _ => Err(wrong("unknown kind before the colon")),
        }
    }
}

impl fmt::Display for Damping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |x: f64| {
            // `{}` never uses an exponent; 1e-300 would fill a screen.
            if x != 0.0 && !(1e-4..1e6).contains(&x) { format!("{x:e}") } else { x.to_string() }
        };
        match *self {
            Self::Diag(x) => write!(f, "diag:{}", number(x)),
            Self::Mean(x) => write!(f, "mean:{}", number(x)),
            Self::Absolute(x) => write!(f, "abs:{}", number(x)),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Damping {
    /// What is added to a diagonal entry `h_jj` where the mean diagonal is
    /// `mean`; [`Damping::Auto`] adds nothing, as it must be resolved first.
    pub(super) fn added(self, h_jj: f64, mean: f64) -> f64 {
        match self {
            Self::Diag(share) => share * h_jj,
            Self::Mean(share) => share * mean,
            Self::Absolute(amount) => amount,
            Self::Auto => 0.0,
        }
    }

    /// The number after the colon, for comparing dampings of one kind.
    pub(crate) fn strength(self) -> f64 {
        match self {
            Self::Diag(x) | Self::Mean(x) | Self::Absolute(x) => x,
            Self::Auto => 0.0,
        }
    }

    /// The same kind of damping with ten times the amount, or `None` beyond
    /// ten times the (mean) diagonal. From zero the first step is `FIRST`.
    pub(super) fn raised(self, mean: f64) -> Option<Self> {
        /// Clears the rounding of an f64 factorization of 10,000 columns.
        const FIRST: f64 = 1e-10;
        /// Beyond this H has no effect: every column would count for itself.
        const LIMIT: f64 = 10.0;
        let up = |x: f64| {
            let next = if x < FIRST { FIRST } else { 10.0 * x };
            // A little slack, for 0.1 * 10 * 10 rounds up.
            (next <= LIMIT * 1.000001).then_some(next)
        };
        match self {
            Self::Diag(x) => up(x).map(Self::Diag),
            Self::Mean(x) => up(x).map(Self::Mean),
            Self::Absolute(x) => up(x / mean).map(|x| Self::Absolute(x * mean)),
            Self::Auto => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_value_round_trip(kind in 0..3, x in 0.0..f64::MAX, e in -300i32..1) {
            let x = x * 10f64.powi(e);
            let damping = [Damping::Diag(x), Damping::Mean(x), Damping::Absolute(x)][kind as usize];
            prop_assert_eq!(damping.to_string().parse::<Damping>().unwrap(), damping);
        }
    }

    #[test]
    fn the_printed_text_is_short() {
        let text = |t: &str| t.parse::<Damping>().unwrap().to_string();
        assert_eq!(text("auto"), "auto");
        assert_eq!(text(" diag : .30 "), "diag:0.3");
        assert_eq!(text("mean:0.0001"), "mean:0.0001");
        assert_eq!(text("abs:1e-30"), "abs:1e-30");
        assert_eq!(text("abs:-0"), "abs:0");
    }

    #[test]
    fn bad_text_is_answered_in_words() {
        for (text, why) in [
            ("0.1", "a colon is missing"),
            ("", "a colon is missing"),
            ("diag:", "no number after the colon"),
            ("diag:x", "no number after the colon"),
            ("diag:-1", "the number must be finite and not negative"),
            ("diag:inf", "the number must be finite and not negative"),
            ("diag:NaN", "the number must be finite and not negative"),
            ("rel:1", "unknown kind before the colon"),
        ] {
            let error = text.parse::<Damping>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "invalid damping `{text}`: {why}; \
                     write diag:0.1, mean:0.01, abs:1e-3 or auto"
                )
            );
        }
    }

    #[test]
    fn raising_stops_at_ten_times_the_diagonal() {
        assert_eq!(Damping::Diag(1.0).raised(5.0), Some(Damping::Diag(10.0)));
        assert_eq!(Damping::Diag(10.0).raised(5.0), None);
        assert_eq!(Damping::Absolute(5.0).raised(5.0), Some(Damping::Absolute(50.0)));
        assert_eq!(Damping::Absolute(50.0).raised(5.0), None);
    }
}
