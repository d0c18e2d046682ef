//! A language model in memory, as a library API: logits, likelihoods, perplexity and
//! generation.
//!
//! Weights are loaded at first use and kept: as f32 (packed ones as they are) for
//! logits, likelihoods and perplexity, which agree with transformers in float32; as
//! bf16 or f16 for generation, where reading the weights takes the time.

use crate::chat::{ChatError, ChatTemplate, Message};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::evaluate::{self, EvaluateError, Evaluation, evaluate_layers};
use crate::generate::{GenerateError, Generation, Sampling, generate, generate_after};
use crate::likelihood::{Continuation, Likelihood, log_likelihoods};
use crate::model::{Decoder, Layer, Model, ModelError, NoTap, Storage};
use crate::tokens::{TextError, Tokenizer};
use openwork::MatrixMut;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Why a request to a model failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant is the error of one part
pub enum LanguageModelError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(
        "continuation {0} has no tokens of its own after its context; move some of the context to it"
    )]
    Continuation(usize),
}

impl LanguageModelError {
    /// Whether the user's input is at fault, rather than the run.
    pub fn is_input(&self) -> bool {
        use EvaluateError::{Infinite, Model as InEvaluation};
        match self {
            Self::Model(error)
            | Self::Evaluate(InEvaluation(error))
            | Self::Generate(GenerateError::Model(error)) => error.is_input(),
            Self::Evaluate(Infinite(_)) => false,
            _ => true,
        }
    }
}

/// A model, its tokenizer and its weights.
#[derive(Debug)]
pub struct LanguageModel {
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    layers: Mutex<Option<Arc<Vec<Layer>>>>,
    decoder: Mutex<Option<Decoder>>,
}

/// Tells how much is done; may stop the computation.
type OnProgress<'a> = &'a mut (dyn FnMut(f64) -> ControlFlow<()> + Send);

impl LanguageModel {
    /// Opens a Hugging Face folder, a packed folder or a `.gguf` file.
    pub fn open(path: &Path) -> Result<Self, LanguageModelError> {
        let checkpoint = Checkpoint::open(path)?;
        Model::open(&checkpoint)?.check_decoder()?;
        let tokenizer = checkpoint.tokenizer()?;
        Ok(Self { checkpoint, tokenizer, layers: Mutex::new(None), decoder: Mutex::new(None) })
    }

    /// The files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The validated model, without its layers.
    pub fn model(&self) -> Result<Model<'_>, LanguageModelError> {
        Ok(Model::open(&self.checkpoint)?)
    }

    /// All layers, loaded once.
    fn layers(&self, model: &Model<'_>) -> Result<Arc<Vec<Layer>>, ModelError> {
        let mut held = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layers) = &*held {
            return Ok(Arc::clone(layers));
        }
        let load = |index| model.layer(index, Storage::Packed);
        let layers: Vec<Layer> = (0..model.config().layers).map(load).collect::<Result<_, _>>()?;
        let layers = Arc::new(layers);
        *held = Some(Arc::clone(&layers));
        Ok(layers)
    }

    /// The logits after each token of a sequence, into `[tokens, vocabulary]`.
    ///
    /// # Panics
    ///
    /// If `logits` has another shape.
    pub fn logits_into(
        &self,
        tokens: &[u32],
        logits: MatrixMut<'_>,
        on_progress: OnProgress<'_>,
    ) -> Result<(), LanguageModelError> {
        let model = self.model()?;
        let mut hidden = model.embed(&[tokens.to_vec()])?;
        let layers = self.layers(&model)?;
        for (done, layer) in layers.iter().enumerate() {
            if on_progress(done as f64 / layers.len() as f64).is_break() {
                return Err(ModelError::Stopped.into());
            }
            layer.forward(&mut hidden, &mut NoTap);
        }
        model.head()?.logits_into(hidden.states().view(), logits);
        Ok(())
    }

    /// The log-likelihood of each continuation after its context, tokenized as lm-eval
    /// does. Neighbors with one context share its computation.
    pub fn log_likelihoods(
        &self,
        pairs: &[(String, String)],
        on_progress: OnProgress<'_>,
    ) -> Result<Vec<Likelihood>, LanguageModelError> {
        let encode = |(i, (context, continuation)): (usize, &(String, String))| {
            let pair = self.tokenizer.encode_pair(context, continuation)?;
            let tokens = Continuation::new(&pair.context, &pair.continuation);
            tokens.ok_or(LanguageModelError::Continuation(i))
        };
        let encoded: Vec<Continuation> =
            pairs.iter().enumerate().map(encode).collect::<Result<_, _>>()?;
        let contexts: Vec<&str> = pairs.iter().map(|(context, _)| context.as_str()).collect();
        self.likelihoods_of(&contexts, encoded, on_progress)
    }

    /// As [`log_likelihoods`](Self::log_likelihoods), of tokens.
    pub fn token_log_likelihoods(
        &self,
        pairs: &[(Vec<u32>, Vec<u32>)],
        on_progress: OnProgress<'_>,
    ) -> Result<Vec<Likelihood>, LanguageModelError> {
        let build = |(i, (context, continuation)): (usize, &(Vec<u32>, Vec<u32>))| {
            let tokens = Continuation::new(context, continuation);
            tokens.ok_or(LanguageModelError::Continuation(i))
        };
        let built: Vec<Continuation> =
            pairs.iter().enumerate().map(build).collect::<Result<_, _>>()?;
        let contexts: Vec<&[u32]> = pairs.iter().map(|(context, _)| context.as_slice()).collect();
        self.likelihoods_of(&contexts, built, on_progress)
    }

    fn likelihoods_of<C: PartialEq>(
        &self,
        contexts: &[C],
        continuations: Vec<Continuation>,
        on_progress: OnProgress<'_>,
    ) -> Result<Vec<Likelihood>, LanguageModelError> {
        let model = self.model()?;
        let mut groups: Vec<Vec<Continuation>> = Vec::new();
        for (i, continuation) in continuations.into_iter().enumerate() {
            match groups.last_mut() {
                Some(group) if contexts[i] == contexts[i - 1] => group.push(continuation),
                _ => groups.push(vec![continuation]),
            }
        }
        let layers = self.layers(&model)?;
        let mut layer = |index: usize| Ok(&layers[index]);
        let found = log_likelihoods(&model, &mut layer, &groups, on_progress);
        let found = found.map_err(|error| model.explain_not_finite(error))?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Perplexity on a text.
    pub fn perplexity(
        &self,
        text: &str,
        options: &evaluate::Options,
        on_progress: OnProgress<'_>,
    ) -> Result<Evaluation, LanguageModelError> {
        let model = self.model()?;
        let layers = self.layers(&model)?;
        let mut layer = |index: usize| Ok(&layers[index]);
        Ok(evaluate_layers(&model, &self.tokenizer, &mut layer, text, options, &mut |progress| {
            on_progress(progress.done as f64 / progress.total.max(1) as f64)
        })?)
    }

    /// Generates at most `most` tokens after a prompt.
    pub fn generate(
        &self,
        prompt: &str,
        most: usize,
        sampling: Sampling,
        on_text: &mut (dyn FnMut(&str) -> ControlFlow<()> + Send),
    ) -> Result<Generation, LanguageModelError> {
        self.with_decoder(|decoder| {
            generate(decoder, &self.tokenizer, prompt, most, sampling, on_text)
        })
    }

    /// The text of a conversation by the model's chat template.
    pub fn chat_text(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, LanguageModelError> {
        let template = ChatTemplate::from_checkpoint(&self.checkpoint, &self.tokenizer)?;
        Ok(template.render(messages, add_generation_prompt)?)
    }

    /// Generates the next message of a conversation, of at most `most` tokens.
    pub fn chat(
        &self,
        messages: &[Message],
        most: usize,
        sampling: Sampling,
        on_text: &mut (dyn FnMut(&str) -> ControlFlow<()> + Send),
    ) -> Result<Generation, LanguageModelError> {
        // The template spells out BOS where the model expects it.
        let tokens = self.tokenizer.encode(&self.chat_text(messages, true)?)?;
        self.with_decoder(|decoder| {
            generate_after(decoder, &self.tokenizer, &tokens, most, sampling, on_text)
        })
    }

    /// Calls `work` with the weights for generation, loaded once.
    fn with_decoder(
        &self,
        work: impl FnOnce(&mut Decoder) -> Result<Generation, GenerateError>,
    ) -> Result<Generation, LanguageModelError> {
        let mut held = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Some(Decoder::load(&self.model()?, Storage::Half)?);
        }
        let decoder = held.as_mut().expect("it was just loaded");
        Ok(work(decoder)?)
    }
}
