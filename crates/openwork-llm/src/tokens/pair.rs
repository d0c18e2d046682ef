//! Encodes a context and its continuation, as lm-eval does.

use super::error::TextError;
use super::tokenizer::Tokenizer;

/// The tokens of a context and of its continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPair {
    /// The context; BOS or EOS if it is empty.
    pub context: Vec<u32>,
    /// The continuation; empty if its text is, or if the tokenizer merges it with the
    /// context into one token.
    pub continuation: Vec<u32>,
}

impl Tokenizer {
    /// Encodes a context and its continuation.
    ///
    /// White space at the end of the context is moved to the continuation, where most
    /// tokenizers make it part of a word. Both together are then encoded, and the
    /// tokens after those of the context alone are the continuation. An empty context
    /// becomes BOS, or EOS if the tokenizer has no BOS; a tokenizer that adds BOS adds
    /// it to any context that does not start with it.
    pub fn encode_pair(&self, context: &str, continuation: &str) -> Result<TokenPair, TextError> {
        let kept = context.trim_end_matches(is_space);
        let whole = self.encode(&format!("{context}{continuation}"))?;
        if kept.is_empty() {
            let start = self.bos().or(self.eos().first().copied()).ok_or_else(|| {
                TextError::Tokenizer(
                    "an empty context needs a BOS or EOS token, and the tokenizer has neither"
                        .to_string(),
                )
            })?;
            return Ok(TokenPair { context: vec![start], continuation: whole });
        }
        let before = self.encode(kept)?;
        // Merges with the continuation may even make it shorter than the context alone.
        let continuation = whole.get(before.len()..).unwrap_or_default().to_vec();
        let bos = self.bos().filter(|bos| self.adds_bos() && before.first() != Some(bos));
        Ok(TokenPair { context: bos.into_iter().chain(before).collect(), continuation })
    }
}

/// What Python's `str.rstrip` removes: white space of Unicode, and the four
/// information separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
