//! Evaluates the symbols and expressions of a pattern for one tensor.

use super::error::SpecError;
use super::pattern::{At, Atom, Expr};

/// The largest number, written or computed.
const MAX_NUMBER: usize = i64::MAX as usize;

/// A value, or an error in the pattern.
pub(crate) type Bound<T> = Result<T, SpecError>;

/// The values of symbols, and the text that errors point into.
pub(crate) struct Env<'a> {
    pub text: &'a str,
    /// Where the text of the level ends.
    pub end: usize,
    /// The tensor's dims, then the axes named by the view.
    pub names: Vec<(String, usize)>,
    /// Whether the view is a composition, whose axes may be nested without being written so.
    pub composed: bool,
}

impl Env<'_> {
    /// An error at byte `at`.
    pub fn error(
        &self,
        at: usize,
        what: impl Into<String>,
        detail: impl Into<String>,
    ) -> SpecError {
        SpecError::at(self.text, at, what, detail)
    }

    fn atom(&self, atom: &Atom, whole: Option<usize>, at: usize) -> Bound<usize> {
        match atom {
            Atom::Int(n) => Ok(usize::try_from(*n).unwrap_or(usize::MAX)),
            Atom::Whole => whole.ok_or_else(|| {
                self.error(
                    at,
                    "`_` has no dimension to refer to here",
                    "write a number or a symbol",
                )
            }),
            Atom::Name(name) => self
                .names
                .iter()
                .find(|(known, _)| known == name)
                .map(|&(_, value)| value)
                .ok_or_else(|| {
                    let known: Vec<_> = self.names.iter().map(|(name, _)| name.as_str()).collect();
                    let detail = match known.as_slice() {
                        [] => {
                            "this tensor's dims have no names; give them with `on (..)`".to_string()
                        }
                        known => format!(
                            "this tensor has {}; name its dims with `on (..)`",
                            known.join(", ")
                        ),
                    };
                    self.error(at, format!("unknown symbol `{name}`"), detail)
                }),
        }
    }

    /// The value of an expression; `whole` is the value of `_`.
    pub fn eval(&self, expr: &Expr, whole: Option<usize>) -> Bound<usize> {
        let at = expr.at.0;
        let mut value = self.atom(&expr.first, whole, at)?;
        for (multiplies, atom) in &expr.rest {
            let factor = self.atom(atom, whole, at)?;
            value = if *multiplies {
                value.checked_mul(factor).filter(|&v| v <= MAX_NUMBER).ok_or_else(|| {
                    self.error(at, format!("{expr} is too large"), format!("at most {MAX_NUMBER}"))
                })?
            } else if factor == 0 || value % factor != 0 {
                let detail = format!("{value} is not a multiple of {factor}");
                return Err(self.error(at, format!("{expr} is not a whole number"), detail));
            } else {
                value / factor
            };
        }
        Ok(value)
    }
}

/// The names of a tensor's dims: those given with `on`, or `default`, or the usual ones.
pub(crate) fn dim_names(
    text: &str,
    on: Option<&(Vec<String>, At)>,
    default: Option<&[String]>,
    dims: &[usize],
) -> Bound<Vec<String>> {
    match on {
        Some((names, at)) if names.len() != dims.len() => {
            let what = format!("`on` names {} dims, the tensor has {}", names.len(), dims.len());
            Err(SpecError::at(text, at.0, what, format!("the tensor is {}", shape_text(dims))))
        }
        Some((names, _)) => Ok(names.clone()),
        None => Ok(default.map_or_else(|| default_names(dims.len()), <[String]>::to_vec)),
    }
}

/// The names of dims that nothing names.
pub(crate) fn default_names(rank: usize) -> Vec<String> {
    let names: &[&str] = match rank {
        1 => &["K"],
        2 => &["M", "K"],
        3 => &["O", "I", "W"],
        4 => &["O", "I", "H", "W"],
        5 => &["O", "I", "D", "H", "W"],
        _ => return (0..rank).map(|axis| format!("D{axis}")).collect(),
    };
    names.iter().map(ToString::to_string).collect()
}

/// `(2,3)`.
pub(crate) fn shape_text(dims: &[usize]) -> String {
    let dims: Vec<_> = dims.iter().map(ToString::to_string).collect();
    format!("({})", dims.join(","))
}
