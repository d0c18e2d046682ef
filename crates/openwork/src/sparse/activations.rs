//! Activations: to how many bits a vector is rounded for products with codes in integers.

use std::sync::OnceLock;

/// The environment variable that chooses the bits of a vector's entries in integer products
/// with codes: `8` or `16`.
pub const ACTIVATIONS_VARIABLE: &str = "OPENWORK_ACTIVATIONS";

/// The bits to which integer products with codes round the entries of a vector, 8 or 16. An
/// unknown value of [`ACTIVATIONS_VARIABLE`] is an error here; products ignore it.
pub fn activations() -> Result<usize, String> {
    let text = std::env::var(ACTIVATIONS_VARIABLE).ok();
    Activations::parse(text.as_deref()).map(Activations::bits)
}

/// Bits of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activations {
    /// 8: half the products.
    Eight,
    /// 16: an entry changes by at most 2^-16 of the largest of its block.
    Sixteen,
}

impl Activations {
    pub const ALL: [Self; 2] = [Self::Eight, Self::Sixteen];
    const DEFAULT: Self = Self::Sixteen;

    /// The choice of [`ACTIVATIONS_VARIABLE`], or the default.
    pub fn chosen() -> Self {
        static CHOSEN: OnceLock<Activations> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let text = std::env::var(ACTIVATIONS_VARIABLE).ok();
            Self::parse(text.as_deref()).unwrap_or(Self::DEFAULT)
        })
    }

    fn parse(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text else { return Ok(Self::DEFAULT) };
        let named = Self::ALL.into_iter().find(|choice| choice.bits().to_string() == text);
        named.ok_or_else(|| {
            format!("{ACTIVATIONS_VARIABLE} is \"{text}\"; choose 8 or 16, or unset it")
        })
    }

    /// As a number.
    pub fn bits(self) -> usize {
        match self {
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }

    /// Planes of 8 bits.
    pub fn planes(self) -> usize {
        self.bits() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_widths_are_refused() {
        assert_eq!(Activations::parse(Some("8")), Ok(Activations::Eight));
        assert_eq!(Activations::parse(Some("16")), Ok(Activations::Sixteen));
        assert_eq!(Activations::parse(None), Ok(Activations::DEFAULT));
        let words = Activations::parse(Some("4")).unwrap_err();
        assert_eq!(words, "OPENWORK_ACTIVATIONS is \"4\"; choose 8 or 16, or unset it");
    }
}
