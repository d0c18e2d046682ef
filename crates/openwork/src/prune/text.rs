//! Parses method text such as `s-obs[damping=diag:0.3,scoring=joint]+swap`.

use super::{METHODS, MODIFIERS, MethodInfo, Modifier, Needs, Pruner};
use crate::hessian::Damping;
use crate::sparse::Encoding;
use crate::spec::distance;
use std::fmt;
use std::str::FromStr;

/// An option of a method, for help and checks.
#[derive(Debug)]
pub struct OptionInfo {
    /// Its name.
    pub name: &'static str,
    /// The values it takes, for help: `a whole number`, `joint | independent`.
    pub values: &'static str,
    /// Its default.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
}

/// Every method that uses H takes `damping`.
pub const DAMPING: OptionInfo = OptionInfo {
    name: "damping",
    values: "diag:L | mean:L | abs:A | auto",
    default: "auto",
    help: "added to the diagonal of H: L times each entry (diag), L times their mean (mean), or A (abs); auto chooses L of diag by the error on held-out samples",
};

/// The options given to one method or modifier in brackets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    given: Vec<(String, String)>,
}

impl Settings {
    /// The options in the order given, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.given.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A name with these options in brackets, as [`parse_chain`] reads it.
    pub fn display(&self, name: &str) -> String {
        let options: Vec<_> = self.iter().map(|(name, value)| format!("{name}={value}")).collect();
        match options.is_empty() {
            true => name.to_string(),
            false => format!("{name}[{}]", options.join(",")),
        }
    }

    /// The text given for an option.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A whole number of at least `least`, or `default`.
    pub fn count(&self, name: &str, default: usize, least: usize) -> Result<usize, String> {
        let Some(text) = self.get(name) else { return Ok(default) };
        match text.parse() {
            Ok(n) if n >= least => Ok(n),
            _ => Err(format!("{name}={text}: expected a whole number of at least {least}")),
        }
    }

    /// A finite number above zero, or `default`.
    pub fn number(&self, name: &str, default: f64) -> Result<f64, String> {
        let Some(text) = self.get(name) else { return Ok(default) };
        match text.parse() {
            Ok(x) if x > 0.0 && f64::is_finite(x) => Ok(x),
            _ => Err(format!("{name}={text}: expected a number greater than 0")),
        }
    }

    /// One of several words, or `default`.
    pub fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
        default: T,
    ) -> Result<T, String> {
        let Some(text) = self.get(name) else { return Ok(default) };
        choices.iter().find(|(word, _)| *word == text).map(|&(_, value)| value).ok_or_else(|| {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            format!("{name}={text}: expected {}", words.join(" or "))
        })
    }
}

/// A base method with its modifiers and options, ready to prune.
pub struct Method {
    text: String,
    pub(super) damping: Damping,
    pub(super) base: Box<dyn Pruner>,
    pub(super) modifiers: Vec<Box<dyn Modifier>>,
    /// The last modifier, if it rounds weights.
    pub(super) rounding: Option<Box<dyn Modifier>>,
}

impl Method {
    /// The input statistics it needs; every modifier needs H.
    pub fn needs(&self) -> Needs {
        match self.has_modifiers() {
            true => Needs::Hessian,
            false => self.base.needs(),
        }
    }

    pub(super) fn has_modifiers(&self) -> bool {
        !self.modifiers.is_empty() || self.rounding.is_some()
    }

    /// How the weights are to be packed, if the method rounds them to codes.
    pub fn encoding(&self) -> Option<Encoding> {
        self.rounding.as_ref()?.encoding()
    }

    /// The requested damping.
    pub fn damping(&self) -> Damping {
        self.damping
    }

    /// The same method with a damping, as [`super::damping`] resolves it; its text is
    /// unchanged.
    pub fn with_damping(mut self, damping: Damping) -> Self {
        self.damping = damping;
        self
    }

    /// Whether rows that share no scope may be pruned separately with about the same
    /// result. False for methods whose stopping rule looks at all rows.
    pub fn by_rows(&self) -> bool {
        self.base.by_rows()
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method({})", self.text)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Invalid method text: an unknown method or modifier, or a bad option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("method `{text}`: {why}")]
pub struct MethodError {
    text: String,
    why: String,
}

/// The longest method text accepted, in bytes.
const MAX_TEXT: usize = 1024;

impl FromStr for Method {
    type Err = MethodError;

    fn from_str(text: &str) -> Result<Self, MethodError> {
        let shown: String = text.chars().take(80).collect();
        let wrong = |why: String| MethodError { text: shown.clone(), why };
        let mut damping: Option<Damping> = None;
        let mut base: Option<(Box<dyn Pruner>, Damping)> = None;
        let mut modifiers: Vec<Box<dyn Modifier>> = Vec::new();
        let mut rounding: Option<Box<dyn Modifier>> = None;
        let mut printed = Vec::new();
        for (i, (name, settings)) in parse_chain(text).map_err(&wrong)?.into_iter().enumerate() {
            let table = if i == 0 { METHODS } else { MODIFIERS };
            let method = find(table, &name, i == 0).map_err(&wrong)?;
            for (option, value) in &settings.given {
                if option == "damping" {
                    let asked: Damping =
                        value.parse().map_err(|error| wrong(format!("{error}")))?;
                    if damping.is_some_and(|before| before != asked) {
                        return Err(wrong(
                            "damping is given twice with different values; a method and its modifiers share one H".to_string(),
                        ));
                    }
                    damping = Some(asked);
                } else if !method.options.iter().any(|known| known.name == option) {
                    return Err(wrong(unknown_option(method, option)));
                }
            }
            if rounding.is_some() {
                return Err(wrong(format!(
                    "`{name}` would change weights that are rounded; write the modifier that rounds them last"
                )));
            }
            match method.build {
                Build::Base(build) => {
                    base = Some((build(&settings).map_err(&wrong)?, method.damping));
                }
                Build::Modifier(build) => {
                    let modifier = build(&settings).map_err(&wrong)?;
                    match modifier.encoding() {
                        Some(_) => rounding = Some(modifier),
                        None => modifiers.push(modifier),
                    }
                    // A fit to all columns follows the samples more closely than the base
                    // method, so the modifier's default damping applies.
                    base = base.map(|(base, _)| (base, method.damping));
                }
            }
            printed.push(settings.display(method.name));
        }
        let (base, usual) = base.ok_or_else(|| wrong("expected a method".to_string()))?;
        let (text, damping) = (printed.join("+"), damping.unwrap_or(usual));
        Ok(Self { text, damping, base, modifiers, rounding })
    }
}

/// Splits `a[x=1]+b` into names and their options.
///
/// ```
/// let chain = openwork::prune::parse_chain("blocks[epochs=2]+model").unwrap();
/// assert_eq!(chain[0].0, "blocks");
/// assert_eq!(chain[0].1.get("epochs"), Some("2"));
/// assert_eq!(chain[1].1.display(&chain[1].0), "model");
/// ```
pub fn parse_chain(text: &str) -> Result<Vec<(String, Settings)>, String> {
    if text.len() > MAX_TEXT {
        return Err(format!("the text exceeds the limit of {MAX_TEXT} bytes"));
    }
    split_outside_brackets(text, '+')?.into_iter().map(settings).collect()
}

/// The constructor of a table row.
pub enum Build {
    /// Of a base method.
    Base(fn(&Settings) -> Result<Box<dyn Pruner>, String>),
    /// Of a modifier.
    Modifier(fn(&Settings) -> Result<Box<dyn Modifier>, String>),
}

/// The row of a table by name, in any case.
fn find<'t>(table: &'t [MethodInfo], name: &str, base: bool) -> Result<&'t MethodInfo, String> {
    if let Some(method) = table.iter().find(|method| method.name.eq_ignore_ascii_case(name)) {
        return Ok(method);
    }
    let names: Vec<_> = table.iter().map(|method| method.name).collect();
    let kind = if base { "method" } else { "modifier" };
    Err(format!(
        "there is no {kind} `{name}`; {}choose one of {}",
        hint(name, &names),
        names.join(", ")
    ))
}

fn unknown_option(method: &MethodInfo, option: &str) -> String {
    let mut names: Vec<_> = method.options.iter().map(|known| known.name).collect();
    names.push("damping");
    let (name, hint) = (method.name, hint(option, &names));
    format!("{name} has no option `{option}`; {hint}its options are {}", names.join(", "))
}

/// The nearest of some names as a question, if one is near.
pub fn hint(name: &str, names: &[&str]) -> String {
    let name = name.to_ascii_lowercase();
    let near = names.iter().map(|known| (distance(&name, known), known)).min();
    match near {
        Some((edits, known)) if edits <= 3 => format!("did you mean `{known}`? "),
        _ => String::new(),
    }
}

/// Splits `name[a=1,b=2]` into the name and its options.
fn settings(part: &str) -> Result<(String, Settings), String> {
    let part = part.trim();
    let Some((name, rest)) = part.split_once('[') else {
        return Ok((part.to_string(), Settings::default()));
    };
    let inner = rest.strip_suffix(']').ok_or("unclosed bracket; write name[option=value]")?;
    let mut given: Vec<(String, String)> = Vec::new();
    for option in inner.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| format!("`{option}` is not an option; write name=value"))?;
        let (key, value) = (key.trim().to_string(), value.trim().to_string());
        if given.iter().any(|(known, _)| *known == key) {
            return Err(format!("option `{key}` is given twice"));
        }
        given.push((key, value));
    }
    Ok((name.trim().to_string(), Settings { given }))
}

/// Splits a list of methods at the commas outside brackets.
///
/// ```
/// use openwork::prune::split_list;
/// assert_eq!(split_list("wanda,s-obs[panel=64,damping=auto]").unwrap(), ["wanda", "s-obs[panel=64,damping=auto]"]);
/// ```
pub fn split_list(text: &str) -> Result<Vec<&str>, MethodError> {
    split_outside_brackets(text, ',')
        .map_err(|why| MethodError { text: text.chars().take(80).collect(), why })
}

fn split_outside_brackets(text: &str, at: char) -> Result<Vec<&str>, String> {
    let (mut depth, mut start, mut parts) = (0usize, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("closing bracket without an opening one")?,
            c if c == at && depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err("unclosed bracket; write name[option=value]".to_string());
    }
    parts.push(text[start..].trim());
    Ok(parts)
}
