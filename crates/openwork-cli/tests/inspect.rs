//! `openwork inspect`, as a user runs it.

mod common;

use common::{Folder, f32s, noise};
use serde_json::Value;
use std::process::{Command, Output};

/// Specs that go with no tensor, and a part of what is said against each.
const SPECS: [(&str, &str); 4] = [
    ("rows0", "there is no preset or clause `rows0`"),
    ("4:2", "N is at most M; found 4 of 2"),
    ("0:0", "found 0 of 0"),
    ("rowwise(200%)", "keep 200% is more than there are"),
];

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/gguf/qwen2.gguf");

fn openwork(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_openwork")).args(args).output().expect("the command runs")
}

#[test]
fn json_is_one_object_with_every_tensor() {
    let output = openwork(&["inspect", MODEL, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(found["format"], "gguf");
    assert_eq!(found["architecture"], "Qwen2ForCausalLM");
    assert_eq!(found["config"]["hidden_size"], 32);
    let tensors = found["tensors"].as_array().unwrap();
    assert_eq!(found["totals"]["tensors"], tensors.len());
    let sum = |key: &str| tensors.iter().map(|tensor| tensor[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(found["totals"]["bytes"], sum("bytes"));
    assert_eq!(found["totals"]["nonzeros"], sum("nonzeros"));
    for tensor in tensors {
        let len: u64 =
            tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
        let density = tensor["nonzeros"].as_u64().unwrap() as f64 / len as f64;
        let found = tensor["density"].as_f64().unwrap();
        // Reading JSON may round the last bit.
        assert!((found - density).abs() < 1e-15, "{}: {found}, not {density}", tensor["name"]);
    }
}

#[test]
fn the_page_names_every_tensor() {
    let output = openwork(&["inspect", MODEL]);
    assert_eq!(output.status.code(), Some(0));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("architecture  Qwen2ForCausalLM\n"), "{page}");
    assert!(page.contains("layers 1, hidden 32, MLP 64, heads 4, key-value heads 2"), "{page}");
    let line = page.lines().find(|line| line.starts_with("model.layers.0.self_attn.q_proj.weight"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[1..5], ["32", "x", "32", "Q4_1"]);
    assert!(page.contains("tied embeddings"), "{page}");
}

#[test]
fn a_family_that_ties_unless_told_is_tied() {
    let gemma = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/gemma3");
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (std::path::Path::new(gemma), folder.path());
    std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let silent = config.replace("  \"tie_word_embeddings\": true,\n", "");
    assert_ne!(silent, config);
    std::fs::write(to.join("config.json"), silent).unwrap();
    let page = openwork(&["inspect", to.to_str().unwrap()]).stdout;
    assert!(String::from_utf8(page).unwrap().contains("tied embeddings"));
}

#[test]
fn a_model_that_cannot_be_read_is_the_users_mistake() {
    for (model, words) in [
        (
            "no-such-model",
            "error: no-such-model: no such file or folder; a model on the Hugging Face Hub is written with its owner, org/no-such-model\n",
        ),
        (
            "src",
            "error: src: the folder has no config.json; a model needs config.json, tokenizer.json and model.safetensors (or shards with model.safetensors.index.json)\n",
        ),
        (
            "Cargo.toml",
            "error: Cargo.toml: not a model; expected a folder with config.json and safetensors, or a .gguf file\n",
        ),
    ] {
        for json in [&[][..], &["--json"]] {
            let output = openwork(&[&["inspect", model], json].concat());
            assert_eq!(output.status.code(), Some(2));
            assert_eq!(String::from_utf8_lossy(&output.stderr), words);
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn a_spec_is_bound_before_it_is_checked() {
    for (spec, words) in SPECS {
        let output = openwork(&["inspect", MODEL, "--spec", spec]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{spec}: {said}");
        assert!(output.stdout.is_empty() && said.starts_with("error: "), "{spec}: {said}");
        assert!(said.contains(words), "{spec}: {said}");
    }
    let output = openwork(&["inspect", "demo", "--spec", "2:4"]);
    assert_eq!(output.status.code(), Some(0));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.ends_with("\nno linear layer has zeros; nothing was checked\n"), "{page}");
}

#[test]
fn a_tensor_that_does_not_conform_is_a_failure() {
    let folder = Folder::new();
    folder.file("w.safetensors", &[f32s("w", &[4, 8], &noise(32, 1))]);
    let pruned =
        folder.run("tensor w.safetensors --spec 2:4 --method magnitude --out p.safetensors");
    assert_eq!(pruned.code, 0, "{}", pruned.err);
    let good = folder.run("inspect p.safetensors --spec 2:4");
    assert_eq!(good.code, 0, "{}", good.err);
    assert!(
        good.out.contains("2:4: conforms")
            && good.out.contains("1 pruned tensor was checked and conforms"),
        "{}",
        good.out
    );
    for json in ["", " --json"] {
        let bad = folder.run(&format!("inspect p.safetensors --spec 1:4{json}"));
        assert_eq!(bad.code, 1, "{}", bad.out);
        assert_eq!(bad.err, "error: 1 of 1 pruned tensor does not conform to 1:4\n");
        assert!(bad.out.contains("1:4"), "{}", bad.out);
    }
}

#[test]
fn headers_alone_can_be_listed() {
    let all = openwork(&["inspect", MODEL, "--json"]).stdout;
    let output = openwork(&["inspect", MODEL, "--no-density", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("one JSON object");
    let (all, found) = (read(&all), read(&output.stdout));
    assert!(found["totals"]["nonzeros"].is_null() && found["totals"]["density"].is_null());
    assert_eq!(found["totals"]["parameters"], all["totals"]["parameters"]);
    let tensors = |of: &Value| of["tensors"].as_array().unwrap().clone();
    for (a, b) in tensors(&all).iter().zip(tensors(&found)) {
        assert_eq!((&a["name"], &a["shape"]), (&b["name"], &b["shape"]));
        assert!(b["nonzeros"].is_null() && b.get("presets").is_none());
    }
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_shown_as_well_as_can_be() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"m\xff.gguf"));
    std::fs::copy(MODEL, &path).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_openwork"))
        .args(["inspect".as_ref(), path.as_os_str(), "--json".as_ref()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(found["model"].as_str().unwrap().ends_with("m\u{fffd}.gguf"));
}
