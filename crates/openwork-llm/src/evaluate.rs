//! Perplexity: per token as in the pruning literature, per word, and bits per
//! byte.
//!
//! The documents are joined by empty lines, tokenized as one text and split into
//! non-overlapping windows of `L` tokens; an incomplete window at the end is
//! dropped. A window scores its last `L - 1` tokens, each given those before it in
//! the window. If the tokenizer adds BOS, every window starts with it and all of
//! its `L - 1` tokens of text are scored. SparseGPT and Wanda tokenize the text
//! with BOS once, so that only the first window has it: use [`Bos::First`] for
//! their figures.
//!
//! ```text
//! token perplexity = exp(nats / tokens)      summed over scored tokens
//! word perplexity  = exp(nats / words)
//! bits per byte    = nats / (ln 2 * bytes)
//! ```
//!
//! The counts are exact: a token owns the bytes of the text from the end of the
//! previous token to its own end. `bytes` are the bytes owned by scored tokens,
//! and `words` the whitespace-separated words whose first byte is owned by a
//! scored token. Unscored tokens thus count neither in the nats nor in the words.
//!
//! lm-eval's WikiText task divides the nats of the *detokenized* text by the words
//! of the *original* text, as [`Options::detokenize`] does: the model reads the
//! text without WikiText's extra spaces, and words and bytes are counted in the
//! original text. lm-eval also scores page by page, whereas pages are joined here,
//! and counts an extra word for whitespace at each end of a page, less than 0.1 %
//! of WikiText-2's words.

use crate::checkpoint::CheckpointError;
use crate::detokenize::{self, Detokenized};
use crate::format::count;
use crate::model::{Layer, Model, ModelError, NoTap, Storage};
use crate::tokens::{TextError, Tokenizer, windows};
use serde_json::{Value, json};
use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::time::Instant;

/// Default number of tokens per window, if the model supports it.
pub const SEQ_LEN: usize = 2048;
/// Size of the hidden states that are processed together, in bytes.
const GROUP_BYTES: usize = 64 << 20;

/// Which windows start with BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bos {
    /// Every window.
    Each,
    /// The first window.
    First,
    /// No window.
    None,
}

impl Bos {
    /// Every option.
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

/// How a text is tokenized and split into windows.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Tokens per window; by default [`SEQ_LEN`] or the model's limit.
    pub seq_len: Option<usize>,
    /// Use only this many tokens of the text.
    pub max_tokens: Option<usize>,
    /// Detokenize WikiText before the model reads it.
    pub detokenize: bool,
    /// Which windows start with BOS; by default each, if the tokenizer adds it.
    pub bos: Option<Bos>,
}

/// Why a model cannot be evaluated on a text.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The text or its windows.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// BOS was requested of a tokenizer without it.
    #[error("the tokenizer has no BOS token to add to {}; use `none`", match .0 { Bos::First => "the first window", _ => "each window" })]
    NoBos(Bos),
    /// A window too short to predict anything.
    #[error("a window of {} predicts nothing; use at least 2 tokens", count(*.0, "token"))]
    SeqLen(usize),
    /// Fewer tokens than one window.
    #[error(
        "{} of text do not fill one window of {}; use more tokens or a shorter window",
        count(*most, "token"),
        count(*length, "token")
    )]
    MaxTokens {
        /// Tokens to use.
        most: usize,
        /// Tokens in a window.
        length: usize,
    },
    /// A loss whose exponential overflows.
    #[error(
        "the loss is {0:.4e} nats per token, so the perplexity overflows; the weights may be damaged or not match the config"
    )]
    Infinite(f64),
}

/// The windows of a text, and the tokens, words and bytes they score.
#[derive(Clone, Debug)]
pub struct ScoredWindows {
    /// The windows, all of the same length.
    pub windows: Vec<Vec<u32>>,
    /// Number of scored tokens.
    pub tokens: usize,
    /// Number of words that start in scored tokens.
    pub words: usize,
    /// Number of bytes of scored tokens.
    pub bytes: usize,
    /// Which windows start with BOS.
    pub bos: Bos,
}

impl ScoredWindows {
    /// Splits `text` into windows of `seq_len` tokens.
    pub fn new(
        tokenizer: &Tokenizer,
        text: &str,
        seq_len: usize,
        options: &Options,
    ) -> Result<Self, EvaluateError> {
        if seq_len < 2 {
            return Err(EvaluateError::SeqLen(seq_len));
        }
        let read = match options.detokenize {
            true => detokenize::wikitext(text),
            false => Detokenized::unchanged(text),
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
        // Text tokens per window, and how many of them precede the first scored one.
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

/// Byte offsets of the whitespace-separated words of a text.
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

/// The result of an evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Total loss of the scored tokens.
    pub nats: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Words that start in them.
    pub words: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Number of windows.
    pub windows: usize,
    /// Tokens per window.
    pub seq_len: usize,
    /// Which windows start with BOS.
    pub bos: Bos,
    /// Notes of the tokenizer.
    pub notes: Vec<String>,
    /// Duration, without reading and tokenizing the text.
    pub seconds: f64,
}

impl Evaluation {
    /// `exp(nats / tokens)`.
    pub fn token_perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }

    /// `exp(nats / words)`; infinite if no word is scored.
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

/// Progress of an evaluation, and the perplexity so far.
#[derive(Clone, Copy, Debug)]
pub struct EvaluateProgress {
    /// Windows times layers done.
    pub done: usize,
    /// Windows times layers in total.
    pub total: usize,
    /// Token perplexity of the windows scored so far.
    pub perplexity: Option<f64>,
}

/// Evaluates a model on a text, with one layer in memory at a time.
pub fn evaluate(
    model: &Model<'_>,
    text: &str,
    options: &Options,
    on_progress: &mut dyn FnMut(EvaluateProgress),
) -> Result<Evaluation, EvaluateError> {
    let tokenizer = model.checkpoint().tokenizer()?;
    let mut layers = |index| model.layer(index, Storage::Packed);
    evaluate_layers(model, &tokenizer, &mut layers, text, options, &mut |progress| {
        on_progress(progress);
        ControlFlow::Continue(())
    })
}

/// Evaluates a model with these layers on a text. `layer` gives a layer; it is called
/// for every layer and group of windows. `on_progress` may stop the evaluation.
pub fn evaluate_layers<L: Borrow<Layer>>(
    model: &Model<'_>,
    tokenizer: &Tokenizer,
    layer: &mut dyn FnMut(usize) -> Result<L, ModelError>,
    text: &str,
    options: &Options,
    on_progress: &mut dyn FnMut(EvaluateProgress) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluateError> {
    let limit = model.config().max_positions;
    let seq_len = options.seq_len.unwrap_or(SEQ_LEN.min(limit));
    if seq_len > limit {
        return Err(ModelError::TooLong { tokens: seq_len, limit }.into());
    }
    let scored = ScoredWindows::new(tokenizer, text, seq_len, options)?;
    model.check_tokens(&scored.windows)?;
    let started = Instant::now();
    let nats = nats_or_stop(model, layer, &scored.windows, on_progress)
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

/// The total loss of all tokens except each window's first, in nats.
///
/// `layer` loads a layer; it is called for every layer and group of windows, so
/// that one layer is in memory at a time.
pub fn nats(
    model: &Model<'_>,
    layer: &mut dyn FnMut(usize) -> Result<Layer, ModelError>,
    windows: &[Vec<u32>],
    on_progress: &mut dyn FnMut(EvaluateProgress),
) -> Result<f64, ModelError> {
    nats_or_stop(model, layer, windows, &mut |progress| {
        on_progress(progress);
        ControlFlow::Continue(())
    })
}

/// As [`nats`], for layers that are loaded or held; `on_progress` may stop it.
fn nats_or_stop<L: Borrow<Layer>>(
    model: &Model<'_>,
    layer: &mut dyn FnMut(usize) -> Result<L, ModelError>,
    windows: &[Vec<u32>],
    on_progress: &mut dyn FnMut(EvaluateProgress) -> ControlFlow<()>,
) -> Result<f64, ModelError> {
    let (layers, len) = (model.config().layers, windows.first().map_or(0, Vec::len));
    let window_bytes = len * model.config().state_width() * size_of::<f32>();
    let group = (GROUP_BYTES / window_bytes.max(1)).max(1);
    let mut progress =
        EvaluateProgress { done: 0, total: windows.len() * layers, perplexity: None };
    let (mut nats, mut scored) = (0.0, 0);
    let mut report = |progress| match on_progress(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ModelError::Stopped),
    };
    report(progress)?;
    for windows in windows.chunks(group) {
        let mut hidden = model.embed(windows)?;
        for index in 0..layers {
            layer(index)?.borrow().forward(&mut hidden, &mut NoTap);
            progress.done += windows.len();
            report(progress)?;
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
        report(progress)?;
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
