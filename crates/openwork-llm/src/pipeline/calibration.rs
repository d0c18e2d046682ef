//! Calibration: the windows of text on which input statistics are measured.

use super::PipelineError;
use crate::disk::sha256;
use crate::model::Config;
use crate::report;
use crate::tokens::{TextError, Tokenizer, random_windows};

/// Windows of tokens, sampled from a text.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Windows, all of one length.
    pub windows: Vec<Vec<u32>>,
    /// Windows of a single token, see [`Calibration::draw`].
    pub single_tokens: Vec<Vec<u32>>,
    /// The text's name, for the record.
    pub text: String,
    /// Bytes of the text.
    pub text_bytes: usize,
    /// Random seed that they were sampled with.
    pub seed: u64,
}

/// How to sample windows.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Number of windows.
    pub samples: usize,
    /// Tokens per window.
    pub length: usize,
    /// Number of windows of a single token; by default one per [`Sampling::SHARE`]
    /// tokens of the others.
    pub single_tokens: Option<usize>,
    /// Random seed.
    pub seed: u64,
}

impl Sampling {
    /// Calibration tokens per single-token window. Four times as many windows lowered the
    /// perplexity of Qwen2.5-0.5B with some heads removed by 2 %.
    pub const SHARE: usize = 16;
}

impl Calibration {
    /// Samples windows from a text, given with its name, as SparseGPT and Wanda do,
    /// and windows of a single token (after BOS, if the tokenizer adds one).
    ///
    /// The hidden states of a text's first token are unlike those of all others, and
    /// all later tokens attend to it. Only one token in a thousand of the long windows
    /// is a first token, so weights fitted to them alone may miss it.
    pub fn draw(
        tokenizer: &Tokenizer,
        (name, text): (&str, &str),
        how: Sampling,
    ) -> Result<Self, PipelineError> {
        let tokens = tokenizer.encode(text)?;
        Self::from_tokens(tokenizer, (name, text.len()), &tokens, how)
    }

    /// As [`draw`](Self::draw), from the tokens of a text, given with its name and bytes.
    pub fn from_tokens(
        tokenizer: &Tokenizer,
        (name, text_bytes): (&str, usize),
        tokens: &[u32],
        how: Sampling,
    ) -> Result<Self, PipelineError> {
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let around = (Vec::from_iter(bos), Vec::new());
        Self::sample((name, text_bytes), tokens, how, around)
    }

    /// As [`from_tokens`](Self::from_tokens), for an encoder: every window is a text with the
    /// special tokens of the tokenizer around it, and there are no windows of a single token
    /// unless they are asked for.
    pub fn for_encoder(
        tokenizer: &Tokenizer,
        text: (&str, usize),
        tokens: &[u32],
        how: Sampling,
    ) -> Result<Self, PipelineError> {
        let how = Sampling { single_tokens: how.single_tokens.or(Some(0)), ..how };
        Self::sample(text, tokens, how, tokenizer.template()?)
    }

    /// Samples windows that begin and end with these tokens.
    fn sample(
        (name, text_bytes): (&str, usize),
        tokens: &[u32],
        how: Sampling,
        (before, after): (Vec<u32>, Vec<u32>),
    ) -> Result<Self, PipelineError> {
        let Sampling { samples, length, seed, .. } = how;
        if samples == 0 {
            return Err(PipelineError::option("samples", 0, "give at least one window"));
        }
        let special = before.len() + after.len();
        let draw = |length: usize, samples: usize| -> Result<Vec<Vec<u32>>, TextError> {
            if after.is_empty() && before.len() <= 1 {
                return random_windows(tokens, length, samples, seed, before.first().copied());
            }
            let inside = length.checked_sub(special).filter(|inside| *inside > 0);
            let inside = inside.ok_or(TextError::Window(length))?;
            let windows = random_windows(tokens, inside, samples, seed, None)?;
            let wrap = |window: Vec<u32>| [&before[..], &window, &after].concat();
            Ok(windows.into_iter().map(wrap).collect())
        };
        let windows = draw(length, samples)?;
        let short = 1 + special;
        let single_tokens = match how.single_tokens {
            Some(asked) if asked > tokens.len() => {
                let there = tokens.len();
                let why = format!("the text has only {there} tokens; give at most that many");
                return Err(PipelineError::option("single_tokens", asked, why));
            }
            Some(asked) => asked,
            None => (samples * length / Sampling::SHARE).min(tokens.len()),
        };
        let single_tokens = draw(short, single_tokens)?;
        Ok(Self { windows, single_tokens, text: name.to_string(), text_bytes, seed })
    }

    /// Tokens per window.
    pub fn seq_len(&self) -> usize {
        self.windows.first().map_or(0, Vec::len)
    }

    /// Tokens of all windows, single tokens included.
    pub fn tokens(&self) -> usize {
        self.windows.iter().chain(&self.single_tokens).map(Vec::len).sum()
    }

    /// Bytes of all hidden states, their targets, and the keys and values that layers share.
    pub fn state_bytes(&self, config: &Config) -> u64 {
        let width = config.hidden + config.state_width();
        (self.tokens() * width * size_of::<f32>()) as u64
    }

    /// Hash of all tokens, as little-endian u32.
    pub fn sha256(&self) -> String {
        let tokens = self.windows.iter().chain(&self.single_tokens).flatten();
        let bytes: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
        sha256(&bytes)
    }

    /// The entry of the record.
    pub fn record(&self) -> report::Calibration {
        report::Calibration {
            text: self.text.clone(),
            samples: self.windows.len(),
            seq_len: self.seq_len(),
            tokens: self.windows.len() * self.seq_len(),
            single_tokens: self.single_tokens.len(),
            sha256: self.sha256(),
        }
    }
}
