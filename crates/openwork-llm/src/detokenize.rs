//! Detokenization of WikiText.
//!
//! WikiText's raw text has spaces around punctuation, and `@-@`, `@,@`, `@.@` for
//! joining characters. lm-eval removes them before a model reads the text; these
//! are the same changes. Each only removes bytes (except that a lone `N` becomes
//! `1`), so every byte of the result has an offset in the original.

/// A text with some bytes removed, and the offsets of the others.
#[derive(Clone, Debug)]
pub struct Detokenized {
    bytes: Vec<u8>,
    /// The offset of each byte in the original; then the original's length.
    origins: Vec<usize>,
}

impl Detokenized {
    /// The unchanged text.
    pub fn unchanged(text: &str) -> Self {
        Self { bytes: text.as_bytes().to_vec(), origins: (0..=text.len()).collect() }
    }

    /// The resulting text.
    pub fn text(&self) -> &str {
        // Only ASCII characters are removed or replaced.
        std::str::from_utf8(&self.bytes).expect("UTF-8 without some ASCII is UTF-8")
    }

    /// The offset in the original of the byte at `at`, or of the end.
    pub fn origin(&self, at: usize) -> usize {
        self.origins[at]
    }

    /// Keeps the bytes for which `kept` is true.
    fn retain(&mut self, kept: &[bool]) {
        let mut kept_bytes = kept.iter();
        self.bytes.retain(|_| *kept_bytes.next().expect("a flag for each byte"));
        let mut kept_origins = kept.iter().chain([&true]);
        self.origins.retain(|_| *kept_origins.next().expect("a flag for each byte and the end"));
    }

    /// Reduces each occurrence of `from` to its bytes at `keep`, left to right.
    fn thin(&mut self, from: &str, keep: &[usize]) {
        let mut kept = vec![true; self.bytes.len()];
        let mut at = 0;
        while at + from.len() <= self.bytes.len() {
            if &self.bytes[at..at + from.len()] == from.as_bytes() {
                (0..from.len()).for_each(|i| kept[at + i] = keep.contains(&i));
                at += from.len();
            } else {
                at += 1;
            }
        }
        self.retain(&kept);
    }

    /// Removes whitespace inside each pair of delimiters.
    fn tighten(&mut self, open: u8, close: u8) {
        let mut kept = vec![true; self.bytes.len()];
        let mut at = 0;
        while let Some(left) = find(&self.bytes, open, at) {
            let Some(right) = find(&self.bytes, close, left + 1) else { break };
            let inside = left + 1..right;
            let space = |i: &usize| self.bytes[*i].is_ascii_whitespace();
            inside.clone().take_while(space).for_each(|i| kept[i] = false);
            inside.rev().take_while(space).for_each(|i| kept[i] = false);
            at = right + 1;
        }
        self.retain(&kept);
    }
}

/// The first `byte` from `at` on.
fn find(bytes: &[u8], byte: u8, at: usize) -> Option<usize> {
    bytes[at..].iter().position(|&b| b == byte).map(|i| at + i)
}

/// Detokenizes WikiText.
///
/// ```
/// use openwork_llm::detokenize::wikitext;
/// let text = wikitext("the show 's 1 @,@ 000 well @-@ known songs ( in all ) .\n");
/// assert_eq!(text.text(), "the show's 1,000 well-known songs (in all) .\n");
/// assert_eq!(text.origin(9), 10); // the s of 's
/// ```
pub fn wikitext(text: &str) -> Detokenized {
    let mut text = Detokenized::unchanged(text);
    // Contractions and joining characters.
    text.thin("s '", &[0, 2]);
    for mark in [" @-@ ", " @,@ ", " @.@ "] {
        text.thin(mark, &[2]);
    }
    // Punctuation.
    for mark in [" : ", " ; ", " . ", " ! ", " ? ", " , "] {
        text.thin(mark, &[1, 2]);
    }
    // Brackets and quotes.
    for (open, close) in [(b'(', b')'), (b'[', b']'), (b'{', b'}'), (b'"', b'"'), (b'\'', b'\'')] {
        text.tighten(open, close);
    }
    // Headings, degrees, line ends, the placeholder N, possessives.
    text.thin("= = = =", &[0, 2, 4, 6]);
    text.thin("= = =", &[0, 2, 4]);
    text.thin("= =", &[0, 2]);
    text.thin(" \u{b0} ", &[1, 2]);
    text.thin(" \n", &[1]);
    text.thin("\n ", &[0]);
    let numbers: Vec<_> = text.text().match_indices(" N ").map(|(at, _)| at + 1).collect();
    numbers.into_iter().for_each(|at| text.bytes[at] = b'1');
    text.thin(" 's", &[1, 2]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lose_their_spaces() {
        for (from, to) in [
            ("", ""),
            (" = Robert Boulter = \n", " = Robert Boulter =\n"),
            (" = = Career = = \n", " == Career ==\n"),
            (" = = = 2000 = = = \n", " === 2000 ===\n"),
            ("a \" quoted \" word , and ' another '", "a \"quoted\" word, and 'another'"),
            ("John 's dogs ' tails", "John's dogs' tails"),
            ("3 @.@ 5 \u{b0} C ; N times", "3.5\u{b0}C; 1 times"),
            ("( unclosed", "( unclosed"),
            ("é ( ü ) ö", "é (ü) ö"),
            ("[ a ] { b } why ? yes ! go : on", "[a] {b} why? yes! go: on"),
        ] {
            assert_eq!(wikitext(from).text(), to);
        }
    }

    #[test]
    fn every_byte_knows_where_it_was() {
        let from = "a ( b ) , c @-@ d = = e = = \n f's g 's";
        let text = wikitext(from);
        for (at, byte) in text.bytes.iter().enumerate() {
            assert_eq!(from.as_bytes()[text.origin(at)], *byte);
        }
        assert_eq!(text.origin(text.bytes.len()), from.len());
    }
}
