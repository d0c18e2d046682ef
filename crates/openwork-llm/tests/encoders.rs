//! Encoders against transformers: `testdata/encoders`, made by `testdata/make_encoders.py`.

use openwork::Matrix;
use openwork_llm::Checkpoint;
use openwork_llm::embed::{Pooling, SentencePooling, embed, read_sentences};
use openwork_llm::model::{Model, NoTap, Storage};
use safetensors::SafeTensors;
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
