//! Shapes of tensors as text: `16,32`, or `q=16,32` where tensors have names.

use openwork::Pattern;
use std::str::FromStr;

/// The dims of a tensor, and its name if one was given.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedShape {
    name: Option<String>,
    dims: Vec<usize>,
}

impl NamedShape {
    /// The name, or `tensor`, and the dims.
    pub fn named(&self) -> (&str, &[usize]) {
        (self.name.as_deref().unwrap_or("tensor"), &self.dims)
    }

    /// Parses the shape of every tensor of a pattern. Members of a coupling need names. The
    /// error begins with the shape at fault.
    pub fn parse_all(texts: &[String], pattern: &Pattern) -> Result<Vec<Self>, String> {
        let shapes: Vec<Self> = texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let members = pattern.members();
        match (members.first(), shapes.iter().find(|shape| shape.name.is_none())) {
            (Some(first), Some(shape)) => {
                let dims: Vec<_> = shape.dims.iter().map(ToString::to_string).collect();
                let dims = dims.join(",");
                Err(format!(
                    "{dims}: the spec couples {}; name the tensor of each shape, as in `{first}={dims}`",
                    members.join(", "),
                ))
            }
            _ => Ok(shapes),
        }
    }
}

impl FromStr for NamedShape {
    type Err = String;

    /// `16,32`, `16x32`, `(16,32)`, `q=16,32`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: String| format!("{}: {why}; write 16,32 or q=16,32", short(text));
        let (name, dims) = match text.split_once('=') {
            Some((name, dims)) if !name.trim().is_empty() => (Some(name.trim().to_string()), dims),
            Some(_) => return Err(bad("the name is empty".to_string())),
            None => (None, text),
        };
        let dims = dims.trim();
        let inner = match (dims.strip_prefix('('), dims.strip_suffix(')')) {
            (Some(_), Some(_)) => &dims[1..dims.len() - 1],
            (None, None) => dims,
            _ => return Err(bad("unbalanced parenthesis".to_string())),
        };
        let inner = inner.trim().strip_suffix(',').unwrap_or(inner);
        let dims = inner
            .split([',', 'x'])
            .map(|dim| match dim.trim() {
                "" => Err(bad("a dimension is missing".to_string())),
                dim if !dim.chars().all(|c| c.is_ascii_digit()) => {
                    Err(bad(format!("`{}` is not a number", short(dim))))
                }
                dim => dim.parse().map_err(|_| bad(format!("{} is too large", short(dim)))),
            })
            .collect::<Result<Vec<usize>, String>>()?;
        Ok(Self { name, dims })
    }
}

/// The first 40 characters of the user's text.
fn short(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if text.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_may_be_written_in_several_ways() {
        let read = |text: &str| text.parse::<NamedShape>().unwrap();
        let dims = |text: &str| read(text).dims;
        for text in ["16,32", "16x32", "(16,32)", " ( 16 , 32 ) ", "16,32,"] {
            assert_eq!(dims(text), [16, 32], "{text}");
        }
        assert_eq!(dims("64"), [64]);
        let named = NamedShape { name: Some("q".to_string()), dims: vec![16, 32] };
        assert_eq!(read("q=16,32"), named);
    }

    #[test]
    fn a_bad_shape_says_what_is_wrong() {
        let words = |text: &str| text.parse::<NamedShape>().unwrap_err();
        let hint = "write 16,32 or q=16,32";
        assert_eq!(words("16,a"), format!("16,a: `a` is not a number; {hint}"));
        assert_eq!(words(""), format!(": a dimension is missing; {hint}"));
        assert_eq!(words("16,,2"), format!("16,,2: a dimension is missing; {hint}"));
        assert_eq!(words("(16,2"), format!("(16,2: unbalanced parenthesis; {hint}"));
        assert_eq!(words("-1,2"), format!("-1,2: `-1` is not a number; {hint}"));
        assert_eq!(words("=1,2"), format!("=1,2: the name is empty; {hint}"));
        assert!(words("99999999999999999999").contains("is too large"));
    }
}
