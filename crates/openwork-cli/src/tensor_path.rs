//! Where a tensor is: `FILE`, `FILE:tensor`, or `name=FILE:tensor`.

use std::path::{Path, PathBuf};

/// A file and, if given, the name of a tensor in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPath {
    /// The file.
    pub file: PathBuf,
    /// The tensor; if not given, the only one.
    pub tensor: Option<String>,
}

/// A [`TensorPath`] with a name of its own, if one was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What precedes the equals sign.
    pub name: Option<String>,
    /// What follows it.
    pub path: TensorPath,
}

impl TensorPath {
    /// Reads `FILE[:tensor]`. File names may have colons too: the shortest part
    /// before a colon that is a file wins, then the last colon.
    pub fn parse(text: &str) -> Self {
        Self::parse_with(text, Path::is_file)
    }

    fn parse_with(text: &str, is_file: impl Fn(&Path) -> bool) -> Self {
        let whole = || Self { file: PathBuf::from(text), tensor: None };
        if is_file(Path::new(text)) {
            return whole();
        }
        // One letter before a colon is a drive, not a file.
        let mut colons = text.match_indices(':').map(|(at, _)| at).filter(|&at| at > 1);
        let at = colons
            .clone()
            .find(|&at| is_file(Path::new(&text[..at])))
            .or_else(|| colons.next_back());
        match at {
            Some(at) if at + 1 < text.len() => {
                Self { file: PathBuf::from(&text[..at]), tensor: Some(text[at + 1..].to_string()) }
            }
            Some(at) => Self { file: PathBuf::from(&text[..at]), tensor: None },
            None => whole(),
        }
    }
}

impl Named {
    /// Reads `[name=]FILE[:tensor]`; a name has letters, digits, `_`, `-` and `.`.
    pub fn parse(text: &str) -> Self {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        match text.split_once('=') {
            Some((name, rest))
                if !name.is_empty() && name.chars().all(plain) && !Path::new(text).is_file() =>
            {
                Self { name: Some(name.to_string()), path: TensorPath::parse(rest) }
            }
            _ => Self { name: None, path: TensorPath::parse(text) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, files: &[&str]) -> (String, Option<String>) {
        let path =
            TensorPath::parse_with(text, |path| files.iter().any(|file| Path::new(file) == path));
        (path.file.display().to_string(), path.tensor)
    }

    #[test]
    fn the_shortest_file_before_a_colon_wins() {
        let (w, name) = ("w.safetensors".to_string(), |n: &str| Some(n.to_string()));
        assert_eq!(parse("w.safetensors", &[]), (w.clone(), None));
        assert_eq!(parse("w.safetensors:a:b", &["w.safetensors"]), (w.clone(), name("a:b")));
        assert_eq!(parse("w.safetensors:a", &[]), (w.clone(), name("a")));
        assert_eq!(parse("w.safetensors:", &[]), (w, None));
        assert_eq!(parse("a:b:c", &["a:b"]), ("a:b".to_string(), name("c")));
        assert_eq!(parse("a:b:c", &["a:b:c"]), ("a:b:c".to_string(), None));
        assert_eq!(parse(r"C:\w:x", &[]), (r"C:\w".to_string(), name("x")));
    }

    #[test]
    fn a_name_comes_before_an_equals_sign() {
        let named = Named::parse("q=w.safetensors:x");
        assert_eq!(named.name.as_deref(), Some("q"));
        assert_eq!(named.path.tensor.as_deref(), Some("x"));
        assert_eq!(Named::parse("dir/a=b").name, None);
        assert_eq!(Named::parse("=b").name, None);
    }
}
