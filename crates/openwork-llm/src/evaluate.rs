//! Perplexity: per token as the pruning literature measures it, per word, and
//! bits per byte.
//!
//! The documents are joined by empty lines, tokenised as one text and cut into
//! windows of `L` tokens that do not overlap; the rest at the end is left out.
//! A window scores its `L - 1` last tokens, each given those before it in the
//! window. Where the model wants a BOS token every window begins with one, and
//! all of its `L - 1` tokens of text are scored. SparseGPT and Wanda tokenise
//! the text with its BOS once, so that only the first window has it:
//! [`Bos::First`] does that.
//!
//! ```text
//! token perplexity = exp(nats / tokens)      nats, tokens: summed over what is scored
//! word perplexity  = exp(nats / words)
//! bits per byte    = nats / (ln 2 * bytes)
//! ```
//!
//! *What is scored* is exact: a token owns the bytes of the text from the end
//! of the token before it to its own end. `bytes` are those that scored tokens
//! own, and `words` the whitespace-separated words whose first byte a scored
//! token owns. So a text's first token, the first tokens of windows and the
//! rest count neither in the nats nor in the words.
//!
//! lm-eval's WikiText task divides the nats of the *detokenised* text by the
//! words of the *original* text. [`Options::detokenise`] does that: the model
//! reads the text without WikiText's extra spaces, and words and bytes are
//! counted in the text as it was given. lm-eval also scores page by page, where
//! here the pages are joined, and its count of words has one more for white
//! space at the beginning of a page and one for white space at its end, under
//! 0.1 % of WikiText-2's.

use crate::checkpoint::CheckpointError;
use crate::detokenise::{self, Detokenised};
use crate::model::{Layer, Model, ModelError, NoTap, Storage};
use crate::tokens::{TextError, Tokenizer, windows};
use serde_json::{Value, json};
use std::time::Instant;

/// Tokens in a window, if not given and if the model takes as many.
pub const SEQ_LEN: usize = 2048;
/// Bytes of hidden states that go through the layers together.
const GROUP_BYTES: usize = 64 << 20;

/// Where the token that begins a text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bos {
    /// Before the text of every window.
    Each,
    /// Before the text, so into the first window.
    First,
    /// Nowhere.
    None,
}

impl Bos {
    /// Every place.
    pub const ALL: [Self; 3] = [Self::Each, Self::First, Self::None];

    /// `each`, `first` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::First => "first",
            Self::None => "none",
        }
    }
}

/// How to cut the text.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Tokens in a window; [`SEQ_LEN`] or the model's limit if not given.
    pub seq_len: Option<usize>,
    /// Use no more than about this many tokens of the text.
    pub max_tokens: Option<usize>,
    /// Undo WikiText's tokenisation before the model reads it.
    pub detokenise: bool,
    /// Where BOS goes; before each window if not given, where the tokenizer
    /// adds one.
    pub bos: Option<Bos>,
}

/// Why a model cannot be evaluated on a text.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The text, or the windows asked for.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model, or a token it does not have.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A token that begins texts, of a tokenizer without.
    #[error("a BOS token is asked for ({}), and the tokenizer has none; ask for none", .0.name())]
    NoBos(Bos),
    /// A window too short to predict anything.
    #[error("windows of {0} tokens predict nothing; take at least 2")]
    SeqLen(usize),
    /// Fewer tokens asked for than a window has.
    #[error(
        "{most} tokens of the text (--max-tokens) are fewer than one window of {length}; use more of them or a shorter window"
    )]
    MaxTokens {
        /// Tokens to use.
        most: usize,
        /// Tokens in a window.
        length: usize,
    },
    /// A loss whose exponential is no number.
    #[error(
        "the loss is {0:.4e} nats a token, and no number holds its perplexity (the weights may be damaged, or not what the config says)"
    )]
    Infinite(f64),
}

/// A text as windows, with an account of what they score.
#[derive(Clone, Debug)]
pub struct ScoredWindows {
    /// Each of the same length.
    pub windows: Vec<Vec<u32>>,
    /// Tokens that are predicted.
    pub tokens: usize,
    /// Words that begin in predicted tokens.
    pub words: usize,
    /// Bytes of predicted tokens.
    pub bytes: usize,
    /// Where BOS went.
    pub bos: Bos,
}

impl ScoredWindows {
    /// Cuts `text` into windows of `seq_len` tokens.
    pub fn new(
        tokenizer: &Tokenizer,
        text: &str,
        seq_len: usize,
        options: &Options,
    ) -> Result<Self, EvaluateError> {
        if seq_len < 2 {
            return Err(EvaluateError::SeqLen(seq_len));
        }
        let read = match options.detokenise {
            true => detokenise::wikitext(text),
            false => Detokenised::unchanged(text),
        };
        let (mut tokens, mut ends) = tokenizer.encode_with_ends(read.text())?;
        let usual = if tokenizer.adds_bos() { Bos::Each } else { Bos::None };
        let bos = options.bos.unwrap_or(usual);
        if let Some(most) = options.max_tokens.filter(|&most| most < tokens.len()) {
            if most + usize::from(bos != Bos::None) < seq_len {
                return Err(EvaluateError::MaxTokens { most, length: seq_len });
            }
            tokens.truncate(most);
            ends.truncate(most);
        }
        let token = || tokenizer.bos().ok_or(EvaluateError::NoBos(bos));
        // Tokens of the text in a window, and how many of them come before the
        // first scored one.
        let (each, step, skip) = match bos {
            Bos::Each => (Some(token()?), seq_len - 1, 0),
            Bos::First => {
                // It owns no bytes.
                tokens.insert(0, token()?);
                ends.insert(0, 0);
                (None, seq_len, 1)
            }
            Bos::None => (None, seq_len, 1),
        };
        let windows = windows(&tokens, seq_len, each)?;

        let starts = word_starts(text);
        let (mut words, mut bytes) = (0, 0);
        for window in 0..windows.len() {
            let first = window * step + skip;
            let begin = if first == 0 { 0 } else { read.origin(ends[first - 1]) };
            let end = read.origin(ends[(window + 1) * step - 1]);
            bytes += end - begin;
            let before = |at: usize| starts.partition_point(|&start| start < at);
            words += before(end) - before(begin);
        }
        Ok(Self { tokens: windows.len() * (seq_len - 1), windows, words, bytes, bos })
    }
}

/// Where the whitespace-separated words of a text begin.
fn word_starts(text: &str) -> Vec<usize> {
    let mut outside = true;
    text.char_indices()
        .filter_map(|(at, c)| {
            let begins = outside && !c.is_whitespace();
            outside = c.is_whitespace();
            begins.then_some(at)
        })
        .collect()
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Loss of all scored tokens.
    pub nats: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Words that begin in them.
    pub words: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Windows they came in.
    pub windows: usize,
    /// Tokens in a window.
    pub seq_len: usize,
    /// Where BOS went.
    pub bos: Bos,
    /// What the tokenizer's files contradict each other in.
    pub notes: Vec<String>,
    /// Time it took, without reading the text.
    pub seconds: f64,
}

impl Evaluation {
    /// `exp(nats / tokens)`.
    pub fn token_perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }

    /// `exp(nats / words)`; infinite if no word begins in what is scored.
    pub fn word_perplexity(&self) -> f64 {
        (self.nats / self.words as f64).exp()
    }

    /// `nats / (ln 2 * bytes)`; infinite if no byte is scored.
    pub fn bits_per_byte(&self) -> f64 {
        self.nats / (std::f64::consts::LN_2 * self.bytes as f64)
    }

    /// The object of `openwork eval --json`.
    pub fn to_json(&self) -> Value {
        json!({
            "token_perplexity": self.token_perplexity(),
            "word_perplexity": self.word_perplexity(),
            "bits_per_byte": self.bits_per_byte(),
            "tokens": self.tokens,
            "words": self.words,
            "bytes": self.bytes,
            "nats": self.nats,
            "windows": self.windows,
            "seq_len": self.seq_len,
            "bos": self.bos.name(),
            "seconds": self.seconds,
        })
    }
}

/// How far it has come: `done` of `total` steps, and the perplexity so far.
#[derive(Clone, Copy, Debug)]
pub struct EvaluateProgress {
    /// Windows times layers that are through.
    pub done: usize,
    /// Windows times layers in all.
    pub total: usize,
    /// Token perplexity of the windows that have been scored.
    pub perplexity: Option<f64>,
}

/// Measures a model on a text, one layer in memory at a time.
pub fn evaluate(
    model: &Model<'_>,
    text: &str,
    options: &Options,
    watch: &mut dyn FnMut(EvaluateProgress),
) -> Result<Evaluation, EvaluateError> {
    let tokenizer = model.checkpoint().tokenizer()?;
    let limit = model.config().max_positions;
    let seq_len = options.seq_len.unwrap_or(SEQ_LEN.min(limit));
    if seq_len > limit {
        return Err(ModelError::TooLong { tokens: seq_len, limit }.into());
    }
    let scored = ScoredWindows::new(&tokenizer, text, seq_len, options)?;
    model.check_tokens(&scored.windows)?;
    let started = Instant::now();
    let mut layers = |index| model.layer(index, Storage::Packed);
    let nats = nats(model, &mut layers, &scored.windows, watch)
        .map_err(|error| model.explain_not_finite(error))?;
    let found = Evaluation {
        nats,
        tokens: scored.tokens,
        words: scored.words,
        bytes: scored.bytes,
        windows: scored.windows.len(),
        seq_len,
        bos: scored.bos,
        notes: tokenizer.notes().to_vec(),
        seconds: started.elapsed().as_secs_f64(),
    };
    match found.token_perplexity().is_finite() {
        true => Ok(found),
        false => Err(EvaluateError::Infinite(found.nats / found.tokens as f64)),
    }
}

/// The summed loss of all tokens but each window's first, in nats.
///
/// `layer` gives each layer when it is needed; it is asked anew for every group
/// of windows, so that no more than one need be in memory.
pub fn nats(
    model: &Model<'_>,
    layer: &mut dyn FnMut(usize) -> Result<Layer, ModelError>,
    windows: &[Vec<u32>],
    watch: &mut dyn FnMut(EvaluateProgress),
) -> Result<f64, ModelError> {
    let (layers, len) = (model.config().layers, windows.first().map_or(0, Vec::len));
    let window_bytes = len * model.config().hidden * size_of::<f32>();
    let group = (GROUP_BYTES / window_bytes.max(1)).max(1);
    let mut progress =
        EvaluateProgress { done: 0, total: windows.len() * layers, perplexity: None };
    let (mut nats, mut scored) = (0.0, 0);
    watch(progress);
    for windows in windows.chunks(group) {
        let mut hidden = model.embed(windows)?;
        for index in 0..layers {
            layer(index)?.forward(&mut hidden, &mut NoTap);
            progress.done += windows.len();
            watch(progress);
        }
        let targets: Vec<_> = windows
            .iter()
            .flat_map(|window| window[1..].iter().copied().map(Some).chain([None]))
            .collect();
        let losses = model.head()?.losses(hidden.states().view(), &targets);
        for (loss, _) in losses.iter().zip(&targets).filter(|(_, target)| target.is_some()) {
            if !loss.is_finite() {
                return Err(ModelError::NotFinite);
            }
            nats += loss;
            scored += 1;
        }
        progress.perplexity = Some((nats / scored as f64).exp());
        watch(progress);
    }
    Ok(nats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_after_white_space() {
        assert_eq!(word_starts(" a bc\u{a0}\n d"), [1, 3, 9]);
        assert_eq!(word_starts(""), Vec::<usize>::new());
    }
}
