//! Text that appears as its tokens come.

use super::error::TextError;
use super::tokenizer::Tokenizer;

/// Decodes token by token. A character may need several tokens, so some
/// tokens show nothing and a later one shows more.
#[derive(Clone, Debug)]
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// Tokens from here on are decoded together: what a token shows can depend
    /// on the one before it.
    start: usize,
    /// Tokens before this one have been shown.
    shown: usize,
}

impl<'a> DecodeStream<'a> {
    /// Begins a text.
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), start: 0, shown: 0 }
    }

    /// Takes the next token; returns the text that is certain by now.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.ids.push(id);
        let text = self.rest()?;
        // The replacement character means a character still lacks bytes.
        if text.is_empty() || text.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        self.start = self.shown;
        self.shown = self.ids.len();
        Ok(text)
    }

    /// The text still held back: characters that never became complete.
    pub fn finish(self) -> Result<String, TextError> {
        self.rest()
    }

    /// The text of all tokens so far, decoded at once.
    pub fn whole(&self) -> Result<String, TextError> {
        self.tokenizer.decode(&self.ids)
    }

    /// What the tokens that have not been shown add. Where they change the text
    /// before them (a byte that does not go on the run it follows turns all of
    /// it into replacement characters), what has been shown stays, and the text
    /// from the first change on follows.
    fn rest(&self) -> Result<String, TextError> {
        let before = self.tokenizer.decode(&self.ids[self.start..self.shown])?;
        let after = self.tokenizer.decode(&self.ids[self.start..])?;
        let same = before.chars().zip(after.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        Ok(after[same..].to_string())
    }
}
