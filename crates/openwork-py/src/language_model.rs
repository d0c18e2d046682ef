//! `LanguageModel`: a model that Python runs, the native half of `openwork.Model`.

use crate::background::{self, Flag};
use crate::error::OpenworkError;
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use openwork::MatrixMut;
use openwork::prune::Monitor;
use openwork_llm::chat::Message;
use openwork_llm::evaluate::Options;
use openwork_llm::generate::{Generation, Sampling};
use openwork_llm::model::ModelError;
use openwork_llm::{LanguageModelError, evaluate};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A model that runs in this process.
#[pyclass(module = "openwork._native", frozen)]
pub struct LanguageModel(openwork_llm::LanguageModel);

/// A generated text and its statistics, as JSON.
type Generated = (String, String);

/// `OpenworkError` for invalid input, `RuntimeError` for a failure while running.
fn raised(error: LanguageModelError) -> PyErr {
    let words = error.to_string();
    if error.is_input() { OpenworkError::new_err(words) } else { PyRuntimeError::new_err(words) }
}

/// Runs a long call; Ctrl-C stops it.
fn call<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut (dyn FnMut(f64) -> ControlFlow<()> + Send)) -> Result<T, LanguageModelError>
    + Send,
) -> PyResult<T> {
    let flag = Flag::default();
    let mut watch = |share: f64| {
        flag.progress(share);
        if flag.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    background::run(py, |_| Ok(()), || flag.stop(), || work(&mut watch))?.map_err(raised)
}

#[pymethods]
impl LanguageModel {
    /// Opens a model.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        // The variables that choose kernels: products ignore unknown values.
        openwork::sparse::kernel().map_err(OpenworkError::new_err)?;
        openwork::sparse::activations().map_err(OpenworkError::new_err)?;
        py.detach(|| openwork_llm::LanguageModel::open(&path)).map(Self).map_err(raised)
    }

    /// The config as JSON.
    fn config(&self) -> String {
        self.0.checkpoint().config().to_string()
    }

    /// Most tokens of a sequence.
    #[getter]
    fn max_length(&self) -> PyResult<usize> {
        Ok(self.0.model().map_err(raised)?.config().max_positions)
    }

    /// Entries of a row of logits.
    #[getter]
    fn vocab_size(&self) -> PyResult<usize> {
        Ok(self.0.model().map_err(raised)?.config().vocab)
    }

    /// The beginning-of-sequence token, the end-of-sequence tokens, and whether the
    /// former is added to texts.
    fn special_tokens(&self) -> (Option<u32>, Vec<u32>, bool) {
        let tokenizer = self.0.tokenizer();
        (tokenizer.bos(), tokenizer.eos().to_vec(), tokenizer.adds_bos())
    }

    /// The tokens of a text, without special tokens.
    fn tokenize(&self, text: &str) -> PyResult<Vec<u32>> {
        self.0.tokenizer().encode(text).map_err(|error| raised(error.into()))
    }

    /// The text of tokens.
    fn detokenize(&self, tokens: Vec<u32>) -> PyResult<String> {
        self.0.tokenizer().decode(&tokens).map_err(|error| raised(error.into()))
    }

    /// The tokens of a context and of its continuation, as lm-eval splits them.
    fn tokenize_pair(&self, context: &str, continuation: &str) -> PyResult<(Vec<u32>, Vec<u32>)> {
        let pair = self.0.tokenizer().encode_pair(context, continuation);
        let pair = pair.map_err(|error| raised(error.into()))?;
        Ok((pair.context, pair.continuation))
    }

    /// Logits after each token: `[tokens, vocabulary]`.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let (rows, cols) = (tokens.len(), self.vocab_size()?);
        let logits = call(py, |watch| {
            let mut logits = vec![0.0; rows * cols];
            let view = MatrixMut::new(&mut logits, rows, cols);
            self.0.logits_into(&tokens, view, watch)?;
            Ok(logits)
        })?;
        logits.into_pyarray(py).reshape([rows, cols])
    }

    /// The log-likelihood of each continuation, and whether it is what greedy decoding
    /// produces.
    fn loglikelihoods(
        &self,
        py: Python<'_>,
        pairs: Vec<(String, String)>,
    ) -> PyResult<Vec<(f64, bool)>> {
        let found = call(py, |watch| self.0.log_likelihoods(&pairs, watch))?;
        Ok(found.into_iter().map(|one| (one.log, one.greedy)).collect())
    }

    /// The same for tokens.
    fn token_loglikelihoods(
        &self,
        py: Python<'_>,
        pairs: Vec<(Vec<u32>, Vec<u32>)>,
    ) -> PyResult<Vec<(f64, bool)>> {
        let found = call(py, |watch| self.0.token_log_likelihoods(&pairs, watch))?;
        Ok(found.into_iter().map(|one| (one.log, one.greedy)).collect())
    }

    /// The object of `openwork eval --json` for a text.
    fn evaluate(
        &self,
        py: Python<'_>,
        text: &str,
        seq_len: Option<usize>,
        max_tokens: Option<usize>,
    ) -> PyResult<String> {
        let options = Options { seq_len, max_tokens, ..evaluate::Options::default() };
        let found = call(py, |watch| self.0.perplexity(text, &options, watch))?;
        Ok(found.to_json().to_string())
    }

    /// Generates after a prompt; `stream` is called with the text as it becomes certain.
    #[pyo3(signature = (prompt, max_new_tokens, temperature, top_k, top_p, seed, stream=None))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &str,
        max_new_tokens: usize,
        temperature: f64,
        top_k: Option<usize>,
        top_p: f64,
        seed: u64,
        stream: Option<Py<PyAny>>,
    ) -> PyResult<Generated> {
        let sampling = sampling(temperature, top_k, top_p, seed);
        streamed(py, stream, |on_text| self.0.generate(prompt, max_new_tokens, sampling, on_text))
    }

    /// The text of a conversation, by the model's chat template.
    fn chat_text(
        &self,
        messages: Vec<(String, String)>,
        add_generation_prompt: bool,
    ) -> PyResult<String> {
        self.0.chat_text(&said(messages), add_generation_prompt).map_err(raised)
    }

    /// Generates the next message of a conversation.
    #[pyo3(signature = (messages, max_new_tokens, temperature, top_k, top_p, seed, stream=None))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: Vec<(String, String)>,
        max_new_tokens: usize,
        temperature: f64,
        top_k: Option<usize>,
        top_p: f64,
        seed: u64,
        stream: Option<Py<PyAny>>,
    ) -> PyResult<Generated> {
        let (messages, sampling) = (said(messages), sampling(temperature, top_k, top_p, seed));
        streamed(py, stream, |on_text| self.0.chat(&messages, max_new_tokens, sampling, on_text))
    }
}

/// Messages from pairs of role and content.
fn said(messages: Vec<(String, String)>) -> Vec<Message> {
    messages.into_iter().map(|(role, content)| Message { role, content }).collect()
}

/// Greedy at temperature 0.
fn sampling(temperature: f64, top_k: Option<usize>, top_p: f64, seed: u64) -> Sampling {
    match temperature {
        0.0 => Sampling::Greedy,
        _ => Sampling::Sampled { temperature, top_k, top_p, seed },
    }
}

/// Runs a generation; Python receives its text in pieces.
fn streamed(
    py: Python<'_>,
    stream: Option<Py<PyAny>>,
    work: impl FnOnce(
        &mut (dyn FnMut(&str) -> ControlFlow<()> + Send),
    ) -> Result<Generation, LanguageModelError>
    + Send,
) -> PyResult<Generated> {
    let (flag, text) = (Flag::default(), Mutex::new(String::new()));
    let deliver = |py: Python<'_>| {
        let new = std::mem::take(&mut *text.lock().unwrap_or_else(PoisonError::into_inner));
        match &stream {
            Some(stream) if !new.is_empty() => stream.call1(py, (new,)).map(drop),
            _ => Ok(()),
        }
    };
    let mut on_text = |new: &str| {
        text.lock().unwrap_or_else(PoisonError::into_inner).push_str(new);
        if flag.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let done = background::run(py, deliver, || flag.stop(), || work(&mut on_text))?;
    let done = done.map_err(|error| match error {
        LanguageModelError::Model(ModelError::Stopped) => PyRuntimeError::new_err("stopped"),
        error => raised(error),
    })?;
    deliver(py)?;
    Ok((done.text.clone(), done.to_json().to_string()))
}
