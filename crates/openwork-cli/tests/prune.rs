//! `openwork prune` in a fresh folder: what it writes, what it refuses, and
//! that a kill at any moment costs nothing but time.

mod common;

use common::Folder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
    path.canonicalize().unwrap().display().to_string()
}

/// A text of many words, the same each time.
fn text() -> String {
    let words = ["assert", "value", "return", "name", "in", "the", "class", "a", "object", "is"];
    (0..20_000).map(|i| words[(i * i + i / 7) % words.len()]).collect::<Vec<_>>().join(" ")
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.bytes("calib.txt", text().as_bytes());
    folder
}

const ARGS: &str = "--spec 2:4 --method sparsegpt --calib calib.txt --samples 8 --seq-len 32";

/// Every file of the result that a reader of the model sees.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

#[test]
fn the_result_is_a_model_with_its_record() {
    for name in ["models/llama-tied", "models/mistral", "gguf/qwen2.gguf", "models/gemma3"] {
        let folder = folder();
        let record = folder.json(&format!(
            "prune {} {ARGS} --out out --eval calib.txt --eval-tokens 500 --eval-seq-len 32 --eval-every 1",
            model(name)
        ));
        let written: Value = serde_json::from_slice(
            &std::fs::read(folder.path("out/openwork/record.json")).unwrap(),
        )
        .unwrap();
        assert_eq!(written, record, "{name}");
        assert_eq!((&record["spec"], &record["method"]), (&"2:4".into(), &"sparsegpt".into()));
        let layers = record["layers"].as_array().unwrap();
        for layer in layers {
            assert!(layer["decoder_error"].as_f64().unwrap() > 0.0);
            for linear in layer["linears"].as_array().unwrap() {
                // A quantized model has a few zeros of its own.
                let density = linear["density"].as_f64().unwrap();
                assert!((0.49..=0.5).contains(&density), "{name}: {linear}");
                assert!(linear["error"].as_f64().unwrap() > 0.0);
            }
        }
        // The dense model, after each layer but the last, and at the end.
        let evaluations = record["evaluations"].as_array().unwrap();
        assert_eq!(evaluations.len(), layers.len() + 1);
        let eval = folder.json("eval out --text calib.txt --max-tokens 500 --seq-len 32");
        let (found, said) =
            (&eval["token_perplexity"], &evaluations.last().unwrap()["token_perplexity"]);
        assert_eq!(found, said, "{name}");
        let inspection = folder.json("inspect out --spec 2:4");
        assert_eq!(inspection["conforms"], true, "{name}");
        assert_eq!(folder.json("inspect out")["conforms"], true, "{name}");
        let wrong = folder.run("inspect out --spec 1:4 --json");
        assert_eq!(wrong.code, 1, "{name}");
        let wrong: Value = serde_json::from_str(&wrong.out).unwrap();
        assert_eq!(wrong["conforms"], false);
        let breach = wrong["tensors"].as_array().unwrap().iter().find_map(|t| t["breach"].as_str());
        assert!(breach.unwrap().contains("blocks, expected 1"), "{breach:?}");
        for file in ["README.md", "config.json", "tokenizer.json", "openwork/recipe.toml"] {
            assert!(folder.path(&format!("out/{file}")).exists(), "{name}: {file}");
        }
        let config = std::fs::read_to_string(folder.path("out/config.json")).unwrap();
        assert!(config.contains("bfloat16") || config.contains("float32"), "{config}");
    }
}

#[test]
fn the_model_that_the_program_carries_is_pruned() {
    let folder = Folder::new();
    let record = folder.json(
        "prune demo --spec rows16 --method sparsegpt --calib demo --samples 2 --seq-len 64 --out out",
    );
    assert_eq!(record["family"], "qwen3");
    assert_eq!(folder.json("inspect out --spec rows16")["conforms"], true);
    let said = folder.run("eval out --text demo --seq-len 64 --max-tokens 128 --quiet");
    assert_eq!(said.code, 0, "{}", said.err);
}

/// Starts a run and kills it after `wait`; whether it had ended by itself.
fn start_and_kill(folder: &Folder, args: &str, wait: Duration) -> bool {
    let said = folder.path("stderr");
    let mut child = Command::new(env!("CARGO_BIN_EXE_openwork"))
        .args(args.split_whitespace())
        .current_dir(folder.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::from(std::fs::File::create(&said).unwrap()))
        .spawn()
        .unwrap();
    let started = Instant::now();
    while started.elapsed() < wait {
        if let Some(status) = child.try_wait().unwrap() {
            let said = || std::fs::read_to_string(&said).unwrap_or_default();
            assert!(status.success(), "{args}: {}", said());
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

/// Kills a run `kills` times, spread over its own time, and resumes it each time.
fn resumed_after_kills(folder: &Folder, args: &str, kills: usize) {
    let started = Instant::now();
    let whole = folder.run(&format!("{args} --out whole"));
    assert_eq!(whole.code, 0, "{}", whole.err);
    let time = started.elapsed();
    let expected = contents(&folder.path("whole"));

    // Kills are spread over the run's own time: from its start, and from where
    // the run before was killed.
    let (mut done, mut round) = (0, 0);
    while done < kills {
        let out = format!("out{round}");
        round += 1;
        loop {
            // Another moment each time: a run that ends before its kill is not met with the same.
            let share = (((done + round) * 7919 + 13) % 1000) as f64 / 1000.0;
            let wait = time.mul_f64(0.9 * share);
            if done >= kills {
                assert!(start_and_kill(
                    folder,
                    &format!("{args} --out {out} --resume"),
                    time * 100
                ));
                break;
            }
            if start_and_kill(folder, &format!("{args} --out {out} --resume"), wait) {
                break;
            }
            done += 1;
        }
        let found = contents(&folder.path(&out));
        let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "round {round}");
        for (name, bytes) in &expected {
            assert!(found[name] == *bytes, "round {round}: {name} differs");
        }
        std::fs::remove_dir_all(folder.path(&out)).unwrap();
    }
}

/// Kills of a run here; a longer test sets OPENWORK_KILLS.
fn kills(usual: usize) -> usize {
    std::env::var("OPENWORK_KILLS").map_or(usual, |n| n.parse().unwrap())
}

#[test]
fn a_run_killed_at_any_moment_ends_with_the_same_bytes() {
    let args = format!(
        "prune {} --spec 2:4 --method admm --calib calib.txt --samples 64 --seq-len 64 --quiet \
         --eval calib.txt --eval-tokens 2000 --eval-seq-len 32 --eval-every 1",
        model("models/gemma3")
    );
    resumed_after_kills(&folder(), &args, kills(50));
}

#[test]
fn passes_killed_at_any_moment_end_with_the_same_bytes() {
    let folder = folder();
    let recipe = "[[pass]]\nspec = \"layers keep 3\"\n[[pass]]\nspec = \"mlp keep 40\"\nmethod = \"s-obs\"\nremove = true\n[[pass]]\nspec = \"2:4\"\n";
    std::fs::write(folder.path("passes.toml"), recipe).unwrap();
    let args = format!(
        "prune {} --recipe passes.toml --calib calib.txt --samples 64 --seq-len 64 --quiet",
        model("models/gemma3")
    );
    resumed_after_kills(&folder, &args, kills(25));
}

#[test]
fn a_run_stopped_before_it_wrote_its_plan_is_begun_again() {
    let folder = folder();
    let args = format!(
        "prune {} --spec 2:4 --method wanda --calib calib.txt --samples 4 --seq-len 32 --resume",
        model("models/llama")
    );
    for last in ["openwork", "openwork/layers", "openwork/lock", "openwork/plan.json.unfinished"] {
        let out = folder.path("out");
        std::fs::create_dir_all(out.join("openwork")).unwrap();
        match last.ends_with("lock") || last.ends_with("unfinished") {
            true => drop(std::fs::File::create(out.join(last)).unwrap()),
            false => std::fs::create_dir_all(out.join(last)).unwrap(),
        }
        let said = folder.run(&format!("{args} --out out"));
        assert_eq!(said.code, 0, "{last}: {}", said.err);
        std::fs::remove_dir_all(out).unwrap();
    }
    // What no run left is not touched.
    for other in ["notes.txt", "openwork/notes.txt", "openwork/layers/notes.txt"] {
        let out = folder.path("out");
        std::fs::create_dir_all(out.join("openwork/layers")).unwrap();
        std::fs::write(out.join(other), "mine").unwrap();
        let said = folder.refused(&format!("{args} --out out"));
        assert!(said.contains("no run to resume"), "{other}: {said}");
        std::fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn mistakes_are_found_before_anything_is_written() {
    let folder = folder();
    let llama = model("models/llama");
    let refused =
        |rest: &str| folder.refused(&format!("prune {llama} --calib calib.txt --out out {rest}"));
    assert!(refused("--spec 2:4 --samples 99999999").contains("windows of"));
    assert!(refused("--spec 2:4 --seq-len 4096").contains("at most 64 tokens"));
    assert!(refused("--spec 2:5").contains("q_proj"), "{}", refused("--spec 2:5"));
    assert!(refused("").contains("no tensor would be pruned"));
    assert!(refused("--spec 2:4 --method s-obz").contains("s-obs"));
    assert!(refused("--spec 2:4 --include (").contains("regular expression"));
    assert!(refused("--spec 2:4 --include nothing").contains("no tensor would be pruned"));
    assert!(refused("--spec 2:4 --dtype f8").contains("bf16, f16 or f32"));
    assert!(refused("--spec 2:4 --max-memory 1M").contains("needs about"));
    assert!(refused("--spec 2:4 --sequential maybe").contains("on or off"));
    let message = refused("--spec rows16");
    // 56 columns: some tensors fit, some do not, and those are listed.
    assert!(message.contains("down_proj") && !message.contains("q_proj"), "{message}");
    folder.bytes("short.txt", b"too short");
    let message = folder.refused(&format!("prune {llama} --spec 2:4 --calib short.txt --out out"));
    assert!(
        message.contains("short.txt") && message.contains("fewer than one window"),
        "{message}"
    );

    let recipe = |text: &str| {
        folder.bytes("recipe.toml", text.as_bytes());
        refused("--recipe recipe.toml")
    };
    assert!(
        recipe("spec = '2:4'\n[[rule]]\nmatch = 'up_project'\ndense = true").contains("no linear")
    );
    assert!(recipe("speck = '2:4'").contains("speck"));
    assert!(
        recipe("spec = '2:4'\n[[rule]]\nlayers = '7'\ndense = true")
            .contains("there is no layer 7")
    );
    let coupled =
        "[[rule]]\nmatch = 'gate'\nspec = 'blocks gate: block (1,_) & up: block (1,_) keep 50%'";
    assert!(
        recipe(coupled).contains("which other rules of the recipe change"),
        "{}",
        recipe(coupled)
    );

    // A dry run with a clash says who wins.
    folder.bytes(
        "clash.toml",
        b"spec='2:4'\n[[rule]]\nmatch='q_proj'\nspec='1:4'\n[[rule]]\nmatch='layers.0'\nspec='4:8'\n",
    );
    let said = folder.run(&format!("prune {llama} --recipe clash.toml --calib calib.txt --samples 2 --seq-len 16 --out out --dry-run"));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("rule 2 overrides rule 1 for 1 tensor\n"), "{}", said.out);
    assert!(!folder.path("out").exists());
}

#[test]
fn folders_are_guarded() {
    let folder = folder();
    let llama = model("models/llama");
    let args = format!("prune {llama} {ARGS} --quiet");
    std::fs::create_dir(folder.path("full")).unwrap();
    std::fs::write(folder.path("full/letter"), "dear").unwrap();
    assert!(folder.refused(&format!("{args} --out full")).contains("not empty"));
    assert!(folder.refused(&format!("{args} --out full --resume")).contains("no run to resume"));
    assert!(folder.refused(&format!("{args} --out calib.txt")).contains("is a file"));

    assert_eq!(folder.run(&format!("{args} --out out")).code, 0);
    assert!(folder.refused(&format!("{args} --out out")).contains("--resume"));
    // The same plan again is done already; another one is refused by name.
    assert_eq!(folder.run(&format!("{args} --out out --resume")).code, 0);
    let other = folder.refused(&format!(
        "prune {llama} --spec 1:4 --method sparsegpt --calib calib.txt --samples 8 --seq-len 32 --out out --resume"
    ));
    assert!(other.contains("--spec was 2:4, is 1:4"), "{other}");
    let other = folder.refused(&format!("{args} --seed 3 --out out --resume"));
    assert!(other.contains("--seed was 0, is 3"), "{other}");
    let other = folder.refused(&format!("{args} --dtype f16 --out out --resume"));
    assert!(other.contains("--dtype was"), "{other}");
    // A damaged shard and a damaged state are found.
    let first = |start: &str| -> PathBuf {
        let mut entries: Vec<_> =
            std::fs::read_dir(folder.path("out")).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        entries
            .into_iter()
            .find(|path| path.file_name().unwrap().to_string_lossy().starts_with(start))
            .unwrap()
    };
    let shard = first("model-00002");
    let good = std::fs::read(&shard).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, &bad).unwrap();
    assert!(folder.refused(&format!("{args} --out out --resume")).contains("is damaged"));
    std::fs::remove_file(&shard).unwrap();
    let message = folder.refused(&format!("{args} --out out --resume"));
    assert!(message.contains("is missing; remove out/openwork/layers/00000.json"), "{message}");
    std::fs::write(&shard, &good).unwrap();
    let state = folder.path("out/openwork/layers/00001.json");
    let text = std::fs::read_to_string(&state).unwrap().replace("0.", "1.");
    std::fs::write(&state, text).unwrap();
    let message = folder.refused(&format!("{args} --out out --resume"));
    assert!(
        message.contains("00001.json") && message.contains("does not match its hash"),
        "{message}"
    );
    // Begin anew on demand; what is not ours stays.
    std::fs::write(folder.path("out/letter"), "dear").unwrap();
    assert_eq!(folder.run(&format!("{args} --out out --force")).code, 0);
    assert!(folder.path("out/letter").exists());
    assert_eq!(folder.json("inspect out --spec 2:4")["conforms"], true);
}

#[test]
fn wandas_flags_are_understood() {
    let folder = folder();
    let said = folder.run(&format!(
        "prune --model {} --prune_method wanda --sparsity_type unstructured --sparsity_ratio 0.75 \
         --nsamples 4 --seq-len 32 --calib calib.txt --save out --quiet",
        model("models/llama")
    ));
    assert_eq!(said.code, 0, "{}", said.err);
    let record: Value =
        serde_json::from_slice(&std::fs::read(folder.path("out/openwork/record.json")).unwrap())
            .unwrap();
    assert_eq!(
        (&record["spec"], &record["totals"]["density"]),
        (&"rowwise(25%)".into(), &0.25.into())
    );
}

#[test]
fn weights_that_are_not_numbers_are_refused_by_name() {
    let folder = folder();
    // Copy a model and spoil one weight.
    let source = PathBuf::from(model("models/llama"));
    std::fs::create_dir(folder.path("bad")).unwrap();
    for entry in std::fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.file_name().unwrap() == "model.safetensors" {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            let entry = &header["model.layers.1.mlp.up_proj.weight"];
            let start = 8 + length + entry["data_offsets"][0].as_u64().unwrap() as usize;
            let size = if entry["dtype"] == "F32" { 4 } else { 2 };
            bytes[start..start + size].fill(0xff);
        }
        std::fs::write(folder.path("bad").join(path.file_name().unwrap()), bytes).unwrap();
    }
    let words = folder.refused(&format!("prune bad {ARGS} --out out --quiet"));
    assert_eq!(
        words,
        "bad/model.safetensors: tensor \"model.layers.1.mlp.up_proj.weight\" contains NaN or infinity, \
         first in row 0; the file is damaged, or training diverged"
    );
}

#[test]
fn tokens_that_the_model_lacks_are_found_before_anything_is_written() {
    let folder = folder();
    let source = PathBuf::from(model("models/llama"));
    std::fs::create_dir(folder.path("late")).unwrap();
    for entry in std::fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path("late").join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path("late/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["model"]["vocab"]["<late>"] = 9999.into();
    json["added_tokens"].as_array_mut().unwrap().push(serde_json::json!({
        "id": 9999, "content": "<late>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true
    }));
    std::fs::write(&path, json.to_string()).unwrap();
    folder.bytes("late.txt", "<late> and ".repeat(200).as_bytes());
    let beyond = "the tokenizer produced token id 9999, but the model's vocabulary";
    let words = folder.refused(&format!("prune late {ARGS} --eval late.txt --out out --quiet"));
    assert!(words.starts_with("--eval late.txt: ") && words.contains(beyond), "{words}");
    let words = folder.refused(&format!(
        "prune late {} --out out --quiet",
        ARGS.replace("calib.txt", "late.txt")
    ));
    assert!(words.starts_with("--calib late.txt: ") && words.contains(beyond), "{words}");
}
