//! Specs with `then` and `else`, from the command line.

mod common;

use common::{Folder, f32s, noise};
use serde_json::json;

const VENOM: &str = "block (4,1) scope (1,8) keep 4 then 2:4";
const MIXED: &str = "block (4,8) scope (1,_) keep 50% else 2:4";

#[test]
fn show_prints_the_facts_of_every_level_and_of_the_whole() {
    let folder = Folder::new();
    let run =
        |more: &[&str]| folder.run_list(&[&["show", VENOM, "--shape", "8,32"], more].concat());
    let page = run(&[]).out;
    for part in [
        "level 1      block (4,1) scope (1,8) keep 4\n",
        "level 2 (then) scope (1,4) keep 2\n",
        "tensor       (8,16), 128 weights\n",
        "whole        density 25% = 1/4, sparsity 75%\n",
        ".: pruned by level 1; -: pruned by an inner level",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    let shown: serde_json::Value = serde_json::from_str(&run(&["--json"]).out).unwrap();
    assert_eq!(shown["spec"], VENOM);
    assert_eq!(shown["expanded"], "block (4,1) scope (1,8) keep 4 then scope (1,4) keep 2");
    assert_eq!((&shown["density"], &shown["density_exact"]), (&json!(0.25), &json!("1/4")));
    assert_eq!((&shown["keep"], &shown["num_scopes"]), (&json!(4), &json!(8)));
    let levels = shown["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 2);
    assert_eq!(levels[1]["path"], json!(["then"]));
    assert_eq!(levels[1]["shape"], json!([8, 16]));
    assert_eq!(levels[1]["keep"], 2);
    let drawn = run(&["--svg", "venom.svg"]);
    assert_eq!(drawn.code, 0, "{}", drawn.err);
    let svg = std::fs::read_to_string(folder.path("venom.svg")).unwrap();
    assert!(svg.contains("ow-deep") && svg.contains("pruned by an inner level"));
    let refused = run(&["--fragment", "m16n8k16"]);
    assert_eq!(refused.code, 2);
}

#[test]
fn a_composed_view_is_printed_beside_what_was_written() {
    let folder = Folder::new();
    let view = "(M,K/4,4):(K,4,1) o (4,K/4,M):(M*K/4,M,1)";
    let spec = format!("view {view} scope (4,1,1) keep 2");
    let page = folder.run_list(&["show", &spec, "--shape", "8,16"]).out;
    assert!(page.contains(&format!("view       {view} = (4,4,8):(1,4,16)\n")), "{page}");
    let composed =
        folder.run_list(&["layout", "composition", "(8,4,4):(16,4,1)", "(4,4,8):(32,8,1)"]).out;
    assert!(composed.contains("(4,4,8):(1,4,16)"), "{composed}");
}

#[test]
fn a_tensor_is_pruned_and_checked_by_level() {
    let folder = Folder::new();
    folder.file("w.safetensors", &[f32s("w", &[8, 32], &noise(256, 1))]);
    folder.file("x.safetensors", &[f32s("x", &[96, 32], &noise(96 * 32, 2))]);
    for (spec, density) in [(VENOM, 0.25), (MIXED, 0.75), ("columns(25%) else 2:4", 0.625)] {
        let args =
            ["tensor", "w.safetensors", "--spec", spec, "--inputs", "x.safetensors", "--json"];
        let bases = openwork::prune::METHODS.iter().map(|method| method.name);
        let methods: Vec<&str> = bases.chain(["sparsegpt+refit", "s-obs+swap"]).collect();
        let run = folder.run_list(&[&args[..], &["--method", &methods.join(",")]].concat());
        assert_eq!(run.code, 0, "{}", run.err);
        let found: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        for result in found["results"].as_array().unwrap() {
            assert_eq!(result["conforms"], true, "{spec}: {result}");
            assert_eq!(result["density"], density, "{spec}: {result}");
        }
        let out = ["--method", "s-obs", "--out", "o.safetensors", "--force"];
        assert_eq!(folder.run_list(&[&args[..], &out].concat()).code, 0);
        let good = folder.run_list(&["inspect", "o.safetensors", "--spec", spec]);
        assert_eq!(good.code, 0, "{}{}", good.out, good.err);
    }
    let bad = folder.run_list(&["inspect", "o.safetensors", "--spec", VENOM]);
    assert_eq!(bad.code, 1);
    assert!(bad.out.contains("level 1: scope 0 keeps "), "{}", bad.out);
}

#[test]
fn a_model_is_pruned_to_the_same_bytes_and_inspected() {
    let folder = Folder::new();
    let shards = |name: &str| {
        let files = std::fs::read_dir(folder.path(name)).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
        files.sort();
        assert!(!files.is_empty());
        files.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>()
    };
    let tiles = "block (16,8) scope (1,_) keep 50% else 2:4";
    for (spec, format) in [(VENOM, "general"), (tiles, "gathered")] {
        let prune = |threads: &str, out: &str| {
            let args =
                ["prune", "demo", "--spec", spec, "--method", "sparsegpt", "--calib", "demo"];
            let size = ["--samples", "4", "--seq-len", "64", "--quiet", "--force"];
            let run = folder
                .run_list(&[&args[..], &size, &["--threads", threads, "--out", out]].concat());
            assert_eq!(run.code, 0, "{}", run.err);
            shards(out)
        };
        assert!(prune("1", "a") == prune("2", "b"), "{spec}");
        let good = folder.run_list(&["inspect", "a", "--spec", spec, "--quiet"]);
        assert_eq!(good.code, 0, "{}{}", good.out, good.err);
        let packed = folder.run_list(&["pack", "a", "--out", "packed", "--quiet", "--force"]);
        assert_eq!(packed.code, 0, "{}", packed.err);
        let text = |model: &str| {
            let run = folder.run_list(&["generate", model, "--prompt", "a", "--quiet", "--json"]);
            assert_eq!(run.code, 0, "{}", run.err);
            serde_json::from_str::<serde_json::Value>(&run.out).unwrap()["text"].clone()
        };
        assert_eq!(text("a"), text("packed"), "{spec}");
        let inspected = folder.run_list(&["inspect", "packed", "--quiet"]);
        assert!(inspected.out.contains(format), "{}", inspected.out);
        let unpacked = folder.run_list(&["unpack", "packed", "--out", "again", "--quiet"]);
        assert_eq!(unpacked.code, 0, "{}", unpacked.err);
        assert_eq!(shards("a"), shards("again"), "{spec}");
        std::fs::remove_dir_all(folder.path("packed")).unwrap();
        std::fs::remove_dir_all(folder.path("again")).unwrap();
        std::fs::remove_dir_all(folder.path("a")).unwrap();
        std::fs::remove_dir_all(folder.path("b")).unwrap();
    }
}
