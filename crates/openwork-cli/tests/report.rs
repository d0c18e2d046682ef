//! `openwork report`, as a user runs it.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn openwork(args: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_openwork"))
        .arg("report")
        .args(args)
        .output()
        .expect("the command runs")
}

/// A run of one layer with one linear.
fn record(error: f64) -> Value {
    json!({
        "openwork": "0.1.0", "model": "tiny", "family": "Llama", "spec": "2:4", "method": "s-obs",
        "options": {"dtype": "bf16", "sequential": true, "threads": 2},
        "seed": 0,
        "calibration": {"text": "c.txt", "samples": 2, "seq_len": 8, "tokens": 16, "sha256": "00"},
        "layers": [{
            "index": 0, "seconds": 1.0, "forward_seconds": 0.5, "prune_seconds": 0.25,
            "decoder_error": 0.125,
            "linears": [{
                "name": "model.layers.0.mlp.up_proj.weight", "shape": [8, 8], "spec": "2:4",
                "method": "s-obs", "error": error, "density": 0.5, "damping": "diag:0.1",
                "seconds": 0.25, "notes": []
            }]
        }],
        "evaluations": [{
            "after_layer": null, "token_perplexity": 20.5, "word_perplexity": 30.0,
            "tokens": 100, "seconds": 1.0
        }],
        "totals": {
            "seconds": 2.0, "peak_rss_bytes": 1000, "mean_error": error, "density": 0.5, "weights": 64
        },
        "notes": []
    })
}

/// A folder as `openwork prune` leaves it, with this record.
fn run(folder: &Path, name: &str, record: &str) -> PathBuf {
    let run = folder.join(name);
    std::fs::create_dir_all(run.join("openwork")).expect("the folder is writable");
    std::fs::write(run.join("openwork/record.json"), record).expect("the folder is writable");
    run
}

#[test]
fn folders_and_files_become_one_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let a = run(folder.path(), "run a", &record(0.3125).to_string());
    let b = run(folder.path(), "run b", &record(0.1875).to_string()).join("openwork/record.json");
    let out = folder.path().join("page.html");
    let said = openwork(&[&a, &b, "--out".as_ref(), &out, "--json".as_ref()]);
    assert_eq!(said.status.code(), Some(0), "{}", String::from_utf8_lossy(&said.stderr));
    let said: Value = serde_json::from_slice(&said.stdout).expect("one JSON object");
    assert_eq!(said["runs"], json!(["run a", "run b"]));
    let page = std::fs::read_to_string(&out).expect("the page is there");
    assert_eq!(said["bytes"], page.len());
    for text in ["run b vs. run a", "0.3125", "0.1875", "20.50"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn what_is_no_run_is_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = record(0.5).to_string();
    let good = run(folder.path(), "good", &whole);
    let cut = run(folder.path(), "cut", &whole[..whole.len() / 2]);
    let other = run(folder.path(), "other", "{\"runs\": 3}");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).expect("the folder is writable");
    let out = folder.path().join("page.html");
    for (bad, words) in [
        (cut, "not a record of a run: EOF"),
        (other, "not a record of a run: missing field"),
        (empty, "give a folder that `openwork prune` wrote, or its record.json"),
        (folder.path().join("gone"), "give a folder that `openwork prune` wrote"),
    ] {
        let said = openwork(&[&good, &bad, "--out".as_ref(), &out]);
        let error = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{error}");
        assert!(error.starts_with("error: ") && error.contains(words), "{error}");
        assert!(!out.exists());
    }
    let said = openwork(&[&good, "--out".as_ref(), folder.path()]);
    assert_eq!(said.status.code(), Some(2));
    assert_eq!(openwork(&[&good]).status.code(), Some(2), "no --out");
}

#[test]
fn runs_on_different_texts_are_warned_about() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut other = record(0.25);
    other["evaluations"][0]["token_perplexity"] = json!(40.0);
    let a = run(folder.path(), "a", &record(0.25).to_string());
    let b = run(folder.path(), "b", &other.to_string());
    let out = folder.path().join("page.html");
    let said = openwork(&[&a, &b, "--out".as_ref(), &out]);
    assert_eq!(said.status.code(), Some(0));
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(words.starts_with("warning: not ranked together"), "{words}");
    let page = std::fs::read_to_string(&out).expect("the page is there");
    assert!(page.contains("Warning: not ranked together"));
}
