//! Models with experts: statistics per expert, fused tensors, and experts dropped.

use openwork::MatrixRef;
use openwork_llm::Checkpoint;
use openwork_llm::checkpoint::Dtype;
use openwork_llm::checkpoint::write::{Data, Part, shard};
use openwork_llm::model::{
    FAMILIES, Input, LayerInfo, Model, NoTap, Site, Storage, Tap, is_linear_name,
};
use openwork_llm::pipeline::{
    Calibration, Job, LocalExecutor, Passes, PipelineError, PreparedRun, Recipe, Start,
    TensorFilter, structure,
};
use openwork_llm::report::Record;
use openwork_llm::shrink::{Sizes, Uneven, shrink};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// The families with experts, whose tiny models have the same names.
fn models() -> impl Iterator<Item = &'static str> {
    let families = FAMILIES.iter().filter(|family| family.experts.is_some());
    families.flat_map(|family| match family.name {
        // Not all of its models have them.
        "gemma4" => vec!["gemma4-moe", "gemma4-e2b-moe"],
        name => vec![name],
    })
}

fn calibration(samples: usize, seq_len: usize) -> Calibration {
    let token = |i: usize| ((i * i * 31 + i * 7 + 11) % 251) as u32;
    let windows =
        (0..samples).map(|w| (0..seq_len).map(|t| token(w * seq_len + t)).collect()).collect();
    Calibration {
        windows,
        single_tokens: Vec::new(),
        text: "numbers".to_string(),
        text_bytes: 0,
        seed: 7,
    }
}

fn run(
    name: &str,
    recipe: &str,
    calibration: &Calibration,
    out: &Path,
) -> Result<Record, PipelineError> {
    let source = Checkpoint::open(&folder(name)).unwrap();
    let model = Model::open(&source).unwrap();
    let recipe = Recipe::parse(recipe).unwrap();
    let passes = Passes::new(&recipe, &TensorFilter::default(), model.config(), true)?;
    let job = Job {
        calibration: calibration.clone(),
        evaluation: None,
        tasks: Vec::new(),
        dtype: Dtype::F32,
        state_memory_limit: None,
        sentences: None,
        recovery: None,
    };
    PreparedRun::new(model, job, passes, out, Start::Fresh).run(&(), &mut LocalExecutor::default())
}

fn logits(folder: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = Model::open(&checkpoint).unwrap();
    let mut hidden = model.embed(&calibration(2, 16).windows).unwrap();
    for index in 0..model.config().layers {
        model.layer(index, Storage::F32).unwrap().forward(&mut hidden, &mut NoTap);
    }
    model.head().unwrap().logits(hidden.states().view()).into_vec()
}

/// Number of rows that each site sees.
#[derive(Default)]
struct Rows(BTreeMap<Site, usize>);

impl Tap for Rows {
    fn on_input(&mut self, site: Site, inputs: MatrixRef<'_>) {
        *self.0.entry(site).or_default() += inputs.rows();
    }
}

#[test]
fn every_token_is_seen_by_its_experts_and_no_other() {
    for name in models() {
        let checkpoint = Checkpoint::open(&folder(name)).unwrap();
        let model = Model::open(&checkpoint).unwrap();
        let config = model.config();
        let mut hidden = model.embed(&calibration(3, 16).windows).unwrap();
        for index in 0..config.layers {
            let mut rows = Rows::default();
            let layer = model.layer(index, Storage::F32).unwrap();
            layer.forward(&mut hidden, &mut rows);
            for input in [Input::GateUp, Input::Down] {
                let of_experts =
                    rows.0.iter().filter(|(s, _)| s.input == input && s.expert.is_some());
                let seen: usize = of_experts.map(|(_, rows)| rows).sum();
                let experts = config.experts.as_ref().unwrap();
                let want = if layer.info().experts > 0 { 48 * experts.active } else { 0 };
                assert_eq!(seen, want, "{name}, layer {index}, {input:?}");
            }
        }
    }
}

#[test]
fn every_expert_is_pruned_and_told_of_few_tokens() {
    for name in models() {
        for (samples, few) in [(36, false), (1, true)] {
            let out = tempfile::tempdir().unwrap();
            let out = out.path().join("out");
            let recipe = "spec = \"2:4\"\nmethod = \"sparsegpt\"";
            let record = run(name, recipe, &calibration(samples, 32), &out).unwrap();
            let written = Checkpoint::open(&out).unwrap();
            let config = Model::open(&written).unwrap().config().clone();
            let mut notes = 0;
            for index in 0..config.layers {
                let info = LayerInfo::new(&config, index);
                for (i, linear) in record.layers[index].linears.iter().enumerate() {
                    assert_eq!(linear.name, info.weight_name(i));
                    let weights = written.tensor(&linear.name).unwrap().to_f32();
                    for scope in weights.chunks_exact(4) {
                        let kept = scope.iter().filter(|w| **w != 0.0).count();
                        assert!(kept <= 2, "{name}, {}", linear.name);
                    }
                    assert!(linear.error < 1.0, "{name}, {}: {}", linear.name, linear.error);
                    notes += linear.notes.iter().filter(|n| n.contains("routed to")).count();
                }
            }
            assert_eq!(notes > 0, few, "{name}: {notes} notes with {samples} windows");
            assert!(logits(&out).iter().all(|logit| logit.is_finite()));
        }
    }
}

/// Rewrites a model with the fused tensors that transformers 5 has in memory.
fn fuse(name: &str, to: &Path, change: impl Fn(&mut Vec<usize>)) {
    let source = Checkpoint::open(&folder(name)).unwrap();
    let config = Model::open(&source).unwrap().config().clone();
    let names = &config.family.names;
    let mut fused: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut taken = Vec::new();
    for index in 0..config.layers {
        let info = LayerInfo::new(&config, index);
        let prefix = format!("model.layers.{index}.");
        let Some(experts) = config.experts.as_ref().filter(|_| info.experts > 0) else { continue };
        let (count, ff, d) = (experts.count, experts.ff, config.hidden);
        let read = |expert: usize, part: usize| {
            let name = info.weight_name(info.first_of(Some(expert as u16)) + part);
            (source.tensor(&name).unwrap().to_f32(), name)
        };
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..count {
            for part in 0..3 {
                let (numbers, name) = read(expert, part);
                if part < 2 {
                    gate_up.extend(numbers)
                } else {
                    down.extend(numbers)
                }
                taken.push(name);
            }
        }
        let mut shape = vec![count, 2 * ff, d];
        change(&mut shape);
        fused.push((format!("{prefix}mlp.experts.gate_up_proj"), shape, gate_up));
        fused.push((format!("{prefix}mlp.experts.down_proj"), vec![count, d, ff], down));
        let router = format!("{prefix}{}.weight", names.router);
        let numbers = source.tensor(&router).unwrap().to_f32();
        fused.push((format!("{prefix}mlp.gate.weight"), vec![count, d], numbers));
        taken.push(router);
    }
    let rest = source.tensors().filter(|tensor| !taken.iter().any(|name| name == tensor.name()));
    let mut parts: Vec<Part<'_>> =
        rest.map(|t| Part::new(t.name(), Dtype::F32, t.shape(), Data::Tensor(t))).collect();
    for (name, shape, numbers) in &fused {
        parts.push(Part::new(name, Dtype::F32, shape, Data::F32(numbers)));
    }
    shard(&to.join("model.safetensors"), &parts, &[]).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(folder(name).join(file), to.join(file)).unwrap();
    }
}

#[test]
fn fused_experts_are_read_as_separate_ones() {
    // The files of these are fused in the first place.
    for name in models().filter(|name| *name != "gpt-oss" && !name.starts_with("gemma4")) {
        let to = tempfile::tempdir().unwrap();
        fuse(name, to.path(), |_| {});
        assert_eq!(logits(to.path()), logits(&folder(name)), "{name}");
        // The other order of axes is refused by name.
        let wrong = tempfile::tempdir().unwrap();
        fuse(name, wrong.path(), |shape| shape.swap(1, 2));
        let error = Checkpoint::open(wrong.path()).unwrap_err().to_string();
        assert!(error.contains("mlp.experts.gate_up_proj"), "{error}");
    }
}

#[test]
fn dropped_experts_leave_the_others_as_they_are() {
    for name in models() {
        let source = Checkpoint::open(&folder(name)).unwrap();
        let before = Model::open(&source).unwrap().config().clone();
        let experts = before.experts.clone().unwrap();
        for score in ["reap", "load", "s-obd", "s-obs"] {
            let kept = experts.count - 1;
            let out = tempfile::tempdir().unwrap();
            let out = out.path().join("out");
            let recipe = format!("spec = \"experts by {score} keep {kept}\"");
            let record = run(name, &recipe, &calibration(4, 32), &out).unwrap();
            let pass = &record.passes[0];
            assert_eq!((pass.before.experts, pass.after.experts), (experts.count, kept));
            let written = Checkpoint::open(&out).unwrap();
            let after = Model::open(&written).unwrap().config().clone();
            assert_eq!(after.experts.as_ref().unwrap().count, kept);
            for index in 0..before.layers {
                let (old, new) = (LayerInfo::new(&before, index), LayerInfo::new(&after, index));
                if old.experts == 0 {
                    continue;
                }
                let dropped = &pass.dropped_experts[index];
                assert_eq!(dropped.len(), 1, "{name}, layer {index}");
                let left: Vec<usize> =
                    (0..experts.count).filter(|expert| !dropped.contains(expert)).collect();
                for (place, &expert) in left.iter().enumerate() {
                    for part in 0..3 {
                        let from = old.weight_name(old.first_of(Some(expert as u16)) + part);
                        let to = new.weight_name(new.first_of(Some(place as u16)) + part);
                        assert_eq!(
                            source.tensor(&from).unwrap().to_f32(),
                            written.tensor(&to).unwrap().to_f32()
                        );
                    }
                }
                let router = format!("model.layers.{index}.{}.weight", before.family.names.router);
                let rows = source.tensor(&router).unwrap().to_f32();
                let kept_rows: Vec<f32> = left
                    .iter()
                    .flat_map(|&e| rows[e * before.hidden..][..before.hidden].to_vec())
                    .collect();
                assert_eq!(written.tensor(&router).unwrap().to_f32(), kept_rows);
            }
            assert!(logits(&out).iter().all(|logit| logit.is_finite()));
        }
    }
}

#[test]
fn experts_and_patterns_go_together_and_layers_can_be_dropped() {
    // All but a model whose layers depend on each other.
    for name in models().filter(|name| *name != "gemma4-e2b-moe") {
        let out = tempfile::tempdir().unwrap();
        let out = out.path().join("out");
        let recipe = "[[pass]]\nspec = \"experts keep 4\"\n\n[[pass]]\nspec = \"2:4\"\nmethod = \"magnitude\"\n\n[[pass]]\nspec = \"layers keep 1\"";
        let record = run(name, recipe, &calibration(4, 32), &out).unwrap();
        assert_eq!(record.passes.len(), 3);
        let written = Checkpoint::open(&out).unwrap();
        let config = Model::open(&written).unwrap().config().clone();
        assert_eq!((config.layers, config.experts.as_ref().unwrap().count), (1, 4), "{name}");
        let names: Vec<String> = record.layers[0].linears.iter().map(|l| l.name.clone()).collect();
        let info = LayerInfo::new(&config, 0);
        let want: Vec<String> = (0..info.linears.len()).map(|i| info.weight_name(i)).collect();
        assert_eq!(names, want, "{name}");
    }
}

#[test]
fn channels_are_removed_from_experts_and_other_mlps_alike() {
    for name in models().chain(["gemma4-e2b"]) {
        let source = Checkpoint::open(&folder(name)).unwrap();
        let before = Sizes::new(Model::open(&source).unwrap().config());
        let (masked, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let recipe = "spec = \"mlp keep 75%\"\nmethod = \"s-obs\"";
        let (masked, out) = (masked.path().join("out"), out.path().join("out"));
        run(name, recipe, &calibration(8, 32), &masked).unwrap();
        let removing = format!("{recipe}\nremove = true");
        let record = run(name, &removing, &calibration(8, 32), &out).unwrap();
        let written = Checkpoint::open(&out).unwrap();
        let after = Sizes::new(Model::open(&written).unwrap().config());
        // Percentages are rounded up.
        let kept = |channels: usize| (3 * channels).div_ceil(4);
        assert_eq!(after.channels, kept(before.channels), "{name}");
        assert_eq!(after.expert_channels, kept(before.expert_channels), "{name}");
        assert_eq!(after.shared_channels, kept(before.shared_channels), "{name}");
        assert_eq!(record.passes[0].after, after, "{name}");
        assert_eq!(record.totals.density, 1.0, "{name}");
        let (small, large) = (logits(&out), logits(&masked));
        let scale = large.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        for (x, y) in small.iter().zip(&large) {
            assert!((x - y).abs() <= 1e-4 * scale, "{name}: {x} for {y}");
        }
        // The masked folder can be shrunk afterwards.
        let shrunk = out.with_extension("shrunk");
        let change = shrink(&Checkpoint::open(&masked).unwrap(), &shrunk, None, Uneven::Least);
        assert_eq!(change.unwrap().after, after, "{name}");
        assert_eq!(logits(&shrunk), small, "{name}");
    }
}

#[test]
fn what_cannot_be_dropped_is_refused_with_the_reason() {
    let config = |name: &str| {
        let source = Checkpoint::open(&folder(name)).unwrap();
        Model::open(&source).unwrap().config().clone()
    };
    let out = tempfile::tempdir().unwrap();
    for (name, spec, why) in [
        ("llama", "experts keep 2", "`experts keep 2`: a llama model has no experts"),
        (
            "mixtral",
            "experts keep 1",
            "`experts keep 1`: every token is routed to 2 experts of a layer; keep at least 2",
        ),
        ("mixtral", "experts keep 6", "`experts keep 6`: the model has 5 experts, fewer than 6"),
        (
            "mixtral",
            "experts by size keep 3",
            "`experts by size keep 3`: there is no score size; the scores are reap, load, s-obd, s-obs",
        ),
        (
            "gemma4-e2b",
            "layers keep 3",
            "`layers keep 3`: the layers of this model have per-layer embeddings, or share keys and values; none can be dropped",
        ),
        (
            "gemma4-e2b",
            "heads keep 1",
            "`heads keep 1`: the layers of this gemma4 model differ in their heads, share keys and values, or have gates; heads cannot be removed",
        ),
    ] {
        let recipe = format!("spec = \"{spec}\"");
        let error = run(name, &recipe, &calibration(1, 8), &out.path().join("x")).unwrap_err();
        assert_eq!(error.to_string(), why);
    }
    let error = structure::pattern("mlp keep 9", &config("qwen2-moe")).unwrap_err().to_string();
    assert_eq!(
        error,
        "`mlp keep 9`: the MLPs of this model have different numbers of channels (12, 28, 56); give a percentage"
    );
    let error = structure::pattern("mlp keep 40%", &config("gemma4-e2b")).unwrap_err().to_string();
    assert_eq!(
        error,
        "`mlp keep 40%`: some MLPs of this model are twice as wide as the others; give a percentage that is a whole number of 56 channels"
    );
    for name in ["qwen2-moe", "mixtral", "gemma4-e2b"] {
        assert!(structure::pattern("mlp keep 50%", &config(name)).is_ok());
    }
}

#[test]
fn files_that_lack_experts_or_contradict_themselves_are_refused() {
    let to = tempfile::tempdir().unwrap();
    let source = Checkpoint::open(&folder("mixtral")).unwrap();
    let lost = "model.layers.1.block_sparse_moe.experts.3.w2.weight";
    let parts: Vec<Part<'_>> = source
        .tensors()
        .filter(|tensor| tensor.name() != lost)
        .map(|t| Part::new(t.name(), Dtype::F32, t.shape(), Data::Tensor(t)))
        .collect();
    shard(&to.path().join("model.safetensors"), &parts, &[]).unwrap();
    std::fs::copy(folder("mixtral").join("config.json"), to.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(to.path()).unwrap();
    let error = Model::open(&checkpoint).unwrap_err().to_string();
    assert!(error.contains(lost), "{error}");

    let text = std::fs::read_to_string(folder("mixtral").join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    for (key, value, why) in [
        ("num_experts_per_tok", json!(6), "exceeds the number of experts"),
        ("num_local_experts", json!(100_000), "from 1 to 4096"),
        ("num_experts", json!(4), "num_experts is 4, but num_local_experts is 5"),
    ] {
        let mut config = config.clone();
        config[key] = value;
        let error = openwork_llm::model::Config::new(&config).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// A GGUF file with merged experts becomes a folder of the same config, in which every
/// linear layer of every expert is pruned and all other weights are the file's.
#[test]
fn experts_of_a_gguf_file_become_a_folder() {
    for name in ["mixtral", "mixtral-old", "olmoe", "qwen2moe", "qwen3moe", "qwen3moe-quants"] {
        let out = tempfile::tempdir().unwrap();
        let out = out.path().join("out");
        let file = format!("../gguf/{name}.gguf");
        let recipe = "spec = \"2:4\"\nmethod = \"magnitude\"";
        run(&file, recipe, &calibration(2, 16), &out).unwrap();
        let (source, pruned) =
            (Checkpoint::open(&folder(&file)).unwrap(), Checkpoint::open(&out).unwrap());
        let sizes = |model: &Checkpoint| {
            let config = Model::open(model).unwrap().config().clone();
            format!("{:?}", openwork_llm::model::Config { notes: Vec::new(), ..config })
        };
        assert_eq!(sizes(&source), sizes(&pruned), "{name}");
        assert!(source.names().eq(pruned.names()), "{name}");
        for (a, b) in source.tensors().zip(pruned.tensors()) {
            let linear = a.name().strip_suffix(".weight").is_some_and(is_linear_name);
            let (a, b, name) = (a.to_f32(), b.to_f32(), a.name());
            for (a, b) in a.chunks(4).zip(b.chunks(4)).filter(|_| linear) {
                assert!(b.iter().filter(|w| **w != 0.0).count() <= 2, "{name}");
                assert!(a.iter().zip(b).all(|(a, b)| *b == 0.0 || a == b), "{name}");
            }
            assert!(linear || a == b, "{name}");
        }
    }
}
