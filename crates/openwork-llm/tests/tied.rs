//! Heads and embeddings of models whose config ties them: the tensors decide,
//! as in transformers.

use openwork_llm::Checkpoint;
use openwork_llm::model::{Decoder, Model, NoTap, Storage};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// The model `name` with other tensors, and another config.
fn amended(name: &str, tensors: impl Fn(&mut Tensors), config: impl Fn(&mut Value)) -> TempDir {
    let (from, to) = (source(name), tempfile::tempdir().unwrap());
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Tensors = file
        .iter()
        .map(|(name, t)| (name.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect();
    tensors(&mut all);
    let views = all
        .iter()
        .map(|(name, (d, shape, data))| (name, TensorView::new(*d, shape.clone(), data).unwrap()));
    std::fs::write(
        to.path().join("model.safetensors"),
        safetensors::serialize(views, None).unwrap(),
    )
    .unwrap();
    let mut json =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config(&mut json);
    std::fs::write(to.path().join("config.json"), json.to_string()).unwrap();
    std::fs::copy(from.join("tokenizer.json"), to.path().join("tokenizer.json")).unwrap();
    to
}

/// What the folder computes, all at once and token by token, and its notes.
fn outputs(folder: &Path) -> (Vec<f32>, Vec<f32>, Vec<String>) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = Model::open(&checkpoint).unwrap();
    let tokens = vec![5, 3, 77, 8, 280];
    let mut hidden = model.embed(std::slice::from_ref(&tokens)).unwrap();
    for index in 0..model.config().layers {
        model.layer(index, Storage::F32).unwrap().forward(&mut hidden, &mut NoTap);
    }
    let logits = model.head().unwrap().logits(hidden.states().view()).data().to_vec();
    let next = Decoder::load(&model, Storage::F32).unwrap().next(&tokens).unwrap();
    (logits, next, model.config().notes.clone())
}

/// A head that is not the embedding: its rows the other way round.
fn other_head(tensors: &mut Tensors) {
    let (dtype, shape, data) = tensors[EMBEDDING].clone();
    let row = data.len() / shape[0];
    let data = data.chunks(row).rev().flatten().copied().collect();
    tensors.insert(HEAD.to_string(), (dtype, shape, data));
}

#[test]
fn a_head_that_is_stored_and_differs_is_used_and_noted() {
    for name in ["llama-tied", "qwen2", "gemma3"] {
        // Gemma ties where its config does not say.
        let silent = |json: &mut Value| {
            if name == "gemma3" {
                json.as_object_mut().unwrap().remove("tie_word_embeddings");
            }
        };
        let tied = amended(name, other_head, silent);
        let untied = amended(name, other_head, |json| json["tie_word_embeddings"] = false.into());
        let ((all, next, notes), plain) = (outputs(tied.path()), outputs(untied.path()));
        assert_eq!((all, next), (plain.0, plain.1), "{name}");
        assert_eq!(
            notes,
            ["config.json ties the embeddings, but lm_head.weight and \
              model.embed_tokens.weight differ; each is used as stored"]
        );
        assert_eq!(plain.2, Vec::<String>::new());
        // What is written of it says so, too.
        assert_eq!(Checkpoint::open(tied.path()).unwrap().config()["tie_word_embeddings"], false);
    }
}

#[test]
fn a_head_that_is_the_embedding_may_be_stored_beside_it_or_alone() {
    for name in ["llama-tied", "qwen2", "gemma3"] {
        let twice = |tensors: &mut Tensors| {
            tensors.insert(HEAD.to_string(), tensors[EMBEDDING].clone());
        };
        let alone = |tensors: &mut Tensors| {
            let embedding = tensors.remove(EMBEDDING).unwrap();
            tensors.insert(HEAD.to_string(), embedding);
        };
        let expected = outputs(&source(name));
        assert_eq!(outputs(amended(name, twice, |_| {}).path()), expected, "{name}");
        assert_eq!(outputs(amended(name, alone, |_| {}).path()), expected, "{name}");
    }
}
