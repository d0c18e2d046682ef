//! Frontiers on tiny models: every point is measured once, files of other models are
//! refused, and rounded runs are packed without loss.

use openwork_llm::Checkpoint;
use openwork_llm::evaluate;
use openwork_llm::frontier::{FrontierOptions, Kind, measure};
use openwork_llm::model::Model;
use openwork_llm::pack::{Patterns, ValueChoice, pack};
use openwork_llm::pipeline::{Event, LocalExecutor, Observer, OptionValue, RunOptions};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// A text of some hundred tokens.
fn text(folder: &Path) -> PathBuf {
    let path = folder.join("text.txt");
    let line = "the open work of a wall lets the light in and the wind out of the wall\n";
    std::fs::write(&path, line.repeat(40)).unwrap();
    path
}

fn options(folder: &Path) -> FrontierOptions {
    FrontierOptions {
        text: text(folder),
        evaluation: evaluate::Options {
            seq_len: Some(16),
            max_tokens: Some(64),
            ..evaluate::Options::default()
        },
        tasks: Vec::new(),
        task_limit: None,
        inputs: Vec::new(),
        specs: Vec::new(),
        values: Vec::new(),
        methods: Vec::new(),
        head: None,
        group: 32,
        calib: None,
        samples: 4,
        seq_len: Some(16),
        work: folder.join("work"),
        tokens: NonZeroUsize::MIN,
        turns: NonZeroUsize::MIN,
        size: None,
        speed: None,
    }
}

struct Quiet;

impl Observer for Quiet {
    fn on_event(&self, _: Event<'_>) {}
}

fn prune(model: &Path, folder: &Path, (spec, method): (&str, &str), dtype: &str, out: &Path) {
    let text = |text: &str| OptionValue::Text(text.into());
    let options = RunOptions::from_values([
        ("spec", text(spec)),
        ("method", text(method)),
        ("calib", OptionValue::Text(self::text(folder).into())),
        ("samples", OptionValue::Count(4)),
        ("seq_len", OptionValue::Count(16)),
        ("dtype", text(dtype)),
        ("out", OptionValue::Text(out.into())),
    ])
    .unwrap();
    let source = options.open(model).unwrap();
    let prepared = options.prepare(&source, None).unwrap();
    prepared.run(&Quiet, &mut LocalExecutor::default()).unwrap();
}

#[test]
fn points_are_measured_once_and_ranked() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata("models/llama");
    let mut options = options(folder.path());
    options.specs = vec!["2:4".to_string()];
    options.methods = vec!["wanda".to_string()];
    options.calib = Some(options.text.clone());
    let events = AtomicUsize::new(0);
    let count = |_: openwork_llm::frontier::FrontierEvent<'_>| {
        events.fetch_add(1, Ordering::Relaxed);
    };
    let first = measure(&model, &options, &count).unwrap();
    let mut names: Vec<&str> = first.points.iter().map(|point| point.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["2:4 bf16", "2:4 int4", "2:4 int8", "dense bf16", "dense int4", "dense int8"]
    );
    assert!(events.load(Ordering::Relaxed) > 0);
    let bytes = |name: &str| first.points.iter().find(|p| p.name == name).unwrap().bytes;
    assert!(bytes("2:4 int4") < bytes("2:4 int8") && bytes("2:4 int8") < bytes("dense int8"));
    assert!(first.points.iter().all(|p| (p.kind == Kind::Pruned) == p.name.starts_with("2:4")));
    assert!(first.points[0].best, "nothing is smaller: {:?}", first.points[0]);
    assert!(first.verdict.contains("pruning"), "{}", first.verdict);

    events.store(0, Ordering::Relaxed);
    options.size = Some(1);
    let again = measure(&model, &options, &count).unwrap();
    for (a, b) in first.points.iter().zip(&again.points) {
        assert_eq!((&a.name, a.bytes, a.best), (&b.name, b.bytes, b.best));
        // Through a file, which may round the last digit.
        assert!((a.token_perplexity - b.token_perplexity).abs() < 1e-9 * a.token_perplexity);
    }
    assert_eq!(events.load(Ordering::Relaxed), 0, "all points were known");
    assert!(again.verdict.starts_with("Nothing fits 1 B"), "{}", again.verdict);
    // Another evaluation is another point.
    options.evaluation.max_tokens = Some(32);
    options.values = vec!["bf16".to_string()];
    options.specs.clear();
    let other = measure(&model, &options, &count).unwrap();
    assert!(events.load(Ordering::Relaxed) > 0);
    assert_eq!(other.points.len(), 1);
}

#[test]
fn files_of_the_model_are_measured_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata("gguf/llama-bpe.gguf");
    let mut options = options(folder.path());
    options.values = vec!["bf16".to_string()];
    let copy = folder.path().join("copy.gguf");
    std::fs::copy(&model, &copy).unwrap();
    options.inputs = vec![copy.clone()];
    let found = measure(&model, &options, &|_| {}).unwrap();
    let gguf = found.points.iter().find(|point| point.kind == Kind::Gguf).unwrap();
    assert_eq!(gguf.bytes, std::fs::metadata(&copy).unwrap().len());
    assert_eq!(gguf.tokens_per_second, None);
    assert!(gguf.token_perplexity.is_finite() && gguf.note.contains("not measured"));

    let refusal = |input: PathBuf, options: &mut FrontierOptions| {
        options.inputs = vec![input];
        measure(&model, options, &|_| {}).unwrap_err().to_string()
    };
    let other = refusal(testdata("gguf/qwen3.gguf"), &mut options);
    assert!(other.contains("qwen3.gguf is another model: its "), "{other}");
    let itself = refusal(model.clone(), &mut options);
    assert!(itself.contains("is the model itself"), "{itself}");
    let missing = refusal(folder.path().join("none.gguf"), &mut options);
    assert!(missing.contains("none.gguf"), "{missing}");
}

#[test]
fn a_rounded_run_is_packed_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata("models/llama");
    for (method, dtype, name) in [
        ("sparsegpt+quant", "bf16", "int4"),
        ("wanda+quant[group=64]", "f16", "int4"),
        ("magnitude+quant[bits=8]", "f32", "int8"),
    ] {
        let at = |what: &str| folder.path().join(format!("{what}-{name}-{dtype}"));
        prune(&model, folder.path(), ("2:4", method), dtype, &at("run"));
        let source = Checkpoint::open(&at("run")).unwrap();
        let opened = Model::open(&source).unwrap();
        let choice = ValueChoice::default().with_record(&source);
        assert!(choice.note().is_none());
        let patterns = Patterns::from_record(&source).unwrap();
        let summary = pack(&opened, &patterns, choice, &at("packed"), &mut |_| {}).unwrap();
        assert!(summary.tensors.iter().all(|tensor| tensor.values == name), "{method}");
        let packed = Checkpoint::open(&at("packed")).unwrap();
        for (a, b) in source.tensors().zip(packed.tensors()) {
            assert_eq!(a.to_f32(), b.to_f32(), "{method} {}", a.name());
        }
    }
}

#[test]
fn every_point_is_scored_on_the_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata("models/llama");
    let mut options = options(folder.path());
    options.values = vec!["bf16".to_string(), "int4".to_string()];
    let file = folder.path().join("walls.jsonl");
    let line =
        r#"{"context": "the open work of a", "choices": [" wall", " light", " wind"], "gold": 0}"#;
    std::fs::write(&file, format!("{line}\n").repeat(3)).unwrap();
    options.tasks = vec![file.clone()];
    options.task_limit = Some(2);
    let found = measure(&model, &options, &|_| {}).unwrap();
    assert_eq!(found.points.len(), 2);
    for point in &found.points {
        let [task] = &point.tasks[..] else { panic!("{:?}", point.tasks) };
        assert_eq!((task.name.as_str(), task.docs), ("walls", 2));
        assert!(task.acc == 0.0 || task.acc == 1.0, "the documents are equal: {task:?}");
    }
    // Other documents are another point; a document that cannot be used is refused.
    options.task_limit = None;
    assert_eq!(measure(&model, &options, &|_| {}).unwrap().points[0].tasks[0].docs, 3);
    std::fs::write(&file, line.replace("\"gold\": 0", "\"gold\": 3")).unwrap();
    let refused = measure(&model, &options, &|_| {}).unwrap_err().to_string();
    assert!(refused.contains("walls.jsonl: line 1: "), "{refused}");
}

#[test]
fn a_run_that_only_rounds_is_not_called_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata("models/llama");
    let at = |name: &str| folder.path().join(name);
    prune(&model, folder.path(), ("keep 100%", "sparsegpt+quant"), "bf16", &at("rounded"));
    prune(&model, folder.path(), ("2:4", "wanda"), "bf16", &at("sparse"));
    let mut options = options(folder.path());
    options.values = vec!["int4".to_string()];
    options.inputs = vec![at("rounded"), at("sparse")];
    let found = measure(&model, &options, &|_| {}).unwrap();
    let kind = |name: &str| found.points.iter().find(|p| p.name.starts_with(name)).unwrap().kind;
    assert_eq!((kind("rounded"), kind("sparse")), (Kind::Dense, Kind::Pruned));
}
