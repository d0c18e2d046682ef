//! Encoders against transformers: `testdata/encoders`, made by `testdata/make_encoders.py`.

use openwork::Matrix;
use openwork_llm::Checkpoint;
use openwork_llm::embed::{Pooling, SentencePooling, compare, embed, read_sentences};
use openwork_llm::inspect::{Check, inspect};
use openwork_llm::model::{Decoder, FAMILIES, LayerInfo, Model, NoTap, Storage, split_layer_name};
use openwork_llm::pack::{Patterns, ValueChoice, pack, unpack};
use openwork_llm::pipeline::{LocalExecutor, OptionValue, RunOptions};
use openwork_llm::report::Record;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Largest difference to transformers, as a share of the largest entry.
const TOLERANCE: f32 = 1e-4;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders")
}

/// Every encoder.
fn folders() -> Vec<String> {
    let all =
        std::fs::read_dir(root()).expect("the encoders").map(|entry| entry.expect("an entry"));
    let mut names: Vec<String> = all
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into())
        .collect();
    names.sort();
    names
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&root().join(name)).expect("a checkpoint")
}

/// The windows of input tokens, hidden states and vectors.
fn golden(name: &str) -> (Vec<Vec<u32>>, Vec<f32>, Vec<f32>) {
    let bytes = std::fs::read(root().join(name).join("golden.safetensors")).expect("a golden file");
    let file = SafeTensors::deserialize(&bytes).expect("a whole golden file");
    let words = |key: &str| file.tensor(key).expect(key).data().as_chunks::<4>().0.to_vec();
    let length = file.tensor("ids").expect("ids").shape()[1];
    let ids: Vec<u32> = words("ids").into_iter().map(u32::from_le_bytes).collect();
    let floats = |key: &str| words(key).into_iter().map(f32::from_le_bytes).collect();
    (ids.chunks(length).map(<[u32]>::to_vec).collect(), floats("hidden"), floats("vectors"))
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    for (i, (x, y)) in got.iter().zip(want).enumerate() {
        assert!((x - y).abs() <= TOLERANCE * scale, "{what}: entry {i} is {x}, not {y}");
    }
}

fn vectors(model: &Model<'_>, pooling: &SentencePooling, batch: usize) -> Matrix {
    let texts = read_sentences(&root().join("texts.txt")).expect("texts");
    let tokenizer = model.checkpoint().tokenizer().expect("a tokenizer");
    let texts = pooling.encode(&tokenizer, &texts).expect("tokens");
    let mut layer = |index| model.layer(index, Storage::Packed);
    embed(model, &mut layer, pooling, &texts, batch, &mut |_| Ok(())).expect("vectors")
}

#[test]
fn hidden_states_equal_those_of_transformers() {
    for name in &folders() {
        let (windows, want, _) = golden(name);
        let checkpoint = open(name);
        let model = Model::open(&checkpoint).expect("a model");
        let mut hidden = model.embed(&windows).expect("tokens of the vocabulary");
        for index in 0..model.config().layers {
            model.layer(index, Storage::F32).expect("a layer").forward(&mut hidden, &mut NoTap);
        }
        assert_close(hidden.states().data(), &want, name);
    }
}

#[test]
fn vectors_equal_those_of_padded_batches_of_transformers() {
    for name in &folders() {
        let checkpoint = open(name);
        let model = Model::open(&checkpoint).expect("a model");
        let pooling = SentencePooling::read(&model).expect("pooling");
        let (.., want) = golden(name);
        for batch in [1, 2, 32] {
            assert_close(vectors(&model, &pooling, batch).data(), &want, name);
        }
        // What is left out of the model, and how it is pooled, is said.
        let notes = [&model.config().notes[..], &pooling.notes].concat();
        match name.as_str() {
            "bert-masked" => {
                assert_eq!(
                    notes,
                    [
                        "BertForMaskedLM: only the encoder is used (and written, as BertModel); 5 tensors of its head are ignored",
                        "the model has no 1_Pooling/config.json: a vector is the mean of all states"
                    ]
                );
                assert_eq!((pooling.pooling, pooling.max_tokens), (Pooling::Mean, 48));
            }
            _ => assert!(notes.is_empty() && pooling.max_tokens == 20, "{notes:?}"),
        }
    }
}

#[test]
fn the_same_bytes_at_any_number_of_threads() {
    for name in &folders() {
        let checkpoint = open(name);
        let run = |threads: usize| {
            let pool =
                rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| {
                let model = Model::open(&checkpoint).expect("a model");
                let pooling = SentencePooling::read(&model).expect("pooling");
                let found = vectors(&model, &pooling, 3);
                found.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            })
        };
        let one = run(1);
        assert!(one == run(2) && one == run(3), "{name}");
    }
}

#[test]
fn every_family_of_encoders_has_a_golden_model() {
    let known: Vec<&str> = folders()
        .iter()
        .map(|name| Model::open(&open(name)).expect("a model").config().family.name)
        .collect();
    for family in FAMILIES.iter().filter(|family| family.encoder.is_some()) {
        assert!(known.contains(&family.name), "{}", family.name);
    }
}

#[test]
fn every_tensor_of_a_layer_is_told_from_the_others() {
    for name in &folders() {
        let checkpoint = open(name);
        let model = Model::open(&checkpoint).expect("a model");
        let in_layers: Vec<String> =
            (0..model.config().layers).flat_map(|layer| model.layer_tensors(layer)).collect();
        for tensor in checkpoint.names() {
            let inside = in_layers.iter().any(|known| known == tensor);
            assert_eq!(split_layer_name(tensor).is_some(), inside, "{tensor}");
        }
        let info = LayerInfo::new(model.config(), 1);
        assert_eq!(info.linears.len(), if model.config().is_ungated() { 6 } else { 7 });
        (0..info.linears.len()).for_each(|i| assert!(checkpoint.has(&info.weight_name(i))));
    }
}

/// A run that prunes `model` to `spec` in the folder `place`.
fn prune(model: &Path, place: &Path, more: &[(&'static str, &str)]) -> Result<Record, String> {
    let text = place.join("text.txt");
    let line = "the open work of a wall lets the light in and the wind out of it\n";
    std::fs::write(&text, line.repeat(30)).expect("a text");
    let (text, out) = (text.display().to_string(), place.join("out").display().to_string());
    let eval = root().join("texts.txt").display().to_string();
    let usual = [("calib", &*text), ("eval", &eval), ("out", &out), ("seq_len", "12")];
    let given = usual.into_iter().chain([("samples", "9")]).chain(more.iter().copied());
    let value = |text: &str| match (text.parse(), text.parse()) {
        (Ok(count), _) => OptionValue::Count(count),
        (_, Ok(flag)) => OptionValue::Flag(flag),
        _ => OptionValue::Text(text.into()),
    };
    let values = given.map(|(name, text)| (name, value(text)));
    let options = RunOptions::from_values(values).map_err(|error| error.to_string())?;
    let source = options.open(model).map_err(|error| error.to_string())?;
    let run = options.prepare(&source, None).map_err(|error| error.to_string())?;
    run.run(&(), &mut LocalExecutor::default()).map_err(|error| error.to_string())
}

#[test]
fn a_pruned_encoder_is_as_similar_as_its_record_says() {
    for name in &folders() {
        let place = tempfile::tempdir().expect("a folder");
        let more = [("spec", "2:4"), ("method", "sparsegpt+refit")];
        let record = prune(&root().join(name), place.path(), &more).expect(name);
        assert!(record.evaluations.is_empty(), "{name}");
        assert!(record.linears().all(|linear| linear.error > 0.0 && linear.density == 0.5));
        let found = record.similarity.as_ref().expect("similarity");
        assert!(found.texts == 5 && found.least <= found.mean && found.mean < 0.999, "{found:?}");

        let (checkpoint, dense) =
            (Checkpoint::open(&place.path().join("out")).expect(name), open(name));
        let (model, dense) =
            (Model::open(&checkpoint).expect(name), Model::open(&dense).expect(name));
        let texts = read_sentences(&root().join("texts.txt")).expect("texts");
        let again = compare(&model, &dense, &texts, &mut |_| Ok(())).expect(name);
        assert!((again.mean - found.mean).abs() < 1e-6, "{name}: {again:?}, {found:?}");
        let checked = inspect(&checkpoint, Check::Record(&record), &mut |_| {});
        assert_eq!(checked.conforms, Some(true), "{name}");

        // Packed, it gives the same vectors; unpacked, the same bytes.
        let (packed, back) = (place.path().join("packed"), place.path().join("back"));
        let patterns = Patterns::from_record(&checkpoint).expect(name);
        pack(&model, &patterns, ValueChoice::default(), &packed, &mut |_| {}).expect(name);
        let packed = Checkpoint::open(&packed).expect(name);
        let smaller = Model::open(&packed).expect(name);
        let pooling = SentencePooling::read(&smaller).expect(name);
        assert_eq!(pooling, SentencePooling::read(&model).expect(name));
        assert_close(
            vectors(&smaller, &pooling, 3).data(),
            vectors(&model, &pooling, 3).data(),
            name,
        );
        unpack(&smaller, &back, &mut |_| {}).expect(name);
        for tensor in Checkpoint::open(&back).expect(name).tensors() {
            assert_eq!(tensor.bytes(), checkpoint.tensor(tensor.name()).expect(name).bytes());
        }
    }
}

#[test]
fn every_kind_of_spec_prunes_encoders() {
    for (name, spec) in [
        ("bert", "mlp keep 50%"),
        ("mpnet", "heads keep 2"),
        ("nomic", "mlp keep 50%"),
        ("mpnet", "block(4,4)"),
        ("bert", "blocks q: block (1,4) & k: block (1,4) scope (1,2) keep 1"),
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let record = prune(&root().join(name), place.path(), &[("spec", spec)]).expect(spec);
        assert!(record.totals.density < 0.95, "{name}, {spec}");
    }
}

#[test]
fn what_encoders_lack_is_refused_by_name() {
    let place = tempfile::tempdir().expect("a folder");
    let refused = |model: &Path, more: &[(&'static str, &str)]| {
        let message = prune(model, place.path(), more).expect_err("a refusal");
        assert!(!place.path().join("out").exists());
        message
    };
    let bert = root().join("bert");
    for (more, words) in [
        (
            [("spec", "mlp keep 50%"), ("remove", "true")],
            "bert models are encoders, from which nothing is removed",
        ),
        (
            [("spec", "layers keep 1"), ("seed", "1")],
            "bert models are encoders, from which nothing is removed",
        ),
        (
            [("spec", "2:4"), ("recover", "blocks")],
            "bert models cannot be trained here: the backward pass does not cover encoders",
        ),
        (
            [("spec", "2:4"), ("eval_every", "1")],
            "the vectors of bert models are compared when all layers are pruned",
        ),
        ([("spec", "2:4"), ("task", "x.jsonl")], "bert models are encoders, which have no tasks"),
        ([("spec", "2:4"), ("seq_len", "65")], "the model takes at most 64 tokens"),
    ] {
        let message = refused(&bert, &more);
        assert!(message.contains(words), "{message}");
    }
    let encoder = open("bert");
    let model = Model::open(&encoder).expect("a model");
    let words =
        "bert models are encoders: they give vectors, not the next token; use `openwork embed`";
    assert!(model.head().err().expect("a refusal").to_string().contains(words));
    assert!(
        Decoder::load(&model, Storage::F32).expect_err("a refusal").to_string().contains(words)
    );
    let decoder = Checkpoint::open(&root().join("../models/llama")).expect("a checkpoint");
    let decoder = Model::open(&decoder).expect("a model");
    let message = SentencePooling::read(&decoder).expect_err("a refusal").to_string();
    assert!(
        message.ends_with("llama models are decoders, which predict the next token; sentence vectors need an encoder (bert, mpnet, nomic-bert)"),
        "{message}"
    );
}

/// A copy of a folder whose files may be changed.
fn copy(name: &str) -> tempfile::TempDir {
    let target = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"]
    {
        std::fs::copy(root().join(name).join(file), target.path().join(file)).expect("a copy");
    }
    target
}

#[test]
fn damaged_folders_are_refused_by_name() {
    let refusal = |key: &str, value: Value| {
        let target = copy("mpnet");
        let path = target.path().join("config.json");
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(&path).expect("a config")).expect("JSON");
        config[key] = value;
        std::fs::write(&path, config.to_string()).expect("a write");
        let checkpoint = Checkpoint::open(target.path()).expect("a checkpoint");
        Model::open(&checkpoint).expect_err(key).to_string()
    };
    for (key, value, words) in [
        ("num_hidden_layers", json!(3), "called \"encoder.layer.2."),
        ("num_hidden_layers", json!(1), "tensor \"encoder.layer.1."),
        ("vocab_size", json!(119), "embeddings.word_embeddings.weight"),
        ("max_position_embeddings", json!(67), "embeddings.position_embeddings.weight"),
        ("num_attention_heads", json!(8), "encoder.relative_attention_bias.weight"),
        ("intermediate_size", json!(57), "intermediate.dense.weight"),
        ("position_embedding_type", json!("relative_key_query"), "position_embedding_type"),
    ] {
        let message = refusal(key, value);
        assert!(message.contains(words), "{key}: {message}");
    }

    // A tensor that is not there, files that are not what they should be.
    let target = copy("bert");
    let path = target.path().join("model.safetensors");
    let bytes = std::fs::read(&path).expect("weights");
    let name = b"embeddings.LayerNorm.bias";
    let at = bytes.windows(name.len()).position(|w| w == name).expect("the name");
    let mut renamed = bytes.clone();
    renamed[at..at + 25].copy_from_slice(b"embeddings.LayerNorm.biaz");
    std::fs::write(&path, renamed).expect("a write");
    let checkpoint = Checkpoint::open(target.path()).expect("a checkpoint");
    let message = Model::open(&checkpoint).expect_err("a refusal").to_string();
    assert!(message.contains("embeddings.LayerNorm.bia"), "{message}");

    let target = copy("mpnet");
    let checkpoint = Checkpoint::open(target.path()).expect("a checkpoint");
    let model = Model::open(&checkpoint).expect("a model");
    let pooling = |file: &str, text: &str| {
        std::fs::create_dir_all(target.path().join("1_Pooling")).expect("a folder");
        std::fs::write(target.path().join(file), text).expect("a write");
        SentencePooling::read(&model).expect_err(file).to_string()
    };
    let message = pooling("sentence_bert_config.json", r#"{"max_seq_length": -3}"#);
    assert!(message.ends_with("max_seq_length is -3, not a number of tokens"), "{message}");
    let message = pooling("1_Pooling/config.json", r#"{"pooling_mode_lasttoken": true}"#);
    assert!(message.ends_with("pooling_mode_lasttoken is not supported (only cls, mean, max)"));
    let message = pooling("modules.json", "{");
    assert!(message.contains("modules.json: not valid JSON"), "{message}");
}
