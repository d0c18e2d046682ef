//! Validation of a `tokenizer.json` before the tokenizers library reads it: the
//! library panics on some files and allocates without bound on others.

use serde::Deserialize;
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Most bytes that one byte of text may become before the model; Gemma's becomes 3.
const GROWTH: usize = 64;

thread_local! {
    /// Whether a panic of this thread is caught and returned as an error.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `call`; a panic becomes an error with its message and prints nothing.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !CAUGHT.get() {
                usual(info);
            }
        }));
    });
    let outer = CAUGHT.replace(true);
    // What the call was working on is dropped or never used again.
    let result = catch_unwind(AssertUnwindSafe(call));
    CAUGHT.set(outer);
    result.map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("the tokenizers library panicked: {}", words.unwrap_or("no message"))
    })
}

/// Refuses a `tokenizer.json` whose steps could allocate without bound.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        normalizer: Value,
        #[serde(default)]
        pre_tokenizer: Value,
        #[serde(default)]
        decoder: Value,
    }
    let file: File = serde_json::from_slice(bytes)
        .map_err(|why| format!("not valid JSON for a tokenizer: {why}"))?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    flatten(&file.normalizer, &mut before);
    flatten(&file.pre_tokenizer, &mut before);
    flatten(&file.decoder, &mut after);
    for steps in [&before, &after] {
        steps.iter().try_for_each(|step| check_charsmap(step))?;
        let growth = growth(steps);
        if growth > GROWTH {
            return Err(format!(
                "its normalizer and pre-tokenizer could turn one byte into {growth}, which exceeds the limit of {GROWTH}"
            ));
        }
    }
    Ok(())
}

/// The steps of one part of the pipeline, with sequences flattened.
fn flatten<'a>(part: &'a Value, steps: &mut Vec<&'a Value>) {
    let inner = ["normalizers", "pretokenizers", "decoders"];
    match inner.iter().find_map(|key| part[key].as_array()) {
        Some(parts) => parts.iter().for_each(|part| flatten(part, steps)),
        None => steps.push(part),
    }
}

/// Checks that a `Precompiled` step is as long as its header says: the library
/// allocates the trie before it reads it.
fn check_charsmap(step: &Value) -> Result<(), String> {
    let Some(text) = step["precompiled_charsmap"].as_str() else { return Ok(()) };
    let text = text.trim_end_matches('=').as_bytes();
    let sextet = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    // Base64 of a little-endian u32, the length of the trie: the upper 32 of six sextets' 36 bits.
    let bits =
        text.iter().take(6).try_fold(0u64, |bits, &c| Some(bits << 6 | u64::from(sextet(c)?)));
    let trie = bits.filter(|_| text.len() >= 6).map(|bits| ((bits >> 4) as u32).swap_bytes());
    let length = text.len() as u64 * 3 / 4;
    match trie {
        Some(trie) if 4 + u64::from(trie) <= length => Ok(()),
        _ => Err("its precompiled_charsmap is shorter than its header says; the file is damaged"
            .to_string()),
    }
}

/// A bound on how many bytes the steps turn one byte into.
///
/// A step that replaces `p` by `c` turns one byte into `|c| / |p|`, and applies to
/// the output of an earlier step only if `p` shares a character with it:
///
/// ```text
/// growth_j = |c_j| / |p_j| * max(1, growth_i for i < j that share)
/// ```
fn growth(steps: &[&Value]) -> usize {
    /// A set of characters; `None` is all.
    type Chars = Option<BTreeSet<char>>;
    let chars = |text: &str| -> Chars { Some(text.chars().collect()) };
    let mut made: Vec<(Chars, usize)> = Vec::new();
    for step in steps {
        let content = step["content"].as_str().unwrap_or_default();
        let pattern = &step["pattern"];
        // Characters it replaces, characters it inserts, growth factor.
        let (works_on, puts, factor) = match step["type"].as_str() {
            Some("Replace") => match pattern["String"].as_str() {
                Some(text) => {
                    (chars(text), chars(content), content.len().div_ceil(text.len().max(1)))
                }
                // A regular expression may match one byte, or the empty string.
                None => (None, chars(content), content.len() + 1),
            },
            Some("Prepend") => {
                let text = step["prepend"].as_str().unwrap_or_default();
                (Some(BTreeSet::new()), chars(text), text.len() + 1)
            }
            // A byte becomes a character of up to two bytes.
            Some("ByteLevel") => (None, None, 2),
            _ => continue,
        };
        let share = |other: &Chars| match (&works_on, other) {
            (Some(a), Some(b)) => !a.is_disjoint(b),
            (Some(a), None) => !a.is_empty(),
            (None, _) => true,
        };
        let earlier = made.iter().filter(|(puts, _)| share(puts)).map(|(_, growth)| *growth);
        let growth = earlier.max().unwrap_or(1).max(1).saturating_mul(factor);
        made.push((puts, growth));
    }
    made.iter().map(|(_, growth)| *growth).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn a_panic_becomes_words() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        let words = catch_panic(|| panic!("no {}", "luck")).unwrap_err();
        assert_eq!(words, "the tokenizers library panicked: no luck");
    }

    #[test]
    fn growth_multiplies_only_where_steps_meet() {
        let space = replace(json!({"String": " "}), "\u{2581}");
        let prepend = json!({"type": "Prepend", "prepend": "\u{2581}"});
        let bytes = json!({"type": "ByteLevel"});
        assert_eq!(growth(&[]), 1);
        assert_eq!(growth(&[&space]), 3);
        assert_eq!(growth(&[&prepend, &space]), 4);
        assert_eq!(growth(&[&space, &bytes]), 6);
        let grow = replace(json!({"String": "e"}), &"e".repeat(9));
        assert_eq!(growth(&[&grow, &space, &grow]), 81);
        let expression = replace(json!({"Regex": "\\s*"}), "ab");
        assert_eq!(growth(&[&expression, &expression]), 9);
        let many = [&bytes; 1000];
        assert_eq!(growth(&many), usize::MAX);
    }

    #[test]
    fn a_charsmap_shorter_than_it_says_is_refused() {
        let step = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
        // A trie of 4 bytes, and one of 2^32 - 1 that is not there.
        assert!(check_charsmap(&step("BAAAAAAAAAA=")).is_ok());
        for damaged in ["/////w==", "AAAA", "", "BAAAAAAA", "----------"] {
            assert!(check_charsmap(&step(damaged)).is_err(), "{damaged}");
        }
    }
}
