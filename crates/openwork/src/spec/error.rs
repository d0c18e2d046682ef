//! Errors in patterns, with a caret under the text at fault.

use std::fmt;

/// The maximum number of characters that an error shows on either side of the caret.
const SHOWN: usize = 60;
/// The maximum number of characters of each part of an error.
const MOST: usize = 320;

/// A pattern that cannot be parsed, or that does not fit the tensors it is bound to: what
/// was asked, what was found, where, and what to do.
///
/// ```
/// let error = "scope (1,4) keep 2".parse::<openwork::Pattern>().unwrap().bind(&[4, 10]).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "scope (1,4) does not divide the grid of blocks\n  \
///        scope (1,4) keep 2\n           \
///                 ^ axis 1 has 10 entries, not a multiple of 4; pad it or narrow the domain"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    what: String,
    detail: String,
    /// The line of text at fault, the column of the caret in it, and the byte of the whole
    /// text that the caret stands under.
    place: Option<(String, usize, usize)>,
}

impl SpecError {
    /// An error at byte `at` of `text`; `detail` is shown beside the caret.
    pub(crate) fn at(
        text: &str,
        at: usize,
        what: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { place: Some(excerpt(text, at)), ..Self::whole(what, detail) }
    }

    /// An error without a position in the text, such as one in the tensors.
    pub(crate) fn whole(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { what: cut(what.into()), detail: cut(detail.into()), place: None }
    }

    /// The same error in a level inside another, whose tensor is what the outer level leaves.
    pub(crate) fn inside(mut self, word: &str, shape: &str) -> Self {
        if !self.what.contains(" (after `") {
            self.what = cut(format!("{} (after `{word}`, on a tensor of {shape})", self.what));
        }
        self
    }

    /// What is wrong, in a few words.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What was found, and what to do about it.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The line of text at fault and the column of the caret in it, in characters.
    pub fn line(&self) -> Option<(&str, usize)> {
        self.place.as_ref().map(|(line, column, _)| (line.as_str(), *column))
    }

    /// The byte of `text` that the caret stands under; `None` if there is no caret, or if it
    /// stands under another text, such as that of an expanded preset.
    ///
    /// ```
    /// let text = "scope (1,4) keep two";
    /// let error = text.parse::<openwork::Pattern>().unwrap().bind(&[4, 8]).unwrap_err();
    /// assert_eq!(error.position_in(text), Some(17));
    /// assert_eq!(error.position_in("2:4"), None);
    /// ```
    pub fn position_in(&self, text: &str) -> Option<usize> {
        let (line, column, at) = self.place.as_ref()?;
        let here = *at <= text.len() && excerpt(text, *at) == (line.clone(), *column, *at);
        here.then_some(*at)
    }

    /// The error in one line, without the text.
    pub fn summary(&self) -> String {
        format!("{}: {}", self.what, self.detail)
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            None => write!(f, "{}: {}", self.what, self.detail),
            Some((line, column, _)) => {
                write!(f, "{}\n  {line}\n  {:column$}^ {}", self.what, "", self.detail)
            }
        }
    }
}

impl std::error::Error for SpecError {}

/// At most [`MOST`] characters of `text`.
fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MOST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The line around byte `at`, cut to a readable length, and the column of that
/// byte within it, in characters; and the byte, moved to the start of its character.
fn excerpt(text: &str, at: usize) -> (String, usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let start = text[..at].rfind('\n').map_or(0, |n| n + 1);
    let end = text[at..].find('\n').map_or(text.len(), |n| at + n);
    // Tabs and other control characters would move the caret.
    let plain = |part: &str| -> Vec<char> {
        part.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    };
    // Only the characters near the caret are processed: a line may be a megabyte.
    let mut from = at.saturating_sub(4 * SHOWN).max(start);
    let mut to = (at + 4 * SHOWN).min(end);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    let (before, after) = (plain(&text[from..at]), plain(&text[at..to.max(at)]));
    let mut line = String::new();
    if from > start || before.len() > SHOWN {
        line.push('…');
    }
    line.extend(&before[before.len().saturating_sub(SHOWN)..]);
    let column = line.chars().count();
    line.extend(&after[..after.len().min(SHOWN)]);
    if to < end || after.len() > SHOWN {
        line.push('…');
    }
    (line, column, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_around_the_caret() {
        let text = format!("{}!{}", "a".repeat(1_000_000), "b".repeat(1_000_000));
        let shown = SpecError::at(&text, 1_000_000, "odd", "here").to_string();
        assert!(shown.len() < 400, "{shown}");
        assert!(shown.contains("a!b"));
    }

    #[test]
    fn the_caret_stands_under_its_character_in_a_later_line() {
        let shown = SpecError::at("one\ntwo é x", 11, "odd", "here").to_string();
        assert_eq!(shown, "odd\n  two é x\n        ^ here");
    }
}
