//! Progress of `openwork prune` on stderr.

use crate::args::Global;
use crate::print;
use indicatif::{ProgressBar, ProgressStyle};
use openwork_llm::format::{count, format_estimate, format_seconds};
use openwork_llm::pipeline::{Event, Observer, Stage};
use openwork_llm::recover::Progress;
use openwork_llm::report::{LayerRecord, LayerRecovery, mean};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Least time between two drawings of a bar.
const EVERY: Duration = Duration::from_millis(100);

/// Bars on a terminal, lines elsewhere, JSON with `--events`, nothing if quiet.
pub struct Screen {
    output: Output,
    state: Mutex<State>,
}

enum Output {
    Silent,
    Lines,
    Events,
    Bars { overall: ProgressBar, layer: ProgressBar },
}

struct State {
    started: Instant,
    drawn: Instant,
    first: usize,
    layers: usize,
    /// Whether the run did anything.
    worked: bool,
    /// When a training started, and its share then.
    trained: Option<(Instant, f64)>,
    /// The share of it that was shown last.
    shown: f64,
}

impl Screen {
    /// Shows a run over `layers` layers.
    pub fn new(global: &Global, events: bool, layers: usize) -> Self {
        let output = if events {
            Output::Events
        } else if global.quiet {
            Output::Silent
        } else if std::io::stderr().is_terminal() {
            let bars = indicatif::MultiProgress::new();
            let bar = |length: u64, template: &str| {
                let bar = bars.add(ProgressBar::new(length));
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style);
                }
                bar
            };
            Output::Bars {
                overall: bar(layers as u64 * 1000, "{prefix:>12} {bar:30} {percent:>3}%  {msg}"),
                layer: bar(1000, "{prefix:>12} {bar:30} {percent:>3}%  {msg}"),
            }
        } else {
            Output::Lines
        };
        let now = Instant::now();
        Self {
            output,
            state: Mutex::new(State {
                started: now,
                drawn: now,
                first: 0,
                layers,
                worked: false,
                trained: None,
                shown: 0.0,
            }),
        }
    }

    /// Whether the run did anything: a finished run that is resumed does not.
    pub fn worked(&self) -> bool {
        self.state.lock().is_ok_and(|state| state.worked)
    }

    /// Clears the bars.
    pub fn end(&self) {
        if let Output::Bars { overall, layer } = &self.output {
            layer.finish_and_clear();
            overall.finish_and_clear();
        }
    }

    fn line(&self, text: String) {
        match &self.output {
            Output::Lines => print::aside(text),
            Output::Bars { overall, .. } => overall.suspend(|| print::aside(text)),
            _ => {}
        }
    }

    /// The training of a layer, on its bar; of the whole model, also as a line for every
    /// tenth.
    fn training(&self, state: &mut State, layer: Option<usize>, progress: Progress) {
        let Progress { share, loss, held_out } = progress;
        if state.trained.is_none() || state.trained.is_some_and(|(_, before)| share < before) {
            state.trained = Some((Instant::now(), share));
        }
        let Some((started, first)) = state.trained else { return };
        let left = match share > first {
            true => started.elapsed().as_secs_f64() * (1.0 - share) / (share - first),
            false => 0.0,
        };
        let losses = format!("loss {loss:.4}, held-out {held_out:.4}");
        let tenth = |share: f64| (10.0 * share + 1e-9) as usize;
        if layer.is_none() && tenth(share) > tenth(state.shown) && share < 1.0 {
            let percent = 10 * tenth(share);
            let left = format_estimate(left);
            self.line(format!("training  {percent} %  {losses}, about {left} left"));
        }
        state.shown = if share < 1.0 { share } else { 0.0 };
        let Output::Bars { layer: bar, .. } = &self.output else { return };
        bar.set_prefix(layer.map_or("model".to_string(), |layer| format!("layer {layer}")));
        bar.set_position((1000.0 * share.clamp(0.0, 1.0)) as u64);
        bar.set_message(format!("recover: {losses}"));
    }

    fn stage(&self, state: &mut State, layer: usize, stage: Stage, share: f64) {
        let Output::Bars { overall, layer: bar } = &self.output else { return };
        if state.drawn.elapsed() < EVERY {
            return;
        }
        state.drawn = Instant::now();
        bar.set_prefix(format!("layer {layer}"));
        bar.set_position((1000.0 * share.clamp(0.0, 1.0)) as u64);
        bar.set_message(stage.name());
        overall.set_prefix("all");
        overall.set_position(layer as u64 * 1000);
        let done = layer.saturating_sub(state.first);
        if done > 0 {
            let left = state.layers.saturating_sub(layer) as f64;
            let each = state.started.elapsed().as_secs_f64() / done as f64;
            overall.set_message(format!("{} left", format_estimate(each * left)));
        }
    }
}

impl Observer for Screen {
    fn on_event(&self, event: Event<'_>) {
        if let Output::Events = &self.output {
            // Progress comes too often for lines.
            if !event.is_progress() {
                print::aside(event.to_json());
            }
            return;
        }
        let Ok(mut state) = self.state.lock() else { return };
        state.worked |= !matches!(event, Event::Note(_));
        match event {
            Event::Start { pass, passes, spec, first, layers } => {
                (state.first, state.layers, state.started) = (first, layers, Instant::now());
                if passes > 1 {
                    self.line(format!("pass {pass} of {passes}: {spec}"));
                }
                if (1..layers).contains(&first) {
                    self.line(format!("resuming: {first} of {layers} layers already done"));
                }
            }
            Event::Progress { layer, stage, share } => self.stage(&mut state, layer, stage, share),
            Event::Training { layer, progress } => self.training(&mut state, layer, progress),
            Event::Pruned { .. } => {}
            Event::Layer(record) => self.line(layer_line(record, &state)),
            Event::Recovered(stage) => self.line(format!(
                "{}  held-out loss {:.4} before, {:.4} after  {}",
                stage.stage,
                stage.before,
                stage.after,
                format_seconds(stage.seconds)
            )),
            Event::Evaluated(found) => {
                let what = match found.after_layer {
                    None => "dense".to_string(),
                    Some(layer) => format!("after layer {layer}"),
                };
                self.line(format!(
                    "perplexity {what}: {:.3} per token, {:.3} per word",
                    found.token_perplexity, found.word_perplexity
                ));
            }
            Event::Compared(found) => self.line(format!(
                "cosine similarity to the dense model: mean {:.4}, lowest {:.4}, over {}",
                found.mean,
                found.least,
                count(found.texts, "text")
            )),
            Event::Scored(found) => {
                let what = match found.after_layer {
                    None => "dense".to_string(),
                    Some(layer) => format!("after layer {layer}"),
                };
                self.line(format!(
                    "{} {what}: accuracy {:.4}, normalized {:.4}",
                    found.name, found.acc, found.acc_norm
                ));
            }
            Event::Note(note) => self.line(format!("note: {note}")),
        }
    }
}

/// A layer's line. Layers are numbered from 0, as in the names of their tensors.
fn layer_line(record: &LayerRecord, state: &State) -> String {
    let errors: Vec<f64> =
        record.linears.iter().filter(|l| l.spec.is_some()).map(|l| l.error).collect();
    let decoder_error = format!("decoder error {:.4}", record.decoder_error);
    let recovered = record.recovery.as_ref().map(|LayerRecovery { before, after, .. }| {
        format!("held-out loss {before:.4} before training, {after:.4} after")
    });
    let parts = match (errors.is_empty(), recovered) {
        // It was pruned by another run.
        (true, Some(recovered)) => vec![recovered],
        (true, None) => vec!["dense".to_string(), decoder_error],
        (false, recovered) => {
            let error = format!("mean error {:.4}", mean(&errors));
            [error, decoder_error].into_iter().chain(recovered).collect()
        }
    };
    let done = record.index + 1;
    let left = state.layers.saturating_sub(done);
    let each =
        state.started.elapsed().as_secs_f64() / done.saturating_sub(state.first).max(1) as f64;
    format!(
        "layer {:>3}  {}  {:.1} s  ({done} of {} done, {} left)",
        record.index,
        parts.join("  "),
        record.seconds,
        state.layers,
        format_estimate(each * left as f64)
    )
}
