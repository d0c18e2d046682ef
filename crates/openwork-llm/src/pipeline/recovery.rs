//! Recovery within a run: each layer is trained right after it is pruned, and the whole
//! model after all of its layers are pruned.

use super::PipelineError;
use super::events::{Event, Observer};
use super::executor::Executor;
use super::layer_loop::tensor_parts;
use super::plan::bind;
use super::run::Job;
use crate::checkpoint::Dtype;
use crate::checkpoint::write::{self, Data, Part, shard_name};
use crate::model::{Config, Layer, LayerInfo, Model, Norm, Storage};
use crate::recover::{
    Chain, CodedLinear, Distillation, Distilled, Distiller, LayerTrainer, MIN_WINDOWS,
    PatternGroup, Progress, RecoverError, Recovery, StageOptions, Unit,
};
use crate::report::{LayerRecord, LayerRecovery, RecoveryRecord, mean};
use crate::tokens::{Tokenizer, covering_windows, random_windows};
use openwork::{Pattern, SpecError};
use std::path::Path;
use std::time::Instant;

/// A recovery with the windows that its stages train on.
#[derive(Clone, Debug)]
pub struct RecoveryPlan {
    /// The stages.
    pub recovery: Recovery,
    /// For each of [`Recovery::model_stages`] that trains the whole model, its windows.
    pub windows: Vec<StageWindows>,
}

/// The windows of a stage that trains the whole model.
#[derive(Clone, Debug, Default)]
pub struct StageWindows {
    /// To train on.
    pub train: Vec<Vec<u32>>,
    /// To measure the loss on.
    pub held_out: Vec<Vec<u32>>,
}

/// Number of held-out windows of a stage that trains the whole model.
const HELD_OUT: usize = 8;
/// Held-out windows are sampled from the last `1 / HELD_OUT_SHARE` of the text.
const HELD_OUT_SHARE: usize = 16;

impl RecoveryPlan {
    /// Samples the windows of all stages from the tokens of the calibration text, from which
    /// `calibration` windows were sampled already.
    pub fn new(
        recovery: Recovery,
        tokenizer: &Tokenizer,
        tokens: &[u32],
        (calibration, limit): (usize, usize),
        seed: u64,
    ) -> Result<Self, PipelineError> {
        let layers = recovery.stages.iter().find(|stage| stage.unit != Unit::Model);
        if let Some(stage) = layers.filter(|_| calibration < MIN_WINDOWS) {
            let why = format!(
                "{stage} trains on calibration windows and holds some of them out; give at least {MIN_WINDOWS}"
            );
            return Err(PipelineError::option("samples", calibration, why));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let draw = |stage: &StageOptions| -> Result<StageWindows, PipelineError> {
            if stage.unit != Unit::Model {
                return Ok(StageWindows::default());
            }
            let length = stage.window(limit);
            let wrong = |why: String| PipelineError::option("recover", stage, why);
            if length > limit {
                return Err(wrong(format!(
                    "seq_len={length}: the model takes at most {limit} tokens"
                )));
            }
            // The end of the text, with room for the held-out windows if possible.
            let tail = (tokens.len() / HELD_OUT_SHARE).max(2 * length).min(tokens.len() / 2);
            let (train, held_out) = tokens.split_at(tokens.len() - tail);
            let few = |text: &[u32]| (text.len() + 1).saturating_sub(length);
            if few(train) == 0 || few(held_out) == 0 {
                return Err(wrong(format!(
                    "the text has {} tokens, too few for windows of {length} to train on and others to measure the loss on; use a longer text, or a smaller seq_len",
                    tokens.len()
                )));
            }
            let count = (stage.steps * stage.batch).min(few(train));
            let seed = seed.wrapping_add(1);
            Ok(StageWindows {
                train: covering_windows(train, length, count, seed, bos)?,
                held_out: random_windows(held_out, length, HELD_OUT.min(few(held_out)), seed, bos)?,
            })
        };
        let windows = recovery.model_stages().iter().map(draw).collect::<Result<_, _>>()?;
        Ok(Self { recovery, windows })
    }

    /// Notes for the user: stages that repeat windows, because the text has too few.
    pub fn notes(&self) -> Vec<String> {
        let stages = self.recovery.model_stages().iter().zip(&self.windows);
        let short = stages.filter(|(stage, windows)| {
            stage.unit == Unit::Model && windows.train.len() < stage.steps * stage.batch
        });
        let note = |(stage, windows): (&StageOptions, &StageWindows)| {
            let (there, used) = (windows.train.len(), stage.steps * stage.batch);
            format!(
                "{stage}: the text has {there} different windows, so the {used} that are trained on repeat"
            )
        };
        short.map(note).collect()
    }
}

/// The patterns of the linears of each layer, by the record of a run: of all that it pruned
/// if a stage `moves` blocks, otherwise of those that it rounded to codes.
pub(super) fn pattern_groups(
    layers: &[LayerRecord],
    config: &Config,
    moves: bool,
) -> Result<Vec<Vec<PatternGroup>>, PipelineError> {
    let of_layer = |record: &LayerRecord| -> Result<Vec<PatternGroup>, PipelineError> {
        let info = LayerInfo::new(config, record.index);
        let mut groups: Vec<PatternGroup> = Vec::new();
        for (linear, record) in record.linears.iter().enumerate() {
            let Some(text) = &record.spec else { continue };
            let encoding = record.encoding();
            if !moves && encoding.is_none() {
                continue;
            }
            let wrong = |why: &dyn std::fmt::Display| {
                let name = &record.name;
                PipelineError::Plan(match moves {
                    true => format!(
                        "{name}: its pattern {text} cannot be moved: {why}; recover without regrow"
                    ),
                    false => format!(
                        "{name}: its codes in the pattern {text} cannot be trained: {why}; recover a model without +quant, then round it by pruning it with magnitude+quant"
                    ),
                })
            };
            let pattern: Pattern = text.parse().map_err(|error: SpecError| wrong(&error))?;
            let expert = info.linears[linear].expert;
            let members = pattern.members();
            let found: Option<Vec<usize>> =
                members.iter().map(|member| info.find(member, expert)).collect();
            let linears = match members.is_empty() {
                true => vec![linear],
                false => found.ok_or_else(|| wrong(&"the layer does not have all its tensors"))?,
            };
            if groups.iter().any(|group| group.linears == linears) {
                continue;
            }
            let spec = bind(&linears, &pattern, &info).map_err(|error| wrong(&error))?;
            let group = PatternGroup { linears, spec, encoding };
            if moves {
                movable(&group).map_err(|why| wrong(&why))?;
            }
            groups.push(group);
        }
        Ok(groups)
    };
    layers.iter().map(of_layer).collect()
}

/// Why the blocks of a group cannot move, if they cannot.
pub(super) fn movable(group: &PatternGroup) -> Result<(), &'static str> {
    match group {
        PatternGroup { encoding: Some(_), .. } => Err("quantized weights keep their mask"),
        PatternGroup { spec, .. } if spec.has_levels() => {
            Err("patterns with several levels keep their mask")
        }
        _ => Ok(()),
    }
}

/// The linears of a layer whose weights are values of codes.
fn coded_linears(
    layer: &Layer,
    groups: &[PatternGroup],
) -> Result<Vec<CodedLinear>, PipelineError> {
    let mut coded = Vec::new();
    for group in groups {
        let found = CodedLinear::of_group(layer, group).map_err(|error| {
            let names = group.linears.iter().map(|&linear| layer.info().weight_name(linear));
            PipelineError::Plan(format!(
                "{}: {error}; round them again by pruning the model with magnitude+quant",
                names.collect::<Vec<_>>().join(", ")
            ))
        })?;
        coded.extend(found);
    }
    Ok(coded)
}

/// The linears of each layer whose weights are values of codes, given the patterns by layer.
pub(super) fn coded_layers(
    model: &Model<'_>,
    groups: &[Vec<PatternGroup>],
) -> Result<Vec<Vec<CodedLinear>>, PipelineError> {
    let coded = |(index, groups): (usize, &Vec<PatternGroup>)| match groups.is_empty() {
        true => Ok(Vec::new()),
        false => coded_linears(&model.layer(index, Storage::F32)?, groups),
    };
    groups.iter().enumerate().map(coded).collect()
}

/// The recovery of layers, one after the other.
pub(super) struct LayerRecoverer<'a> {
    reference: &'a Model<'a>,
    options: &'a StageOptions,
    dtype: Dtype,
    seed: u64,
    chain: Chain,
    /// By layer; all if blocks move, otherwise those that were rounded to codes.
    groups: Vec<Vec<PatternGroup>>,
}

impl<'a> LayerRecoverer<'a> {
    /// Before the first layer of `model`.
    pub fn new(
        model: &Model<'_>,
        reference: &'a Model<'a>,
        options: &'a StageOptions,
        job: &Job,
        groups: Vec<Vec<PatternGroup>>,
        folder: &Path,
    ) -> Result<Self, PipelineError> {
        let (windows, memory) = (&job.calibration.windows, job.state_memory_limit);
        let chain = Chain::new(model, reference, windows, memory, folder)?;
        let (dtype, seed) = (job.dtype, job.calibration.seed);
        Ok(Self { reference, options, dtype, seed, chain, groups })
    }

    /// Advances through a layer that is already finished.
    pub fn replay(&mut self, layer: &mut Layer) -> Result<(), PipelineError> {
        let mut dense = self.reference.layer(layer.index(), Storage::F32)?;
        dense.round_products(self.options.rounds);
        layer.round_products(self.options.rounds);
        self.chain.replay(layer, &dense)?;
        layer.round_products(false);
        Ok(())
    }

    /// Trains a layer.
    pub fn train(
        &mut self,
        layer: &mut Layer,
        observer: &dyn Observer,
    ) -> Result<LayerRecovery, PipelineError> {
        let started = Instant::now();
        let (index, dtype) = (layer.index(), self.dtype);
        let mut dense = self.reference.layer(index, Storage::F32)?;
        let round = |numbers: &mut [f32]| dtype.round(numbers);
        let groups = self.groups.get(index).map_or(&[][..], Vec::as_slice);
        let coded = coded_linears(layer, groups)?;
        let (options, coded, seed) = (self.options, coded.as_slice(), self.seed);
        let trainer = LayerTrainer { options, groups, coded, seed, round: &round };
        let mut seen = on_progress(observer, Some(index));
        // Training may round products; the rest of the run does not.
        layer.round_products(self.options.rounds);
        dense.round_products(self.options.rounds);
        let trained = trainer.train(layer, &dense, &mut self.chain, &mut seen)?;
        layer.round_products(false);
        if trained.lr.is_none() {
            let note = format!(
                "layer {index}: training did not lower the held-out loss, so the layer stays as pruned"
            );
            observer.on_event(Event::Note(&note));
        }
        Ok(LayerRecovery {
            before: trained.before,
            after: trained.after,
            lr: trained.lr,
            tokens: trained.tokens,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// Reports the progress of a training, until the run is cancelled.
fn on_progress(observer: &dyn Observer, layer: Option<usize>) -> impl FnMut(Progress) -> bool + '_ {
    move |progress| {
        observer.on_event(Event::Training { layer, progress });
        !observer.cancelled()
    }
}

/// The record of a stage that trained layers; none if it trained none.
pub(super) fn layer_stage_record(
    stage: &StageOptions,
    layers: &[&LayerRecovery],
) -> Option<RecoveryRecord> {
    let all = |of: fn(&LayerRecovery) -> f64| -> Vec<f64> {
        layers.iter().map(|&layer| of(layer)).collect()
    };
    (!layers.is_empty()).then(|| RecoveryRecord {
        stage: stage.to_string(),
        before: mean(&all(|layer| layer.before)),
        after: mean(&all(|layer| layer.after)),
        seconds: all(|layer| layer.seconds).iter().sum(),
        tokens: layers.iter().map(|layer| layer.tokens).sum::<u64>() / layers.len() as u64,
        lr: None,
        trials: Vec::new(),
        curve: Vec::new(),
    })
}

/// A stage on a model whose layers are all pruned.
pub(super) struct ModelStage<'a> {
    pub reference: &'a Model<'a>,
    pub model: &'a Model<'a>,
    pub options: &'a StageOptions,
    pub windows: &'a StageWindows,
    pub job: &'a Job,
    /// The patterns of each layer; all if blocks move, otherwise those that were rounded to
    /// codes.
    pub groups: Vec<Vec<PatternGroup>>,
    /// For temporary files.
    pub folder: &'a Path,
}

impl ModelStage<'_> {
    /// Trains, and writes the result to a folder. The executor computes the windows if the
    /// whole model is trained; layers are trained in this process.
    pub fn run(
        &self,
        out: &Path,
        executor: &mut dyn Executor,
        observer: &dyn Observer,
    ) -> Result<RecoveryRecord, PipelineError> {
        let started = Instant::now();
        std::fs::create_dir_all(self.folder)
            .map_err(|error| PipelineError::io(self.folder, error))?;
        let (layers, norm, mut record) = match self.options.unit {
            Unit::Model => self.distill(executor, observer)?,
            Unit::Block | Unit::Half => self.train_layers(observer)?,
        };
        write_model(self.model, &layers, &norm, self.job.dtype, out)?;
        record.seconds = started.elapsed().as_secs_f64();
        Ok(record)
    }

    fn distill(
        &self,
        executor: &mut dyn Executor,
        observer: &dyn Observer,
    ) -> Result<(Vec<Layer>, Norm, RecoveryRecord), PipelineError> {
        let dtype = self.job.dtype;
        let round = |numbers: &mut [f32]| dtype.round(numbers);
        let coded = coded_layers(self.model, &self.groups)?;
        let task = Distillation {
            reference: self.reference,
            model: self.model,
            options: self.options,
            windows: &self.windows.train,
            held_out: &self.windows.held_out,
            memory: self.job.state_memory_limit,
            folder: self.folder,
        };
        let distiller = Distiller {
            task: &task,
            groups: &self.groups,
            coded: &coded,
            seed: self.job.calibration.seed,
            round: &round,
        };
        let mut passes = executor.window_passes(&task)?;
        let mut seen = on_progress(observer, None);
        let Distilled { layers, norm, before, after, lr, tokens, trials, curve } =
            distiller.run(passes.as_mut(), &mut seen)?;
        if lr.is_none() {
            observer.on_event(Event::Note(&format!(
                "{}: training did not lower the held-out loss, so the model is left as it was",
                self.options
            )));
        }
        let stage = self.options.to_string();
        let record =
            RecoveryRecord { stage, before, after, seconds: 0.0, tokens, lr, trials, curve };
        Ok((layers, norm, record))
    }

    fn train_layers(
        &self,
        observer: &dyn Observer,
    ) -> Result<(Vec<Layer>, Norm, RecoveryRecord), PipelineError> {
        let Self { reference, model, options, job, folder, .. } = *self;
        let groups = self.groups.clone();
        let mut recoverer = LayerRecoverer::new(model, reference, options, job, groups, folder)?;
        let (mut layers, mut records) = (Vec::new(), Vec::new());
        for index in 0..model.config().layers {
            let mut layer = model.layer(index, Storage::F32)?;
            records.push(recoverer.train(&mut layer, observer)?);
            layers.push(layer);
        }
        let records: Vec<&LayerRecovery> = records.iter().collect();
        let record = layer_stage_record(options, &records).expect("a model has layers");
        Ok((layers, model.head()?.norm.clone(), record))
    }
}

/// Writes a model with other layers and another last norm, its index last.
fn write_model(
    model: &Model<'_>,
    layers: &[Layer],
    norm: &Norm,
    dtype: Dtype,
    out: &Path,
) -> Result<(), PipelineError> {
    std::fs::create_dir_all(out).map_err(|error| PipelineError::io(out, error))?;
    let (source, config) = (model.checkpoint(), model.config());
    let count = layers.len() + 1;
    let offset = config.family.norm_offset;
    let norm: Vec<f32> = norm.factors().iter().map(|factor| factor - offset).collect();
    let rest: Vec<Part<'_>> = source
        .tensors()
        .filter(|t| !t.name().starts_with("model.layers."))
        .filter(|t| !config.tied || t.name() != "lm_head.weight")
        .map(|t| {
            let data = match t.name() == "model.norm.weight" {
                true => Data::F32(&norm),
                false => Data::Tensor(t),
            };
            Part::new(t.name(), dtype, t.shape(), data)
        })
        .collect();
    let mut listed = vec![write::listed_shard(&out.join(shard_name(1, count)), &rest, &[])?];
    for (i, layer) in layers.iter().enumerate() {
        let numbers = tensor_parts(model, layer, true)?;
        let parts: Vec<Part<'_>> = numbers.iter().map(|tensor| tensor.part(dtype)).collect();
        let parts = write::fused(parts, config.family);
        listed.push(write::listed_shard(&out.join(shard_name(i + 2, count)), &parts, &[])?);
    }
    write::companions(source, out, dtype, |_| {})?;
    write::index(out, &listed)?;
    Ok(())
}

impl From<RecoverError> for PipelineError {
    fn from(error: RecoverError) -> Self {
        match error {
            RecoverError::Model(error) => error.into(),
            RecoverError::Io { path, error } => Self::Io { path, error },
            RecoverError::Write(error) => error.into(),
            RecoverError::Executor(why) => Self::Executor(why),
            RecoverError::Stopped => Self::Stopped,
        }
    }
}
