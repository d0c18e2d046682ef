//! Heads, channels and layers that leave the model, by the command.

mod common;

use common::Folder;
use std::path::Path;

fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
    path.canonicalize().unwrap().display().to_string()
}

fn folder() -> Folder {
    let words = ["assert", "value", "return", "name", "in", "the", "class", "a", "object", "is"];
    let text: Vec<&str> = (0..20_000).map(|i| words[(i * i + i / 7) % words.len()]).collect();
    let folder = Folder::new();
    folder.bytes("calib.txt", text.join(" ").as_bytes());
    folder
}

const CALIB: &str = "--calib calib.txt --samples 8 --seq-len 32";
const EVAL: &str = "--eval calib.txt --eval-tokens 500 --eval-seq-len 32";

#[test]
fn removed_structures_leave_a_smaller_model_with_the_printed_perplexity() {
    for name in ["models/llama-tied", "models/gemma3", "gguf/qwen2.gguf"] {
        let folder = folder();
        folder.bytes("recipe.toml", b"spec='mlp keep 75%'\n[[rule]]\nspec='heads keep 1'");
        let model = model(name);
        let common = format!("prune {model} --recipe recipe.toml --method s-obs {CALIB} {EVAL}");
        let record = folder.json(&format!("{common} --remove --out small"));
        let eval = folder.json("eval small --text calib.txt --max-tokens 500 --seq-len 32");
        let last = record["evaluations"].as_array().unwrap().last().unwrap();
        assert_eq!(last["token_perplexity"], eval["token_perplexity"], "{name}");
        assert_eq!(record["passes"][0]["after"]["kv_heads"], 1, "{name}");
        let channels = |when: &str| record["passes"][0][when]["channels"].as_u64().unwrap();
        assert_eq!(channels("after"), channels("before") * 3 / 4, "{name}");
        // The same in two steps: prune, then shrink.
        folder.json(&format!("{common} --out masked"));
        assert_eq!(folder.json("inspect masked")["conforms"], true);
        for (spec, conforms) in [("mlp keep 75%", "true"), ("mlp keep 50%", "false")] {
            let said = folder.run_list(&["inspect", "masked", "--spec", spec, "--json"]).out;
            assert!(said.contains(&format!("\"conforms\":{conforms}}}")), "{name}: {spec}");
        }
        let shrunk = folder.json("shrink masked --out other");
        assert_eq!(shrunk["after"], record["passes"][0]["after"]);
        assert!(shrunk["bytes"].as_u64() < shrunk["bytes_before"].as_u64());
        let other = folder.json("eval other --text calib.txt --max-tokens 500 --seq-len 32");
        assert_eq!(other["nats"], eval["nats"], "{name}");
        // What was done is there, so it is not done again.
        let again = folder.json(&format!("{common} --remove --out small --resume"));
        assert_eq!(again["passes"], record["passes"]);
        assert!(folder.refused("shrink small --out third").contains("no channel or head"));
        // It has neither --resume nor --force, and does not suggest them.
        let words = folder.refused("shrink masked --out other");
        assert_eq!(words, "other: already exists; choose another --out or remove it first");
    }
}

#[test]
fn a_dry_run_shows_every_pass_with_its_shapes() {
    let folder = folder();
    folder.bytes(
        "recipe.toml",
        b"[[pass]]\nspec='layers keep 3'\n[[pass]]\nspec='mlp keep 50%'\nremove=true\n[[pass]]\nspec='2:4'",
    );
    let args = format!("prune {} --recipe recipe.toml {CALIB} --out out", model("models/gemma3"));
    let said = folder.json(&format!("{args} --dry-run"));
    let passes = said["passes"].as_array().unwrap();
    assert_eq!(passes[0]["after"]["layers"], 3);
    assert_eq!(passes[2]["tensors"].as_array().unwrap().len(), 21);
    assert_eq!(passes[2]["tensors"][6]["shape"], serde_json::json!([32, 28]));
    assert!(!folder.path("out").exists());
    let record = folder.json(&args);
    assert_eq!(record["passes"][2]["after"], passes[2]["after"]);
    assert_eq!(folder.json("inspect out")["conforms"], true);
    let why = folder.refused(&format!("{} --remove", args.replace("--out out", "--out new")));
    assert!(why.contains("belong to each [[pass]]"), "{why}");
}
