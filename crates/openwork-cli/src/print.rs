//! Terminal output: results on stdout, notes and errors on stderr.
//!
//! Every character passes [`escaped`], so no tensor name, path or argument can
//! send control sequences to the terminal. A closed pipe (`openwork .. | head`)
//! ends the command quietly; any other write error is a failure.

use crate::failure::Failure;
use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, IsTerminal, Write};

/// Writes `text` to stdout, escaped.
pub fn text(text: &str) -> Result<(), Failure> {
    raw(&escaped(text))
}

/// Writes `line` and a line end to stdout, escaped.
pub fn line(line: impl Display) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}

/// Writes a drawing to stdout. With `color` the color sequences of the drawing
/// (`ESC [ .. m`) are kept; everything else is escaped.
pub fn drawing(drawing: &str, color: bool) -> Result<(), Failure> {
    if !color {
        return text(drawing);
    }
    let mut out = String::with_capacity(drawing.len());
    let mut rest = drawing;
    while let Some(at) = rest.find("\x1b[") {
        let (before, sequence) = rest.split_at(at);
        let parameter = |c: char| c.is_ascii_digit() || c == ';';
        let end = sequence[2..].find(|c| !parameter(c)).map_or(sequence.len(), |end| end + 2);
        // A color sequence whole, or else its first character, which is escaped.
        let (kept, length) = match sequence[end..].starts_with('m') {
            true => (Cow::Borrowed(&sequence[..end + 1]), end + 1),
            false => (escaped(&sequence[..1]), 1),
        };
        out += &escaped(before);
        out += &kept;
        rest = &sequence[length..];
    }
    raw(&(out + &escaped(rest)))
}

/// Writes text that a model generated to stdout: escaped for a terminal, and
/// unchanged into a file or pipe, where it is data.
pub fn generated(text: &str) -> Result<(), Failure> {
    match std::io::stdout().is_terminal() {
        true => raw(&escaped(text)),
        false => raw(text),
    }
}

/// Writes a line to stderr, escaped. A failure to do so is ignored.
pub fn aside(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", escaped(&line.to_string()));
}

/// Asks for a line: writes `text` to stderr, where the cursor stays behind it.
pub fn question(text: &str) {
    let mut out = std::io::stderr();
    let _ = write!(out, "{}", escaped(text)).and_then(|()| out.flush());
}

fn raw(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::running(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// `text` with control characters, except line ends and tabs, and characters
/// that reverse the direction of text written as `\u001b`. JSON reads these
/// escapes back as the characters.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match steers(c) {
            // Writing to a string cannot fail.
            true => drop(write!(plain, "\\u{:04x}", u32::from(c))),
            false => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

/// Whether a terminal would act on `c` instead of showing it.
fn steers(c: char) -> bool {
    let bidirectional = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    bidirectional || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal_after_escaping() {
        for c in (0..=0x2100).filter_map(char::from_u32) {
            let text = format!("a{c}b");
            let plain = escaped(&text);
            assert!(!plain.contains(steers), "{c:?}");
            assert_eq!(plain == text, !steers(c), "{c:?}");
            // As part of a JSON string it means the same character.
            if steers(c) {
                let json: String = serde_json::from_str(&format!("\"{plain}\"")).unwrap();
                assert_eq!(json, text);
            }
        }
    }
}
