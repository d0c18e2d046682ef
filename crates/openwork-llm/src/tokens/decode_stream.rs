//! Incremental decoding of a token stream.

use super::error::TextError;
use super::tokenizer::Tokenizer;

/// Decodes token by token. A character may need several tokens: then the first
/// ones yield no text and the last one yields all of it.
#[derive(Clone, Debug)]
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// Tokens from here on are decoded together, because the text of a token can
    /// depend on the one before it.
    start: usize,
    /// Tokens before this one have been returned as text.
    shown: usize,
}

impl<'a> DecodeStream<'a> {
    /// A stream with no tokens.
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), start: 0, shown: 0 }
    }

    /// Adds the next token; returns the text that has become certain.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.ids.push(id);
        let text = self.rest()?;
        // The replacement character means that a character is still incomplete.
        if text.is_empty() || text.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        self.start = self.shown;
        self.shown = self.ids.len();
        Ok(text)
    }

    /// The text held back so far: characters that were never completed.
    pub fn finish(self) -> Result<String, TextError> {
        self.rest()
    }

    /// The text of all tokens so far, decoded at once.
    pub fn decode_all(&self) -> Result<String, TextError> {
        self.tokenizer.decode(&self.ids)
    }

    /// The text that the pending tokens add. If they change earlier text (an
    /// invalid byte turns the incomplete character before it into replacement
    /// characters), the text from the first change on is returned.
    fn rest(&self) -> Result<String, TextError> {
        let before = self.tokenizer.decode(&self.ids[self.start..self.shown])?;
        let after = self.tokenizer.decode(&self.ids[self.start..])?;
        let same = before.chars().zip(after.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        Ok(after[same..].to_string())
    }
}
