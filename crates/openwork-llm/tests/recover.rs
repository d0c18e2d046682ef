//! Recovery on every family: zeros stay, losses fall, and a run that is interrupted or
//! has other threads writes the same bytes.

use openwork::hessian::Hessian;
use openwork::prune::measure::OutputError;
use openwork::random::SplitMix64;
use openwork_llm::Checkpoint;
use openwork_llm::model::{Layer, Parameter, Site};
use openwork_llm::model::{LayerInfo, Model};
use openwork_llm::pack::{Patterns, ValueChoice, pack};
use openwork_llm::pipeline::estimate::Workers;
use openwork_llm::pipeline::stages::{Sums, TaskResult};
use openwork_llm::pipeline::{
    Capture, Event, Executor, Job, LocalExecutor, Observer, OptionValue, PipelineError, RunOptions,
    Spelling, Stage, TaskPlan,
};
use openwork_llm::recover::{
    Distillation, GradientSum, RateTrial, RecoverError, Student, WindowPasses, WindowWorker,
};
use openwork_llm::report::Record;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One tiny model of each kind of layer that the backward pass covers.
const FAMILIES: [&str; 21] = [
    "gemma2",
    "gemma3",
    "gemma3-images",
    "gemma4",
    "gemma4-e2b",
    "gemma4-e2b-moe",
    "gemma4-moe",
    "gpt-oss",
    "granite",
    "llama",
    "llama-tied",
    "ministral3",
    "mistral",
    "mixtral",
    "olmoe",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "qwen3-moe",
    "qwen3.5",
    "qwen3.5-moe",
];

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// A folder with a text of words that the tiny tokenizers know.
fn folder() -> tempfile::TempDir {
    let words = ["assert", "value", "return", "name", "in", "the", "class", "a", "object", "is"];
    let text: Vec<&str> = (0..6000).map(|i: usize| words[(i * i + i / 7) % words.len()]).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("calib.txt"), text.join(" ")).expect("a text");
    folder
}

/// Options of a run in a folder: further ones as `name=value`.
fn options(folder: &Path, out: &str, more: &[&str]) -> RunOptions {
    let path = |name: &str| OptionValue::Text(folder.join(name).into());
    let mut values = vec![
        ("calib", path("calib.txt")),
        ("out", path(out)),
        ("samples", OptionValue::Count(8)),
        ("seq_len", OptionValue::Count(24)),
        ("single_tokens", OptionValue::Count(0)),
    ];
    for option in more {
        let (name, value) = option.split_once('=').expect("name=value");
        let value = match value {
            "true" => OptionValue::Flag(true),
            value => {
                value.parse().map_or_else(|_| OptionValue::Text(value.into()), OptionValue::Count)
            }
        };
        values.retain(|(known, _)| *known != name);
        values.push((name, value));
    }
    RunOptions::from_values(values).expect("valid options")
}

fn prune(
    name: &str,
    options: &RunOptions,
    observer: &dyn Observer,
) -> Result<Record, PipelineError> {
    let source = options.open(&model(name))?;
    options.prepare(&source, None)?.run(observer, &mut LocalExecutor::default())
}

fn recover(
    pruned: &Path,
    reference: &Path,
    options: &RunOptions,
    observer: &dyn Observer,
) -> Result<Record, PipelineError> {
    let source = options.open(pruned)?;
    let reference = Checkpoint::open(reference)?;
    options.prepare_recovery(&source, &reference)?.run(observer, &mut LocalExecutor::default())
}

/// Every tensor of a folder.
fn tensors(folder: &Path) -> BTreeMap<String, Vec<f32>> {
    let model = Checkpoint::open(folder).expect("a model");
    model.tensors().map(|tensor| (tensor.name().to_string(), tensor.to_f32())).collect()
}

/// The bytes of every file of a model, without measurements of time.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one"));
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).expect("a file");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

const BOTH: &str = "recover=blocks[epochs=2]+model[steps=6,seq_len=16]";

#[test]
fn every_family_recovers_with_its_zeros_in_place() {
    for name in FAMILIES {
        for stages in
            [BOTH, "recover=halves[epochs=2,batch=3]", "recover=model[steps=5,seq_len=16]"]
        {
            let folder = folder();
            let options = options(folder.path(), "out", &["spec=2:4", "method=sparsegpt", stages]);
            let record = prune(name, &options, &()).expect("a run");
            let asked = options.recover.as_ref().expect("a recovery");
            let names: Vec<&str> =
                record.recovery.iter().map(|stage| stage.stage.as_str()).collect();
            assert_eq!(names.join("+"), asked.to_string(), "{name}");
            for stage in &record.recovery {
                assert!(stage.after < stage.before, "{name}: {stage:?}");
                assert!(stage.tokens > 0, "{name}: {stage:?}");
            }
            let out = folder.path().join("out");
            let source = Checkpoint::open(&out).expect("a model");
            let config = Model::open(&source).expect("a model").config().clone();
            let infos: Vec<LayerInfo> =
                (0..config.layers).map(|layer| LayerInfo::new(&config, layer)).collect();
            let linears =
                infos.iter().flat_map(|info| (0..info.linears.len()).map(move |i| (info, i)));
            for (info, linear) in linears {
                let (layer, name_of) = (info.index, info.weight_name(linear));
                let weights = source.tensor(&name_of).expect("weights");
                for scope in weights.to_f32().chunks_exact(4) {
                    let kept = scope.iter().filter(|weight| **weight != 0.0).count();
                    assert!(kept <= 2, "{name}, layer {layer}, linear {linear}: {scope:?}");
                }
            }
        }
    }
}

/// Stops a run after some events.
struct StopAfter(AtomicUsize, usize);

impl Observer for StopAfter {
    fn on_event(&self, _: Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= self.1
    }
}

#[test]
fn an_interrupted_recovery_resumes_to_the_same_bytes() {
    // The layers of the last one share keys and values.
    for (name, method, stages) in [
        ("qwen2", "wanda", BOTH),
        ("qwen2", "wanda", MOVING),
        ("qwen2", "wanda+quant", BOTH),
        ("gemma4-e2b", "wanda", BOTH),
    ] {
        interrupted(name, &format!("method={method}"), stages);
    }
}

fn interrupted(name: &str, method: &str, stages: &str) {
    let folder = folder();
    let more = ["spec=2:4", method, stages, "resume=true"];
    let whole = options(folder.path(), "whole", &more);
    let expected = prune(name, &whole, &()).expect("a run");
    let stopped = options(folder.path(), "stopped", &more);
    let mut stops = 0;
    let record = loop {
        // Every start gets a little further.
        match prune(name, &stopped, &StopAfter(AtomicUsize::new(0), 9 + 7 * stops)) {
            Ok(record) => break record,
            Err(PipelineError::Stopped) => stops += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(stops < 100, "it never ends");
    };
    assert!(stops > 3, "it was not interrupted often: {stops}");
    assert!(files(&folder.path().join("whole")) == files(&folder.path().join("stopped")));
    // Numbers that were read from JSON may differ in their last digit.
    for (stage, expected) in record.recovery.iter().zip(&expected.recovery) {
        assert!((stage.before / expected.before - 1.0).abs() < 1e-14, "{stage:?}");
        assert!((stage.after / expected.after - 1.0).abs() < 1e-14, "{stage:?}");
    }
    assert_eq!(record.recovery.len(), expected.recovery.len());
    assert!(!folder.path().join("stopped/openwork/work").exists());
}

#[test]
fn threads_and_files_for_states_do_not_change_a_byte() {
    for name in ["gemma3", "gemma4-e2b", "qwen3.5"] {
        let folder = folder();
        let run = |out: &str, threads: usize, spill: &str| {
            let more = ["spec=2:4", "method=wanda", MOVING, spill];
            let options = options(folder.path(), out, &more);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.expect("a pool");
            pool.install(|| prune(name, &options, &())).expect("a run");
            files(&folder.path().join(out))
        };
        let one = run("one", 1, "seed=0");
        assert!(one == run("three", 3, "seed=0"), "{name}");
        assert!(one == run("spilled", 2, "spill_over=0"), "{name}");
    }
}

/// An executor whose windows are computed by several workers, which finish in any order, and
/// which are often lost: their windows are computed again by others that know nothing.
struct Scattered {
    local: LocalExecutor,
    workers: usize,
    seed: u64,
    lost: usize,
    /// Parameters that the executor was told about, by kind.
    changed: [usize; 2],
}

struct ScatteredPasses<'a> {
    task: &'a Distillation<'a>,
    workers: Vec<WindowWorker>,
    random: SplitMix64,
    lost: &'a mut usize,
}

impl Executor for Scattered {
    fn start(&mut self, job: &Job, model: &Model<'_>, folder: &Path) -> Result<(), PipelineError> {
        self.local.start(job, model, folder)
    }

    fn capture(
        &mut self,
        layer: &Layer,
        capture: Capture<'_>,
        observer: &dyn Observer,
    ) -> Result<Sums, PipelineError> {
        self.local.capture(layer, capture, observer)
    }

    fn prune(
        &mut self,
        tasks: &[&TaskPlan],
        layer: &Layer,
        hessians: &[(Site, Hessian)],
        observer: &dyn Observer,
    ) -> Result<Vec<TaskResult>, PipelineError> {
        self.local.prune(tasks, layer, hessians, observer)
    }

    fn changed(&mut self, _: &Layer, parameters: &[Parameter]) -> Result<(), PipelineError> {
        for parameter in parameters {
            self.changed[usize::from(matches!(parameter, Parameter::Weight(_)))] += 1;
        }
        Ok(())
    }

    fn advance(
        &mut self,
        layer: &Layer,
        stage: Stage,
        observer: &dyn Observer,
    ) -> Result<Vec<OutputError>, PipelineError> {
        self.local.advance(layer, stage, observer)
    }

    fn window_passes<'a>(
        &'a mut self,
        task: &'a Distillation<'a>,
    ) -> Result<Box<dyn WindowPasses + 'a>, PipelineError> {
        let workers: Result<Vec<WindowWorker>, RecoverError> =
            (0..self.workers).map(|_| WindowWorker::new(task)).collect();
        let (workers, random) = (workers?, SplitMix64(self.seed));
        Ok(Box::new(ScatteredPasses { task, workers, random, lost: &mut self.lost }))
    }
}

impl WindowPasses for ScatteredPasses<'_> {
    fn losses(
        &mut self,
        student: &Student<'_>,
        windows: &[usize],
        mut sum: Option<&mut GradientSum>,
    ) -> Result<Vec<f64>, RecoverError> {
        let weights = student.flat();
        let mut results = vec![None; windows.len()];
        while results.iter().any(Option::is_none) {
            let mut below = |n: usize| self.random.below(n as u64) as usize;
            let (place, worker, dies) =
                (below(windows.len()), below(self.workers.len()), below(5) == 0);
            if dies {
                self.workers[worker] = WindowWorker::new(self.task)?;
                *self.lost += 1;
                continue;
            }
            let worker = &mut self.workers[worker];
            worker.receive(&weights)?;
            results[place] = Some(match sum.is_some() {
                true => worker.gradients(self.task, windows[place])?,
                false => (worker.loss(self.task, windows[place])?, Vec::new()),
            });
        }
        let results: Vec<(f64, Vec<f32>)> = results.into_iter().flatten().collect();
        if let Some(sum) = &mut sum {
            results.iter().try_for_each(|(_, gradients)| sum.add_flat(gradients))?;
        }
        Ok(results.into_iter().map(|(loss, _)| loss).collect())
    }
}

#[test]
fn workers_that_finish_in_any_order_or_die_do_not_change_a_byte() {
    for (name, method, stages) in [
        ("qwen3", "wanda", "blocks[epochs=1]+model[steps=5,seq_len=16,batch=4]"),
        ("llama", "wanda+quant", "model[steps=4,seq_len=16,batch=3,lr=1e-3,decay=0.1,states=1]"),
        ("qwen2", "wanda", "model[steps=6,seq_len=16,batch=2,regrow=0.2,every=2]"),
        ("gemma4-e2b-moe", "wanda", "halves[epochs=1]+model[steps=3,seq_len=16,batch=3]+blocks"),
    ] {
        let folder = folder();
        let (method, stages) = (format!("method={method}"), format!("recover={stages}"));
        let more = ["spec=2:4", method.as_str(), stages.as_str(), "resume=true"];
        let run = |out: &str, workers: usize, observer: &dyn Observer| {
            let options = options(folder.path(), out, &more);
            let source = options.open(&model(name)).expect("a model");
            let asked = Some(Workers { count: workers, threads: 1 });
            let run = options.prepare(&source, asked).expect("a run");
            let (seed, local) = (workers as u64, LocalExecutor::default());
            let mut executor = Scattered { local, workers, seed, lost: 0, changed: [0; 2] };
            let result = run.run(observer, &mut executor);
            if result.is_ok() {
                let trained = stages.contains("blocks[") || stages.contains("halves[");
                assert_eq!(executor.changed[0] > 0, trained, "{stages}");
                assert!(executor.lost > 0 && executor.changed[1] > 0, "{stages}");
            }
            result
        };
        prune(name, &options(folder.path(), "local", &more), &()).expect("a run");
        let local = files(&folder.path().join("local"));
        for workers in [1, 3] {
            let out = format!("by-{workers}");
            run(&out, workers, &()).expect("a run");
            assert!(
                local == files(&folder.path().join(out)),
                "{name}: {workers} workers, {stages}"
            );
        }
        // Interrupted there, continued here.
        let stop = StopAfter(AtomicUsize::new(0), 30);
        assert!(matches!(run("resumed", 2, &stop), Err(PipelineError::Stopped)), "{name}");
        prune(name, &options(folder.path(), "resumed", &more), &()).expect("a run");
        assert!(local == files(&folder.path().join("resumed")), "{name}: resumed, {stages}");
    }
}

#[test]
fn workers_that_wait_are_noted() {
    let folder = folder();
    let notes = |stages: &str| {
        let options = options(folder.path(), "out", &["spec=2:4", stages]);
        let source = options.open(&model("llama")).expect("a model");
        let workers = Some(Workers { count: 4, threads: 1 });
        options.prepare(&source, workers).expect("a run").notes.join("\n")
    };
    let note = "a step has 2 windows for 4 workers, so some of them wait";
    assert!(notes("recover=model[steps=4,seq_len=16,batch=2]").contains(note));
    assert!(!notes("recover=blocks+model[steps=4,seq_len=16,batch=4]").contains("wait"));
}

#[test]
fn numbers_of_another_model_are_refused_in_words() {
    let folder = folder();
    let source = Checkpoint::open(&model("qwen3")).expect("a model");
    let model = Model::open(&source).expect("a model");
    let recovery: openwork_llm::recover::Recovery = "model".parse().expect("a stage");
    let windows = vec![vec![1, 2, 3]; 2];
    let task = Distillation {
        reference: &model,
        model: &model,
        options: &recovery.stages[0],
        windows: &windows,
        held_out: &windows[..1],
        memory: None,
        folder: folder.path(),
    };
    let mut worker = WindowWorker::new(&task).expect("a worker");
    let words = |result: Result<(), RecoverError>| result.expect_err("refused").to_string();
    let message = words(worker.receive(&[0.5; 3]));
    assert!(message.starts_with("3 weights arrived from another process for "), "{message}");
    let message = words(worker.loss(&task, 3).map(drop));
    assert_eq!(message, "a worker was asked for window 3; the stage has 3");
    let ragged = vec![vec![1, 2, 3], vec![1]];
    let message = words(WindowWorker::new(&Distillation { windows: &ragged, ..task }).map(drop));
    assert!(message.contains("windows of 3 and of 1 tokens"), "{message}");
    let unknown = vec![vec![1, 2, u32::MAX]; 2];
    let message = words(WindowWorker::new(&Distillation { windows: &unknown, ..task }).map(drop));
    assert!(message.contains("4294967295"), "{message}");
}

#[test]
fn only_what_may_change_changes() {
    let folder = folder();
    prune("llama", &options(folder.path(), "pruned", &["spec=2:4", "method=wanda"]), &())
        .expect("a run");
    let pruned = folder.path().join("pruned");
    let before = tensors(&pruned);
    let is_norm = |name: &str| name.contains("norm") || name.ends_with(".bias");
    let in_linear = |name: &str| name.contains("proj") && name.ends_with(".weight");
    for (i, (stages, weights, norms)) in [
        ("recover=blocks[epochs=1]", true, true),
        ("recover=blocks[train=norms,epochs=1]", false, true),
        ("recover=blocks[train=weights,decay=0.1,epochs=1]", true, false),
        ("recover=model[train=norms,steps=4,seq_len=16]", false, true),
        ("recover=model[train=weights,decay=0.1,steps=4,seq_len=16]", true, false),
        ("recover=model[loss=mix,temperature=2,batch=2,steps=4,seq_len=16]+blocks", true, true),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("out-{i}");
        let options = options(folder.path(), &out, &[stages]);
        let record = recover(&pruned, &model("llama"), &options, &()).expect("a run");
        // What is known from pruning stays known.
        assert_eq!((record.spec.as_str(), record.method.as_str()), ("2:4", "wanda"), "{stages}");
        assert!(record.linears().all(|linear| linear.error > 0.0), "{stages}");
        let after = tensors(&folder.path().join(out));
        assert!(before.keys().eq(after.keys()), "{stages}");
        let mut changed = [false; 2];
        for (name, old) in &before {
            let new = &after[name];
            let zeros = |x: &[f32]| -> Vec<bool> { x.iter().map(|x| *x == 0.0).collect() };
            assert!(!in_linear(name) || zeros(old) == zeros(new), "{stages}: {name}");
            if old != new {
                assert!(in_linear(name) || is_norm(name), "{stages}: {name} changed");
                changed[usize::from(is_norm(name))] = true;
            }
        }
        assert_eq!(changed, [weights, norms], "{stages}");
    }
}

/// Blocks move in the first steps of both stages.
const MOVING: &str =
    "recover=blocks[epochs=2,regrow=0.05,every=3]+model[steps=8,seq_len=16,regrow=0.05,every=2]";

/// Kept weights that training may bring to zero, as stored in 16 bits.
const TRAINED_TO_ZERO: usize = 2;

#[test]
fn moved_blocks_keep_the_pattern_and_its_budget() {
    let specs = ["2:4", "unstructured(50%)", "block(4,4,50%)", "mlp keep 75%", "2:4x2"];
    for spec in specs {
        let folder = folder();
        let spec_option = format!("spec={spec}");
        let plain = ["method=wanda", &spec_option];
        prune("qwen2", &options(folder.path(), "pruned", &plain), &()).expect("a run");
        let pruned = folder.path().join("pruned");
        let (moving, fixed) =
            (options(folder.path(), "moving", &[MOVING]), options(folder.path(), "fixed", &[BOTH]));
        let record = recover(&pruned, &model("qwen2"), &moving, &()).expect("a run");
        recover(&pruned, &model("qwen2"), &fixed, &()).expect("a run");
        assert!(record.recovery.iter().all(|stage| stage.after <= stage.before), "{spec}");
        // It conforms: it can be recovered again.
        let out = folder.path().join("moving");
        let again = options(folder.path(), "again", &["recover=model[steps=2,seq_len=16]"]);
        recover(&out, &model("qwen2"), &again, &()).expect("a model with its pattern");
        let zeros = |folder: &str| -> Vec<(String, Vec<bool>)> {
            let linear = |name: &str| name.contains("proj") && name.ends_with(".weight");
            let all = tensors(&folder_of(&pruned, folder)).into_iter();
            let all = all.filter(|(name, _)| linear(name));
            all.map(|(name, w)| (name, w.iter().map(|w| *w == 0.0).collect())).collect()
        };
        let (before, moved) = (zeros("pruned"), zeros("moving"));
        let stay_zero = |((_, before), (_, after)): (&(_, Vec<bool>), &(_, Vec<bool>))| {
            before.iter().zip(after).all(|(&before, &after)| !before || after)
        };
        assert!(before.iter().zip(&zeros("fixed")).all(stay_zero), "{spec}");
        // A pruned channel is zero in gate, up and down, so none of them has a gradient there.
        match spec.starts_with("mlp") {
            true => assert!(before == moved, "{spec}: a block without a gradient moved"),
            false => assert!(before != moved, "{spec}: no block moved"),
        }
        let count = |masks: &[(String, Vec<bool>)]| -> Vec<usize> {
            masks.iter().map(|(_, zeros)| zeros.iter().filter(|zero| **zero).count()).collect()
        };
        // Whole tensors, because a coupling's budget spans several of them.
        let total = |masks| count(masks).iter().sum::<usize>();
        let more = total(&moved).checked_sub(total(&before));
        assert!(more.is_some_and(|more| more <= TRAINED_TO_ZERO), "{spec}: {more:?} more zeros");
    }
}

/// Packs and unpacks a folder with the codes in its record; checks that it loses nothing.
fn packs_without_loss(folder: &Path, encoding: &str, at: &str) {
    let (packed, source) = (folder.with_extension("packed"), Checkpoint::open(folder));
    let source = source.expect("a model");
    let model = Model::open(&source).expect("a model");
    let choice = ValueChoice::default().with_record(&source);
    let patterns = Patterns::from_record(&source).expect("a record");
    let summary = pack(&model, &patterns, choice, &packed, &mut |_| {}).expect("packed");
    assert!(summary.tensors.iter().all(|tensor| tensor.values == encoding), "{at}");
    let tolerance = if encoding == "int4" { 0.0 } else { 1.0 / 256.0 }; // rounding to bf16
    for (name, packed) in tensors(&packed) {
        let stored = source.tensor(&name).expect("a tensor").to_f32();
        let mut pairs = packed.iter().zip(&stored);
        let same = pairs.all(|(a, b)| (a - b).abs() <= tolerance * b.abs());
        assert!(same, "{at}: {name}");
    }
    std::fs::remove_dir_all(&packed).expect("a folder");
}

#[test]
fn quantized_weights_stay_values_of_their_codes() {
    let cases = [
        ("2:4", "wanda+quant", "int4"),
        ("2:4", "wanda+quant[bits=8]", "int8"),
        ("keep 100%", "magnitude+quant", "int4"),
        ("6:8", "wanda+quant[group=64]", "int4"),
        ("block (4,1) scope (1,8) keep 4 then 2:4", "magnitude+quant", "int4"),
        ("mlp keep 75%", "magnitude+quant", "int4"),
    ];
    for (spec, method, encoding) in cases {
        let folder = folder();
        let (spec_option, method_option) = (format!("spec={spec}"), format!("method={method}"));
        let plain = [spec_option.as_str(), &method_option];
        prune("llama", &options(folder.path(), "pruned", &plain), &()).expect("a run");
        let pruned = folder.path().join("pruned");
        let before = tensors(&pruned);
        // A weight moves by at most the learning rate in a step, and by half a scale to another
        // code.
        let stages = [
            "recover=blocks[epochs=4,lr=3e-3]+model[steps=16,seq_len=16,lr=3e-3]",
            "recover=halves[epochs=4,lr=3e-3,decay=0.1]+model[steps=16,seq_len=16,lr=3e-3,decay=0.1]",
        ];
        for (i, stages) in stages.into_iter().enumerate() {
            let at = format!("{method} on {spec}, {stages}");
            let (at_once, after) = (format!("once-{i}"), format!("after-{i}"));
            let options_once = options(folder.path(), &at_once, &[plain[0], plain[1], stages]);
            let options_after = options(folder.path(), &after, &[stages]);
            let once = prune("llama", &options_once, &()).expect("a run");
            let later = recover(&pruned, &model("llama"), &options_after, &()).expect("a run");
            for (record, out) in [(once, at_once), (later, after)] {
                let stages = &record.recovery;
                assert!(stages.iter().all(|stage| stage.after <= stage.before), "{at}: {stages:?}");
                assert!(stages.iter().any(|stage| stage.after < stage.before), "{at}: {stages:?}");
                packs_without_loss(&folder.path().join(&out), encoding, &at);
            }
            // A code of zero is a kept weight, and may become another.
            let dropped = |w: &[f32]| -> Vec<bool> { w.iter().map(|w| w.to_bits() == 0).collect() };
            let after = tensors(&folder.path().join(format!("after-{i}")));
            let mut linears = before.iter().filter(|(name, _)| name.contains("proj"));
            assert!(linears.clone().any(|(name, old)| *old != after[name]), "{at}: no change");
            assert!(linears.all(|(name, old)| dropped(old) == dropped(&after[name])), "{at}");
        }
    }
}

#[test]
fn what_cannot_be_trained_in_codes_is_refused_in_words() {
    let folder = folder();
    let refused = |more: &[&str]| {
        let options = options(folder.path(), "refused", more);
        let error = prune("llama", &options, &()).expect_err("refused");
        assert!(error.is_input(), "{error}");
        assert!(!folder.path().join("refused").exists());
        error.spelled(Spelling::Flags)
    };
    let message = refused(&["spec=2:4", "method=wanda+quant", MOVING]);
    assert!(message.contains("regrow cannot move blocks of quantized weights"), "{message}");
    let message = refused(&["spec=mlp keep 75%", "method=wanda+quant", "remove=true", BOTH]);
    assert!(message.contains("a run of one pass that removes nothing"), "{message}");
    // The record says codes, the weights do not.
    let plain = ["spec=2:4", "method=wanda"];
    prune("llama", &options(folder.path(), "pruned", &plain), &()).expect("a run");
    let record = folder.path().join("pruned/openwork/record.json");
    let text = std::fs::read_to_string(&record).expect("a record");
    std::fs::write(&record, text.replace("\"wanda\"", "\"wanda+quant\"")).expect("a record");
    for stages in ["recover=blocks", "recover=model[steps=2,seq_len=16]"] {
        let options = options(folder.path(), "refused", &[stages]);
        let pruned = folder.path().join("pruned");
        let error = recover(&pruned, &model("llama"), &options, &()).expect_err("refused");
        let message = error.to_string();
        assert!(message.contains("are not values of int4 codes"), "{message}");
        assert!(error.is_input(), "{message}");
    }
}

/// A folder beside another.
fn folder_of(sibling: &Path, name: &str) -> PathBuf {
    sibling.with_file_name(name)
}

#[test]
fn removed_structures_and_rules_are_recovered_too() {
    let folder = folder();
    let more = ["spec=mlp keep 75%", "remove=true", BOTH];
    let record = prune("llama", &options(folder.path(), "out", &more), &()).expect("a run");
    assert!(record.sizes.is_some_and(|sizes| sizes.after.parameters < sizes.before.parameters));
    assert!(record.recovery.iter().all(|stage| stage.after < stage.before));
    let small = Checkpoint::open(&folder.path().join("out")).expect("a model");
    assert_eq!(Model::open(&small).expect("a model").config().ff, 42);
}

/// Collects notes.
#[derive(Default)]
struct Notes(std::sync::Mutex<Vec<String>>);

impl Observer for Notes {
    fn on_event(&self, event: Event<'_>) {
        if let Event::Note(note) = event {
            self.0.lock().expect("one thread").push(note.to_string());
        }
    }
}

#[test]
fn the_learning_rate_is_that_of_the_best_trial_unless_it_is_given() {
    let folder = folder();
    let run = |out: &str, stage: &str| {
        let options = options(folder.path(), out, &["spec=2:4", "method=wanda", stage]);
        let record = prune("llama", &options, &()).expect("a run");
        record.recovery[0].clone()
    };
    let chosen = run("chosen", "recover=model[steps=12,seq_len=32]");
    let loss = |trial: &RateTrial| trial.held_out.unwrap_or(f64::INFINITY);
    let best = chosen.trials.iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).expect("trials");
    assert!(chosen.trials.len() >= 2, "{chosen:?}");
    assert_eq!(chosen.lr, Some(best.lr), "{chosen:?}");
    // Trials leave nothing behind: the same rate, given, leads to the same bytes.
    let stage = format!("recover=model[steps=12,seq_len=32,lr={}]", best.lr);
    let given = run("given", &stage);
    assert!(given.trials.is_empty());
    assert_eq!((given.after, given.curve), (chosen.after, chosen.curve));
    assert_eq!(tensors(&folder.path().join("chosen")), tensors(&folder.path().join("given")));
}

#[test]
fn a_training_that_diverges_changes_nothing_and_says_so() {
    let folder = folder();
    let pruned = ["spec=2:4", "method=wanda"];
    prune("llama", &options(folder.path(), "pruned", &pruned), &()).expect("a run");
    let diverging = "recover=blocks[lr=1e30,epochs=1]+model[lr=1e30,steps=3,seq_len=16]";
    let notes = Notes::default();
    let options = options(folder.path(), "out", &[diverging]);
    let pruned = folder.path().join("pruned");
    let record = recover(&pruned, &model("llama"), &options, &notes).expect("a run");
    for stage in &record.recovery {
        assert_eq!((stage.before, stage.lr), (stage.after, None), "{stage:?}");
    }
    assert_eq!(tensors(&pruned), tensors(&folder.path().join("out")));
    let notes = notes.0.into_inner().expect("one thread");
    assert!(notes.iter().any(|note| note.starts_with("layer 0: training did not")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("steps=3")), "{notes:?}");
}

#[test]
fn what_cannot_be_recovered_is_refused_in_words() {
    let folder = folder();
    prune("llama", &options(folder.path(), "pruned", &["spec=2:4", "method=wanda"]), &())
        .expect("a run");
    let pruned = folder.path().join("pruned");
    let why = |reference: &str, more: &[&str]| {
        let options = options(folder.path(), "out", more);
        let error = recover(&pruned, &model(reference), &options, &()).expect_err("refused");
        assert!(error.is_input(), "{error}");
        error.spelled(Spelling::Flags)
    };
    let message = why("qwen2", &["recover=blocks"]);
    assert!(message.contains("give the dense model that"), "{message}");
    let message = why("llama", &["recover=blocks", "samples=1"]);
    assert!(message.contains("--samples 1: blocks trains on calibration windows"), "{message}");
    let message = why("llama", &["recover=model[seq_len=100000]"]);
    assert!(message.contains("--recover model[seq_len=100000]: seq_len=100000"), "{message}");
    std::fs::write(folder.path().join("calib.txt"), "the class is a value in the class")
        .expect("a text");
    let message = why("llama", &["recover=model[seq_len=20]", "samples=2", "seq_len=4"]);
    assert!(message.contains("too few for windows of 20"), "{message}");
    // Weights that are no longer 2:4.
    let name = "model.layers.0.self_attn.q_proj.weight";
    let shard = std::fs::read_dir(&pruned)
        .expect("a folder")
        .map(|entry| entry.expect("one").path())
        .find(|path| path.to_string_lossy().contains("00002-of"))
        .expect("a shard");
    let mut bytes = std::fs::read(&shard).expect("a shard");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a shard");
    let data = tensors.tensor(name).expect("weights").data();
    let at = data.as_ptr() as usize - bytes.as_ptr() as usize;
    let len = data.len();
    bytes[at..at + len].fill(0x3f);
    std::fs::write(&shard, bytes).expect("a shard");
    let message = why("llama", &["recover=model[seq_len=4]", "samples=2", "seq_len=4"]);
    assert!(message.contains("does not have the pattern 2:4"), "{message}");
    assert!(!folder.path().join("out").exists());
}

#[test]
fn what_regrow_does_not_cover_is_refused_in_words() {
    let folder = folder();
    let refused = |name: &str, more: &[&str]| {
        let options = options(folder.path(), "refused", more);
        let error = prune(name, &options, &()).expect_err("refused");
        assert!(error.is_input(), "{error}");
        error.spelled(Spelling::Flags)
    };
    let message = refused("llama", &["spec=mlp keep 75%", "remove=true", MOVING]);
    assert!(message.contains("or removes structures"), "{message}");
    let message = refused("llama", &["spec=block (4,1) scope (1,8) keep 4 then 2:4", MOVING]);
    assert!(message.contains("patterns with several levels"), "{message}");
}

#[test]
fn windows_that_repeat_are_noted() {
    let folder = folder();
    let text = "the class is a value in the class ".repeat(8);
    std::fs::write(folder.path().join("calib.txt"), text).expect("a text");
    let more = ["spec=2:4", "recover=model[steps=4000,seq_len=8]"];
    let options = options(folder.path(), "out", &more);
    let source = options.open(&model("llama")).expect("a model");
    let notes = options.prepare(&source, None).expect("a run").notes;
    assert!(
        notes.iter().any(|note| note.contains("so the 4000 that are trained on repeat")),
        "{notes:?}"
    );
}
