//! Every family against transformers: `testdata/models`, made by
//! `testdata/make_models.py`.

use openwork::{Matrix, MatrixRef};
use openwork_llm::Checkpoint;
use openwork_llm::model::{Config, Decoder, FAMILIES, Hidden, Model, NoTap, Site, Storage, Tap};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest difference to transformers, as a share of the largest logit.
const TOLERANCE: f32 = 1e-4;

/// Every folder of `testdata/models`.
fn models() -> Vec<String> {
    let all = std::fs::read_dir(folder("")).expect("the models");
    let mut names: Vec<String> =
        all.map(|entry| entry.expect("a folder").file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

#[test]
fn every_family_has_a_golden_model() {
    let architectures: Vec<String> = models()
        .iter()
        .map(|name| {
            let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
            let model = Model::open(&checkpoint).expect("a model");
            model.config().family.name.to_string()
        })
        .collect();
    // Encoders have tests of their own.
    for family in FAMILIES.iter().filter(|family| family.encoder.is_none()) {
        assert!(architectures.iter().any(|name| name == family.name), "{}", family.name);
    }
}

/// The config.json of published models, as far as keys and kinds of values go; lists of
/// many numbers are shortened to one number repeated.
#[test]
fn configs_of_published_models_are_read_without_a_note() {
    let all = include_str!("../../../testdata/published_configs.json");
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(all).expect("JSON");
    for (name, json) in &all {
        let config = Config::new(json).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(config.notes, Vec::<String>::new(), "{name}");
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// The tensors of `golden.safetensors` as f32, and the windows of input tokens.
struct Golden {
    windows: Vec<Vec<u32>>,
    tensors: BTreeMap<String, Vec<f32>>,
}

fn golden(name: &str) -> Golden {
    let bytes = std::fs::read(folder(name).join("golden.safetensors")).expect("a golden file");
    let file = SafeTensors::deserialize(&bytes).expect("a whole golden file");
    let ids = file.tensor("ids").expect("the input");
    let words = |data: &[u8]| data.as_chunks::<4>().0.to_vec();
    let windows = words(ids.data())
        .chunks(ids.shape()[1])
        .map(|row| row.iter().map(|&b| u32::from_le_bytes(b)).collect())
        .collect();
    let tensors = file
        .iter()
        .map(|(key, t)| {
            (key.to_string(), words(t.data()).into_iter().map(f32::from_le_bytes).collect())
        })
        .collect();
    Golden { windows, tensors }
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    for (i, (x, y)) in got.iter().zip(want).enumerate() {
        assert!((x - y).abs() <= TOLERANCE * scale, "{what}: entry {i} is {x}, not {y}");
    }
}

/// Layer after layer, all windows at once.
fn forward(model: &Model<'_>, windows: &[Vec<u32>], storage: Storage) -> Matrix {
    let mut hidden = model.embed(windows).expect("tokens of the vocabulary");
    for index in 0..model.config().layers {
        model.layer(index, storage).expect("a layer").forward(&mut hidden, &mut NoTap);
    }
    model.head().expect("a head").logits(hidden.states().view())
}

#[test]
fn logits_equal_those_of_transformers() {
    for name in &models() {
        let golden = golden(name);
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        // That there is more in it than the text model, that it is stored as MXFP4, or that
        // keys are not used.
        let notes = ["-images", "-mxfp4", "gemma4-e2b-images"].map(|end| name.ends_with(end));
        let notes = notes.into_iter().filter(|has| *has).count();
        assert_eq!(model.config().notes.len(), notes, "{:?}", model.config().notes);
        let logits = forward(&model, &golden.windows, Storage::F32);
        assert_close(logits.data(), &golden.tensors["logits"], name);
        // Whatever is stored in 16 bits is held so without loss.
        if name != "llama" {
            let half = forward(&model, &golden.windows, Storage::Half);
            assert_close(half.data(), &golden.tensors["logits"], name);
        }
    }
}

#[test]
fn decoding_with_a_cache_equals_the_whole_forward() {
    for name in &models() {
        let golden = golden(name);
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        let window = &golden.windows[0];
        let vocab = model.config().vocab;
        let want = &golden.tensors["logits"][..window.len() * vocab];
        let mut decoder = Decoder::load(&model, Storage::F32).expect("a decoder");
        // A prompt at once, then token by token; and all at once.
        for prompt in [1, 2, 9, window.len()] {
            decoder.reset();
            let logits = decoder.next(&window[..prompt]).expect("finite logits");
            assert_close(&logits, &want[(prompt - 1) * vocab..][..vocab], name);
            for at in prompt..window.len() {
                let logits = decoder.next(&window[at..=at]).expect("finite logits");
                assert_close(&logits, &want[at * vocab..][..vocab], name);
            }
        }
        decoder.reset();
        assert_close(decoder.all_logits(window).expect("logits").data(), want, name);
    }
}

/// Keeps what it sees.
#[derive(Default)]
struct Keep(BTreeMap<String, Vec<f32>>);

impl Tap for Keep {
    fn on_input(&mut self, site: Site, inputs: MatrixRef<'_>) {
        let rows = (0..inputs.rows()).flat_map(|i| inputs.row(i)).copied();
        self.0.entry(site.to_string()).or_default().extend(rows);
    }
}

#[test]
fn taps_see_what_forward_hooks_see() {
    let golden = golden("qwen3");
    let checkpoint = Checkpoint::open(&folder("qwen3")).expect("a checkpoint");
    let model = Model::open(&checkpoint).expect("a model");
    let mut hidden = model.embed(&golden.windows).expect("tokens of the vocabulary");
    for index in 0..model.config().layers {
        let mut keep = Keep::default();
        let layer = model.layer(index, Storage::F32).expect("a layer");
        layer.forward(&mut hidden, &mut keep);
        for site in layer.info().sites() {
            let want = &golden.tensors[&format!("tap.{index}.{site}")];
            assert_close(&keep.0[&site.to_string()], want, &format!("layer {index}, {site}"));
        }
    }
}

#[test]
fn the_same_bytes_at_any_number_of_threads() {
    for name in &models() {
        let golden = golden(name);
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let run = |threads: usize| {
            let pool =
                rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| {
                let model = Model::open(&checkpoint).expect("a model");
                let logits = forward(&model, &golden.windows, Storage::F32);
                let mut decoder = Decoder::load(&model, Storage::Half).expect("a decoder");
                decoder.next(&golden.windows[0][..5]).expect("finite logits");
                let next = decoder.next(&[7]).expect("finite logits");
                let bits = |x: &f32| x.to_bits();
                logits.data().iter().chain(&next).map(bits).collect::<Vec<_>>()
            })
        };
        let one = run(1);
        assert!(one == run(2) && one == run(3), "{name}");
    }
}

#[test]
fn windows_of_a_batch_do_not_see_each_other() {
    for name in models() {
        let checkpoint = Checkpoint::open(&folder(&name)).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        for len in [1, 3] {
            let tokens: Vec<u32> = golden(&name).windows.concat();
            let windows: Vec<Vec<u32>> =
                tokens.chunks_exact(len).take(5).map(<[u32]>::to_vec).collect();
            let together = forward(&model, &windows, Storage::F32);
            let apart: Vec<f32> = windows
                .iter()
                .flat_map(|window| {
                    forward(&model, std::slice::from_ref(window), Storage::F32).into_vec()
                })
                .collect();
            assert_close(together.data(), &apart, &format!("{name}, windows of {len}"));
        }
    }
}

#[test]
fn losses_are_those_of_the_logits() {
    let golden = golden("gemma3");
    let checkpoint = Checkpoint::open(&folder("gemma3")).expect("a checkpoint");
    let model = Model::open(&checkpoint).expect("a model");
    let states =
        Matrix::from_fn(7, model.config().hidden, |i, j| ((i * 5 + j * 3) % 11) as f32 - 5.0);
    let targets: Vec<_> = (0..7).map(|i| (i != 3).then_some(golden.windows[0][i])).collect();
    let head = model.head().expect("a head");
    let losses = head.losses(states.view(), &targets);
    let logits = head.logits(states.view());
    for i in 0..7 {
        let Some(target) = targets[i] else { continue };
        let row: Vec<f64> = logits.row(i).iter().map(|&x| f64::from(x)).collect();
        let want = row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[target as usize];
        assert!((losses[i] - want).abs() < 1e-5, "{} for {want}", losses[i]);
    }
}

#[test]
fn bad_tokens_and_tensors_are_refused_by_name() {
    let checkpoint = Checkpoint::open(&folder("llama")).expect("a checkpoint");
    let model = Model::open(&checkpoint).expect("a model");
    let refusal = |windows: &[Vec<u32>]| model.embed(windows).expect_err("a refusal").to_string();
    assert_eq!(
        refusal(&[vec![3, 288]]),
        "token id 288 is out of range: the model's vocabulary has 288 tokens"
    );
    assert_eq!(refusal(&[vec![]]), "all windows must have the same length, at least 1");
    assert_eq!(
        refusal(&[vec![1, 2], vec![1]]),
        "all windows must have the same length, at least 1"
    );
    assert!(refusal(&[vec![1; 65]]).starts_with("65 tokens exceed the model's limit of 64"));
    let mut decoder = Decoder::load(&model, Storage::Half).expect("a decoder");
    assert!(decoder.next(&[]).is_err());
    decoder.next(&[1; 60]).expect("finite logits");
    assert!(decoder.next(&[1; 5]).is_err());

    // A folder of another family's weights.
    let folder_with = |config: &dyn Fn(&mut serde_json::Value)| {
        let target = tempfile::tempdir().expect("a folder");
        for file in ["model.safetensors", "tokenizer.json"] {
            std::fs::copy(folder("llama").join(file), target.path().join(file)).expect("a copy");
        }
        let text = std::fs::read(folder("llama").join("config.json")).expect("a config");
        let mut json = serde_json::from_slice(&text).expect("JSON");
        config(&mut json);
        std::fs::write(target.path().join("config.json"), json.to_string()).expect("a write");
        target
    };
    let refusal = |config: &dyn Fn(&mut serde_json::Value)| {
        let target = folder_with(config);
        let checkpoint = Checkpoint::open(target.path()).expect("a checkpoint");
        let load = || {
            let model = Model::open(&checkpoint)?;
            (0..model.config().layers).try_for_each(|i| model.layer(i, Storage::F32).map(drop))
        };
        load().expect_err("a refusal").to_string()
    };
    let message = refusal(&|json| json["num_hidden_layers"] = 1.into());
    assert!(
        message.contains("tensor \"model.layers.1.") && message.contains("unexpected"),
        "{message}"
    );
    let message = refusal(&|json| json["num_hidden_layers"] = 3.into());
    assert!(message.contains("tensors is called \"model.layers.2."), "{message}");
    let message = refusal(&|json| json["intermediate_size"] = 57.into());
    assert!(message.contains("mlp.gate_proj.weight") && message.contains("[57, 32]"), "{message}");
    let message = refusal(&|json| json["attention_bias"] = true.into());
    assert!(message.contains("self_attn.q_proj.bias"), "{message}");
}

#[test]
fn states_come_in_windows() {
    let hidden = Hidden::new(Matrix::zeros(6, 4), 3);
    assert_eq!((hidden.windows(), hidden.window_len()), (2, 3));
}

/// A model's folder with another value of a key in its config.json.
fn with_key(name: &str, key: &str, value: serde_json::Value) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder(name).join(file), copy.path().join(file)).expect("a copy");
    }
    let path = copy.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("a config");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json[key] = value;
    std::fs::write(path, json.to_string()).expect("a file");
    copy
}

#[test]
fn layers_that_lack_what_their_config_says_are_refused_by_name() {
    for (name, key, value, why) in [
        ("gemma4", "hidden_size_per_layer_input", 12, "layers.0.post_per_layer_input_norm.weight"),
        (
            "gemma4-e2b",
            "hidden_size_per_layer_input",
            0,
            "embed_tokens_per_layer.weight\" is unexpected",
        ),
        ("gemma4-e2b", "hidden_size_per_layer_input", 10, "layers.0.per_layer_input_gate.weight"),
        ("gemma4-e2b", "vocab_size_per_layer_input", 288, "embed_tokens_per_layer.weight"),
        ("gemma4-e2b", "num_kv_shared_layers", 2, "layers.3.self_attn.k_norm.weight"),
    ] {
        let copy = with_key(name, key, value.into());
        let checkpoint = Checkpoint::open(copy.path()).expect("a checkpoint");
        let error = Model::open(&checkpoint).expect_err("a refusal").to_string();
        assert!(error.contains(why), "{key} = {value}: {error}");
    }
}
