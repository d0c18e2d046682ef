//! Sound files that are not a sound model: refused when the model is opened,
//! before any work is done on it.

use openwork_llm::Checkpoint;
use openwork_llm::evaluate::{Options, evaluate};
use openwork_llm::model::Model;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// A name, and its tensor.
type Entry = (String, Dtype, Vec<usize>, Vec<u8>);

/// A copy of the tiny Llama whose tensors, config and tokenizer were changed.
fn llama(change: impl FnOnce(&mut Vec<Entry>, &mut Value, &mut Value)) -> TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama");
    let read = |name: &str| std::fs::read(source.join(name)).expect("a file of the model");
    let json = |name: &str| -> Value { serde_json::from_slice(&read(name)).expect("JSON") };
    let bytes = read("model.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let entry = |(name, view): (String, TensorView)| {
        (name, view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    let mut tensors: Vec<Entry> = file.tensors().into_iter().map(entry).collect();
    let (mut config, mut tokenizer) = (json("config.json"), json("tokenizer.json"));
    change(&mut tensors, &mut config, &mut tokenizer);
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    let weights = safetensors::serialize(views, None).expect("safetensors");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in [
        ("model.safetensors", weights),
        ("config.json", config.to_string().into_bytes()),
        ("tokenizer.json", tokenizer.to_string().into_bytes()),
        ("tokenizer_config.json", read("tokenizer_config.json")),
    ] {
        std::fs::write(folder.path().join(name), content).expect("the folder is writable");
    }
    folder
}

/// The words against the model, without its folder.
fn refusal(folder: &TempDir) -> String {
    let checkpoint = Checkpoint::open(folder.path()).expect("the files are sound");
    let error = Model::open(&checkpoint).expect_err("a bad model was opened");
    error.to_string().replace(&format!("{}: ", folder.path().display()), "")
}

fn find<'a>(tensors: &'a mut [Entry], name: &str) -> &'a mut Entry {
    tensors.iter_mut().find(|entry| entry.0 == name).expect("the tensor is there")
}

#[test]
fn every_layer_is_whole_when_the_model_opens() {
    let whole = llama(|_, _, _| {});
    let checkpoint = Checkpoint::open(whole.path()).unwrap();
    let last = Model::open(&checkpoint).unwrap().config().layers - 1;
    for (name, kind) in [("mlp.down_proj", "matrix"), ("input_layernorm", "vector")] {
        let name = format!("model.layers.{last}.{name}.weight");
        let missing = llama(|tensors, _, _| tensors.retain(|entry| entry.0 != name));
        let words = refusal(&missing);
        assert!(words.ends_with(&format!("tensors is called {name:?}")), "{words}");
        let misshapen = llama(|tensors, _, _| find(tensors, &name).2.push(1));
        let words = refusal(&misshapen);
        assert!(words.starts_with(&format!("tensor {name:?} has shape")), "{kind}: {words}");
        assert!(words.contains("but the config implies"), "{words}");
    }
}

#[test]
fn whole_numbers_are_no_weights() {
    let name = "model.layers.1.self_attn.q_proj.weight";
    for (dtype, text, bytes) in
        [(Dtype::I32, "I32", 4), (Dtype::U8, "U8", 1), (Dtype::BOOL, "BOOL", 1)]
    {
        let folder = llama(|tensors, _, _| {
            let entry = find(tensors, name);
            entry.3 = vec![1; entry.2.iter().product::<usize>() * bytes];
            entry.1 = dtype;
        });
        assert_eq!(
            refusal(&folder),
            format!(
                "tensor {name:?} has the integer type {text}; \
                 convert the weights to F32, F16 or BF16"
            )
        );
    }
}

#[test]
fn layers_beyond_belief_are_refused_before_they_are_counted_out() {
    let folder = llama(|_, config, _| config["num_hidden_layers"] = json!(1 << 24));
    assert_eq!(
        refusal(&folder),
        "config.json: num_hidden_layers is 16777216, not a number of layers from 1 to 4096"
    );
}

#[test]
fn a_token_without_a_row_is_refused_before_the_first_window() {
    let folder = llama(|_, _, tokenizer| {
        let tokens = tokenizer["added_tokens"].as_array_mut().expect("a list");
        tokens.push(json!({"id": 9999, "content": "<late>", "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false, "special": true}));
        tokenizer["model"]["vocab"]["<late>"] = json!(9999);
    });
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let model = Model::open(&checkpoint).unwrap();
    let text = format!("{}<late> and on and on", "a wall lets the light in ".repeat(20));
    let options = Options { seq_len: Some(8), ..Options::default() };
    let mut steps = 0;
    let error = evaluate(&model, &text, &options, &mut |_| steps += 1).expect_err("a refusal");
    assert!(
        error
            .to_string()
            .contains("the tokenizer produced token id 9999, but the model's vocabulary")
    );
    assert_eq!(steps, 0);
}

#[test]
fn what_a_file_says_cannot_steer_the_terminal() {
    let folder = llama(|tensors, config, _| {
        tensors[0].0 = "\u{1b}[2J".to_string();
        config["\u{1b}[31m"] = json!(1);
    });
    let words = refusal(&folder);
    assert_eq!(words, "tensor \"\\u{1b}[2J\" is unexpected for a llama model with this config");
    let folder = llama(|_, config, _| config["\u{1b}[31m"] = json!(1));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let notes = Model::open(&checkpoint).unwrap().config().notes.clone();
    assert_eq!(notes, ["config.json: \\u{1b}[31m = 1 is unknown and was ignored"]);
}
