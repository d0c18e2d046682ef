//! `openwork eval`, `generate` and `families`, as a user runs them.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models");

fn openwork(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_openwork")).args(args).output().expect("the command runs")
}

fn model(name: &str) -> String {
    format!("{MODELS}/{name}")
}

fn text(folder: &Path) -> String {
    let path = folder.join("text.txt");
    let text = "the open work of a wall lets the light in and the wind out\n".repeat(9);
    std::fs::write(&path, text).expect("the folder is writable");
    path.to_str().expect("a plain path").to_string()
}

/// The error message of a command that must end with `code`.
fn refusal(args: &[&str], code: i32) -> String {
    let output = openwork(args);
    let words = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{args:?}: {words}");
    assert!(output.stdout.is_empty(), "{args:?} printed something");
    assert!(words.starts_with("error: ") && words.lines().count() == 1, "{words}");
    words
}

#[test]
fn eval_prints_one_object() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = text(folder.path());
    for name in ["llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma3", "gemma3-images"] {
        let model = model(name);
        let args =
            ["eval", &model, "--text", &text, "--seq-len", "32", "--max-tokens", "100", "--json"];
        let output = openwork(&args);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!((&found["tokens"], &found["bos"]), (&93.into(), &"none".into()));
        let nats = found["nats"].as_f64().expect("a number");
        let perplexity = found["token_perplexity"].as_f64().expect("a number");
        assert!((perplexity.ln() * 93.0 - nats).abs() < 1e-6 * nats);
        for key in ["word_perplexity", "bits_per_byte", "words", "seconds"] {
            assert!(found[key].as_f64().expect("a number") > 0.0, "{key}");
        }
    }
}

#[test]
fn eval_puts_bos_where_it_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, model) = (text(folder.path()), model("llama"));
    let eval = |bos: &str| {
        let args = ["eval", &model, "--text", &text, "--seq-len", "32", "--bos", bos, "--json"];
        serde_json::from_slice::<Value>(&openwork(&args).stdout).expect("one JSON object")
    };
    let found = ["each", "first", "none"].map(eval);
    for (found, bos) in found.iter().zip(["each", "first", "none"]) {
        assert_eq!(found["bos"], bos);
    }
    assert_ne!(found[0]["nats"], found[1]["nats"]);
    assert_ne!(found[1]["nats"], found[2]["nats"]);
}

#[test]
fn what_generation_config_asks_for_and_is_not_done_is_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let from = Path::new(MODELS).join("qwen3").join(file);
        std::fs::copy(from, folder.path().join(file)).expect("a copy");
    }
    let path = folder.path().to_str().expect("a plain path");
    let notes = |json: &str| {
        std::fs::write(folder.path().join("generation_config.json"), json).expect("a write");
        let args = ["generate", path, "--prompt", "the wall", "--max-new-tokens", "1"];
        let words = String::from_utf8(openwork(&args).stderr).expect("UTF-8");
        words
            .lines()
            .filter(|line| line.starts_with("note: "))
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(notes(r#"{"repetition_penalty": 1.0, "top_k": 20}"#), [""; 0]);
    assert_eq!(
        notes(r#"{"repetition_penalty": 1.3}"#),
        ["note: generation_config.json: repetition_penalty = 1.3 is not implemented and was not \
          used; transformers' generate follows it"]
    );
}

#[test]
fn eval_refuses_what_it_cannot_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, model) = (text(folder.path()), model("llama"));
    let eval = |more: &[&str]| refusal(&[&["eval", &model, "--text", &text], more].concat(), 2);
    assert!(eval(&["--seq-len", "1"]).contains("windows of 1 tokens predict nothing"));
    assert!(eval(&["--seq-len", "0"]).contains("windows of 0 tokens predict nothing"));
    assert!(eval(&["--seq-len", "65"]).contains("more than the 64 that the model was made for"));
    assert!(
        eval(&["--max-tokens", "9", "--seq-len", "10"]).contains("fewer than one window of 10")
    );
    let gone = refusal(&["eval", &model, "--text", "no-such.txt"], 2);
    assert_eq!(gone, "error: no-such.txt: no such file\n");
    assert!(refusal(&["eval", "no-such", "--text", &text], 2).contains("no-such: no such file"));
}

#[test]
fn weights_that_compute_nan_end_with_code_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = text(folder.path());
    let broken = folder.path().join("broken");
    std::fs::create_dir(&broken).expect("a folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(Path::new(MODELS).join("llama").join(file), broken.join(file))
            .expect("a copy");
    }
    // The last numbers of the file belong to the last tensor: the final norm or a layer's weight.
    let source = Path::new(MODELS).join("llama/model.safetensors");
    let mut bytes = std::fs::read(source).expect("weights");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(broken.join("model.safetensors"), bytes).expect("a write");
    let broken = broken.to_str().expect("a plain path");
    let words = refusal(&["eval", broken, "--text", &text, "--seq-len", "32", "--quiet"], 1);
    assert!(words.contains("NaN or infinity"), "{words}");
    let words = refusal(&["generate", broken, "--prompt", "the wall"], 1);
    assert!(words.contains("NaN or infinity"), "{words}");
}

#[test]
fn generate_streams_text_or_prints_one_object() {
    let model = model("qwen3");
    let args = ["generate", &model, "--prompt", "the wall", "--max-new-tokens", "5"];
    let plain = openwork(&args);
    assert_eq!(plain.status.code(), Some(0));
    let speed = String::from_utf8(plain.stderr).expect("UTF-8");
    assert!(speed.contains("tokens/s") && speed.contains("MB read per token"), "{speed}");
    let json = openwork(&[&args[..], &["--json", "--quiet"]].concat());
    assert!(json.stderr.is_empty());
    let found: Value = serde_json::from_slice(&json.stdout).expect("one JSON object");
    let streamed = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert_eq!(streamed, format!("{}\n", found["text"].as_str().expect("a text")));
    for key in ["tokens", "tokens_per_second", "bytes_per_token"] {
        assert!(found[key].as_f64().expect("a number") > 0.0, "{key}");
    }
    let words = refusal(&["generate", &model, "--prompt", ""], 2);
    assert_eq!(words, "error: the prompt is empty; give at least one word\n");
    let words = refusal(&["generate", &model, "--prompt", "a", "--temperature", "-1"], 2);
    assert!(words.contains("give a number above 0"), "{words}");
    let long = "wall ".repeat(100);
    assert!(refusal(&["generate", &model, "--prompt", &long], 2).contains("more than the 64"));
}

#[test]
fn families_lists_the_table() {
    let page = String::from_utf8(openwork(&["families"]).stdout).expect("UTF-8");
    let json = openwork(&["families", "--json"]).stdout;
    let found: Value = serde_json::from_slice(&json).expect("one JSON object");
    let families = found["families"].as_array().expect("a list");
    assert_eq!(families.len(), 5);
    for family in families {
        assert!(page.contains(family["architectures"][0].as_str().expect("a name")));
    }
}
