//! `openwork eval`, `generate` and `families`, as a user runs them.

use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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

/// What a command prints that reads `input` from stdin.
fn with_stdin(args: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openwork"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    // A command that does not read its stdin may have ended.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!(output.status.code(), Some(0), "{args:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
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
        ["note: generation_config.json: repetition_penalty = 1.3 is not supported and was \
          ignored; transformers applies it"]
    );
}

#[test]
fn a_text_without_words_has_no_word_perplexity() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "wall".repeat(99)).expect("the folder is writable");
    let (model, text) = (model("llama"), text.to_str().expect("a plain path"));
    let args = ["eval", &model, "--text", text, "--seq-len", "64"];
    let output = openwork(&args);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("note: the scored text contains no words"), "{said}");
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(page.contains("word perplexity   -\n"), "{page}");
    let json = openwork(&[&args[..], &["--json"]].concat()).stdout;
    let found: Value = serde_json::from_slice(&json).expect("one JSON object");
    assert!(found["word_perplexity"].is_null() && found["token_perplexity"].is_f64());
}

#[test]
fn eval_refuses_what_it_cannot_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, model) = (text(folder.path()), model("llama"));
    let eval = |more: &[&str]| refusal(&[&["eval", &model, "--text", &text], more].concat(), 2);
    assert!(eval(&["--seq-len", "1"]).contains("a window of 1 token predicts nothing"));
    assert!(eval(&["--seq-len", "0"]).contains("a window of 0 tokens predicts nothing"));
    assert!(eval(&["--seq-len", "65"]).contains("65 tokens exceed the model's limit of 64"));
    assert!(
        eval(&["--max-tokens", "9", "--seq-len", "10"]).contains("do not fill one window of 10")
    );
    let words = eval(&["--max-tokens", "0"]);
    assert!(words.contains("0 tokens of text do not fill one window"), "{words}");
    let gone = refusal(&["eval", &model, "--text", "no-such.txt"], 2);
    assert_eq!(gone, "error: no-such.txt: no such file\n");
    assert!(refusal(&["eval", "no-such", "--text", &text], 2).contains("no-such: no such file"));
}

#[test]
fn weights_that_are_or_compute_no_numbers_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = text(folder.path());
    let broken = folder.path().join("broken");
    std::fs::create_dir(&broken).expect("a folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(Path::new(MODELS).join("llama").join(file), broken.join(file))
            .expect("a copy");
    }
    // The last number of the file belongs to the final norm.
    let source = Path::new(MODELS).join("llama/model.safetensors");
    let spoil = |value: f32| {
        let mut bytes = std::fs::read(&source).expect("weights");
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        std::fs::write(broken.join("model.safetensors"), bytes).expect("a write");
    };
    let model = broken.to_str().expect("a plain path");
    let eval = ["eval", model, "--text", &text, "--seq-len", "32", "--quiet"];
    let generate = ["generate", model, "--prompt", "the wall"];
    // In the file: the file is at fault.
    spoil(f32::NAN);
    for args in [&eval[..], &generate] {
        let words = refusal(args, 2);
        assert!(
            words.contains(
                "model.safetensors: tensor \"model.norm.weight\" contains NaN or infinity"
            ),
            "{words}"
        );
    }
    // Computed from numbers.
    spoil(f32::MAX);
    for args in [&eval[..], &generate] {
        assert!(refusal(args, 1).contains("computes NaN or infinity"));
    }
    spoil(1e9);
    assert!(refusal(&eval, 1).contains("nats per token, so the perplexity overflows"));
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
    // The prompt as argument, option or from stdin, and repeated on request.
    let wall = format!("the wall{streamed}");
    let prompts: [(&[&str], &str, &str); 6] = [
        (&["the wall"], "", &streamed),
        (&["-p", "the wall"], "", &streamed),
        (&["-"], "the wall\n", &streamed),
        (&[], "the wall", &streamed),
        (&["--echo"], "the wall\r\n", &wall),
        (&["the wall", "--echo"], "not read", &wall),
    ];
    for (more, stdin, want) in prompts {
        let args = [&["generate", &model, "-n", "5", "--quiet"], more].concat();
        assert_eq!(with_stdin(&args, stdin), want, "{more:?}");
    }
    let words = refusal(&["generate", &model, "--prompt", ""], 2);
    assert_eq!(words, "error: the prompt is empty; pass at least one word\n");
    let words = refusal(&["generate", &model, "--prompt", "a", "--temperature", "-1"], 2);
    assert!(words.contains("use a number above 0"), "{words}");
    // Options of sampling are not passed over.
    let words =
        refusal(&["generate", &model, "--prompt", "a", "--temperature", "0", "--top-p", "2"], 2);
    assert!(words.contains("top-p 2 is out of range"), "{words}");
    for option in ["--top-p", "--top-k", "--seed"] {
        let output = openwork(&["generate", &model, "--prompt", "a", option, "1"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--temperature <X>"), "{option}");
    }
    let long = "wall ".repeat(100);
    assert!(
        refusal(&["generate", &model, "--prompt", &long], 2).contains("the model's limit of 64")
    );
}

#[test]
fn families_lists_the_table() {
    let page = String::from_utf8(openwork(&["families"]).stdout).expect("UTF-8");
    let json = openwork(&["families", "--json"]).stdout;
    let found: Value = serde_json::from_slice(&json).expect("one JSON object");
    let families = found["families"].as_array().expect("a list");
    assert_eq!(families.len(), openwork_llm::model::FAMILIES.len());
    for family in families {
        assert!(page.contains(family["architectures"][0].as_str().expect("a name")));
    }
}

#[test]
fn an_error_is_not_as_long_as_the_name_it_is_about() {
    let words = refusal(&["inspect", &"x".repeat(50_000)], 2);
    assert!(words.len() < 4100, "{}", words.len());
    assert!(words.starts_with("error: xxx") && words.contains("x [..] x"), "{words}");
    assert!(words.contains(": cannot be read: "), "{words}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_error_that_nobody_can_hear_is_still_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let mut command = Command::new(env!("CARGO_BIN_EXE_openwork"));
    let status = command.args(["inspect", "no-such-model"]).stderr(full).status();
    assert_eq!(status.expect("the command runs").code(), Some(2));
}
