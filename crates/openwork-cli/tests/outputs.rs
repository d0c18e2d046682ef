//! What commands write: nothing that is an input or was not theirs is lost, and
//! faults of the disk end in words.

mod common;

use common::{Folder, f32s, noise};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const CALIB: &str = "--calib calib.txt --samples 4 --seq-len 32 --quiet";

/// A folder with a text and a model `m` of its own.
fn folder() -> Folder {
    let folder = Folder::new();
    let text = "the quick brown fox jumps over the lazy dog and runs away. ".repeat(200);
    folder.bytes("calib.txt", text.as_bytes());
    copy(Path::new("../../testdata/models/llama"), &folder.path("m"));
    folder
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Every file below a folder with its bytes; links by their names alone.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match (path.is_symlink(), path.is_dir()) {
            (true, _) => drop(found.insert(path, Vec::new())),
            (_, true) => found.extend(contents(&path)),
            _ => drop(found.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

/// Runs a command that must be refused with every file as it was; its message.
fn refused(folder: &Folder, args: &str) -> String {
    let before = contents(&folder.path(""));
    let message = folder.refused(args);
    assert!(contents(&folder.path("")) == before, "{args} changed a file");
    message
}

#[cfg(unix)]
fn link(folder: &Folder, to: &str, name: &str) {
    std::os::unix::fs::symlink(folder.path(to), folder.path(name)).unwrap();
}

#[cfg(unix)]
#[test]
fn no_command_writes_into_its_own_model() {
    let folder = folder();
    link(&folder, "m", "link");
    let prune = format!("prune m --spec 1:4 {CALIB}");
    for out in ["m", "./m", "m/../m", "link", "link/", "m/openwork/x"] {
        for start in ["", "--force", "--resume"] {
            let message = refused(&folder, &format!("{prune} --out {out} {start}"));
            assert!(message.contains("the input m"), "{out} {start}: {message}");
        }
    }
    let message = refused(&folder, &format!("{prune} --out . --force"));
    assert!(message.contains("overlaps the input m"), "{message}");
    for out in ["m", "link", "m/."] {
        for command in ["shrink", "pack --spec 2:4", "unpack"] {
            let message = refused(&folder, &format!("{command} m --out {out}"));
            assert!(message.contains("the input m"), "{command} {out}: {message}");
        }
    }
    // A file of the model is an input too.
    let message = refused(&folder, "pack m --spec 2:4 --format gguf-f16 --out m/model.safetensors");
    assert!(message.contains("would overwrite the input m"), "{message}");
}

#[test]
fn force_replaces_only_what_a_run_wrote() {
    let folder = folder();
    let prune = format!("prune m --spec 2:4 --method magnitude {CALIB}");
    // No run was made here.
    std::fs::create_dir(folder.path("mine")).unwrap();
    for name in ["README.md", "config.json", "model-00001-of-00003.safetensors"] {
        folder.bytes(&format!("mine/{name}"), b"mine");
    }
    let message = refused(&folder, &format!("{prune} --out mine --force"));
    assert!(message.contains("--force replaces only what a run wrote"), "{message}");
    // An empty folder, and a new one, are fine.
    std::fs::create_dir(folder.path("empty")).unwrap();
    assert_eq!(folder.run(&format!("{prune} --out empty --force")).code, 0);
    // What others put beside a run stays.
    for name in ["empty/notes.txt", "empty/model-99999-of-99999.safetensors", "empty/openwork/a"] {
        folder.bytes(name, b"mine");
    }
    assert_eq!(folder.run(&format!("{prune} --out empty --force")).code, 0);
    for name in ["empty/notes.txt", "empty/model-99999-of-99999.safetensors", "empty/openwork/a"] {
        assert_eq!(std::fs::read(folder.path(name)).unwrap(), b"mine", "{name}");
    }
    // A file that the next run would write, but the earlier one did not.
    folder.bytes("m/merges.txt", b"theirs");
    folder.bytes("empty/merges.txt", b"mine");
    let message = refused(&folder, &format!("{prune} --out empty --force"));
    assert!(message.contains("merges.txt was not written by the earlier run"), "{message}");
    // An input in the folder that would be cleared.
    let recipe = format!("prune m --recipe empty/openwork/recipe.toml {CALIB} --out empty --force");
    let message = refused(&folder, &recipe);
    assert!(message.contains("overlaps the input empty/openwork/recipe.toml"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_run_follows_no_link_out_of_its_folder() {
    let folder = folder();
    let prune = format!("prune m --spec 2:4 --method magnitude {CALIB}");
    assert_eq!(folder.run(&format!("{prune} --out run")).code, 0);
    // The run's own folder elsewhere, under a link.
    std::fs::rename(folder.path("run/openwork"), folder.path("theirs")).unwrap();
    link(&folder, "theirs", "run/openwork");
    for start in ["--force", "--resume"] {
        let message = refused(&folder, &format!("{prune} --out run {start}"));
        assert!(message.contains("openwork is a symbolic link"), "{message}");
    }
    // A link under the name of an unfinished file is replaced, not written through.
    std::fs::remove_file(folder.path("run/openwork")).unwrap();
    std::fs::rename(folder.path("theirs"), folder.path("run/openwork")).unwrap();
    folder.bytes("precious", b"mine");
    link(&folder, "precious", "run/openwork/plan.json.unfinished");
    link(&folder, "precious", "run/config.json.unfinished");
    assert_eq!(folder.run(&format!("{prune} --out run --force")).code, 0);
    assert_eq!(std::fs::read(folder.path("precious")).unwrap(), b"mine");
}

#[test]
fn a_finished_run_is_not_written_again() {
    let folder = folder();
    let prune = format!("prune m --spec 2:4 --method magnitude {CALIB} --out run");
    assert_eq!(folder.run(&prune).code, 0);
    let before = contents(&folder.path("run"));
    let record = std::fs::read(folder.path("run/openwork/record.json")).unwrap();
    let said = folder.run(&format!("{prune} --resume --json"));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(contents(&folder.path("run")) == before);
    let read = |bytes: &[u8]| -> serde_json::Value { serde_json::from_slice(bytes).unwrap() };
    assert_eq!(read(said.out.as_bytes()), read(&record));
    let said = folder.run(&format!("{} --resume", prune.replace("--quiet", "")));
    assert_eq!(said.err, "note: the run is finished already; nothing was written\n");
    // A perplexity that was not asked for before is added, all else stays.
    let said = folder.run(&format!("{prune} --resume --eval calib.txt --eval-tokens 200 --json"));
    assert_eq!(said.code, 0, "{}", said.err);
    let (mut old, new) = (read(&record), read(said.out.as_bytes()));
    assert_eq!(new["evaluations"].as_array().unwrap().len(), 2, "{new}");
    old["evaluations"] = new["evaluations"].clone();
    assert_eq!(new, old);
}

#[test]
fn a_resume_that_differs_names_the_option() {
    let folder = folder();
    let base = "prune m --out run --quiet --resume --calib calib.txt";
    let first = "--spec 2:4 --method magnitude --samples 4 --seq-len 32";
    assert_eq!(folder.run(&format!("{base} {first}")).code, 0);
    for (change, words) in [
        ("--samples 5 --spec 2:4 --method magnitude --seq-len 32", "--samples was 4, is 5"),
        ("--seq-len 16 --spec 2:4 --method magnitude --samples 4", "--seq-len was 32, is 16"),
        ("--spec 1:4 --method magnitude --samples 4 --seq-len 32", "--spec was 2:4, is 1:4"),
        ("--spec 2:4 --method wanda --samples 4 --seq-len 32", "--method was magnitude, is wanda"),
    ] {
        let message = refused(&folder, &format!("{base} {change}"));
        assert!(message.contains(words), "{change}: {message}");
        assert!(message.contains("or --force to start again"), "{message}");
    }
    for (more, words) in [
        ("--seed 3", "--seed was 0, is 3"),
        ("--dtype f16", "--dtype was f32, is f16"),
        ("--exclude q_proj", "--exclude was not given, is q_proj"),
        ("--single-tokens 9", "--single-tokens was 8, is 9"),
    ] {
        let message = refused(&folder, &format!("{base} {first} {more}"));
        assert!(message.contains(words), "{more}: {message}");
        assert!(!message.contains("sha"), "{message}");
    }
    let text = std::fs::read_to_string(folder.path("calib.txt")).unwrap().replace("fox", "cat");
    folder.bytes("calib.txt", text.as_bytes());
    let message = refused(&folder, &format!("{base} {first}"));
    assert!(message.contains("the text of --calib calib.txt changed"), "{message}");
}

#[test]
fn advice_on_a_damaged_plan_is_true() {
    let folder = folder();
    let prune = format!("prune m --spec 2:4 --method magnitude {CALIB}");
    assert_eq!(folder.run(&format!("{prune} --out run")).code, 0);
    folder.bytes("run/openwork/plan.json", b"nonsense");
    for start in ["--resume", "--force"] {
        let message = refused(&folder, &format!("{prune} --out run {start}"));
        assert!(message.contains("plan.json: is damaged"), "{message}");
        assert!(message.contains("choose another --out, or remove this folder"), "{message}");
    }
    assert_eq!(folder.run(&format!("{prune} --out other --resume")).code, 0);
    std::fs::remove_dir_all(folder.path("run")).unwrap();
    assert_eq!(folder.run(&format!("{prune} --out run --resume")).code, 0);
}

#[test]
fn an_unfinished_run_is_called_so() {
    let folder = folder();
    let prune = format!("prune m --spec 2:4 --method magnitude {CALIB} --out run");
    assert_eq!(folder.run(&prune).code, 0);
    // As if it was stopped after the first layer.
    for name in [
        "model.safetensors.index.json",
        "config.json",
        "openwork/record.json",
        "openwork/layers/00001.json",
    ] {
        std::fs::remove_file(folder.path("run").join(name)).unwrap();
    }
    for command in [
        "inspect run",
        "report run --out page.html",
        "eval run --text calib.txt",
        "generate run --prompt the",
        "pack run --out packed",
    ] {
        let message = refused(&folder, command);
        assert!(message.contains("run: an unfinished run (1 layer done)"), "{command}: {message}");
        assert!(message.contains("with --resume"), "{message}");
    }
    assert_eq!(folder.run(&format!("{prune} --resume")).code, 0);
    assert_eq!(folder.run("inspect run").code, 0);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_tells_how_to_resume() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let folder = folder();
    let mut child = Command::new(env!("CARGO_BIN_EXE_openwork"))
        .args(["prune", "m", "--spec", "block (1,4) scope (1,_) keep 50%", "--method", "admm"])
        .args(["--calib", "calib.txt", "--samples", "64", "--seq-len", "64", "--out", "my run"])
        .current_dir(folder.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !folder.path("my run/openwork/plan.json").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // Safe to ask for by name: it is our child, which has not been waited for.
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{said}");
    let command = said.lines().last().unwrap().trim();
    assert!(said.contains("To resume:"), "{said}");
    assert!(command.ends_with("--out 'my run' --resume"), "{said}");
    let status = Command::new("sh").arg("-c").arg(command).current_dir(folder.path("")).output();
    let status = status.unwrap();
    assert!(status.status.success(), "{command}: {}", String::from_utf8_lossy(&status.stderr));
    assert_eq!(folder.run("inspect my\u{20}run").code, 2);
    assert_eq!(folder.run_list(&["inspect", "my run"]).code, 0);
}

#[test]
fn what_cannot_be_meant_is_refused_before_the_run() {
    let folder = folder();
    let prune = |rest: &str| refused(&folder, &format!("prune m {CALIB} --out run {rest}"));
    folder.bytes("budget.toml", b"spec = '2:4'\n[budget]\ndensity = 0.5\n");
    for dry in ["--dry-run", ""] {
        let message = prune(&format!("--recipe budget.toml {dry}"));
        assert!(message.contains("[budget] needs a pattern whose density can vary"), "{message}");
    }
    let message = prune("--sparsity_type 2:4 --sparsity_ratio 0.7");
    assert!(message.contains("the pattern 2:4 removes 0.5 of the weights"), "{message}");
    let message = prune("--spec 2:4 --single-tokens 1000000000000");
    assert!(message.contains("--single-tokens 1000000000000: the text has only"), "{message}");
    let message = prune("--spec 2:4 --max-memory 99999999999999999999G");
    assert!(
        message.contains("--max-memory 99999999999999999999G: give a size such as 4G or 800M"),
        "{message}"
    );
    let said = folder.run(&format!(
        "prune m {CALIB} --out run --sparsity_type 2:4 --sparsity_ratio 0.5 --dry-run"
    ));
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn a_long_text_is_announced_before_it_is_tokenized() {
    let folder = folder();
    let line = "a sentence of the kind that a tokenizer meets every day\n";
    folder.bytes("long.txt", line.repeat((1 << 20) / line.len() + 1).as_bytes());
    let prune = "prune m --spec 2:4 --calib long.txt --samples 2 --seq-len 16 --out run --dry-run";
    for (command, says) in [
        (prune.to_string(), true),
        (format!("{prune} --quiet"), false),
        (format!("{prune} --events"), false),
        ("eval m --text long.txt --seq-len 32 --max-tokens 64".to_string(), true),
    ] {
        let said = folder.run(&command);
        assert_eq!(said.code, 0, "{command}: {}", said.err);
        assert_eq!(said.err.contains("tokenizing 1.0 MB of text"), says, "{command}: {}", said.err);
    }
}

#[test]
fn tensors_of_one_file_are_not_lost() {
    let folder = Folder::new();
    let tensors = [f32s("a", &[4, 8], &noise(32, 1)), f32s("b", &[4, 8], &noise(32, 2))];
    folder.file("two.safetensors", &tensors);
    for force in ["", "--force"] {
        let message = refused(
            &folder,
            &format!(
                "tensor two.safetensors:a --spec 2:4 --method magnitude --out two.safetensors {force}"
            ),
        );
        assert!(message.contains("would overwrite the input two.safetensors"), "{message}");
        let message =
            refused(&folder, &format!("hessian two.safetensors:a --out ./two.safetensors {force}"));
        assert!(message.contains("would overwrite the input two.safetensors"), "{message}");
    }
}

/// One rule for all commands: an existing file needs `--force`, what was written
/// is said on stderr, and a missing folder is found before the work.
#[test]
fn an_existing_file_needs_force_and_what_is_written_is_said() {
    let folder = folder();
    folder.file("w.safetensors", &[f32s("w", &[4, 8], &noise(32, 1))]);
    copy(Path::new("../../testdata/models/llama-tied"), &folder.path("tied"));
    let run = format!("prune m --spec 2:4 --method magnitude {CALIB} --out run");
    assert_eq!(folder.run(&run).code, 0);
    for (command, out) in [
        ("tensor w.safetensors --spec 2:4 --method magnitude", "--out"),
        ("hessian w.safetensors", "--out"),
        ("show 2:4 --shape 8,16", "--svg"),
        ("report run", "--out"),
        ("pack tied --spec unstructured(100%) --format gguf-f16", "--out"),
        ("demo", "--out"),
    ] {
        let missing = refused(&folder, &format!("{command} {out} missing/file"));
        assert!(missing.contains("the folder missing does not exist"), "{command}: {missing}");
        folder.bytes("mine", b"mine");
        let message = refused(&folder, &format!("{command} {out} mine"));
        assert!(message.contains("mine: the file exists; give --force"), "{command}: {message}");
        if command == "demo" {
            continue; // ten runs; the others show the rule
        }
        let said = folder.run(&format!("{command} {out} mine --force"));
        assert_eq!(said.code, 0, "{command}: {}", said.err);
        assert!(said.err.contains("wrote mine ("), "{command}: {}", said.err);
        assert!(!said.out.contains("wrote mine"), "{command}: {}", said.out);
        assert_ne!(std::fs::read(folder.path("mine")).unwrap(), b"mine", "{command}");
        let quiet = folder.run(&format!("{command} {out} mine --force --quiet"));
        assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{command}");
        if Path::new("/dev/full").exists() {
            let full = folder.run(&format!("{command} {out} /dev/full"));
            assert_eq!(full.code, 1, "{command}: {}", full.err);
            assert!(full.err.contains("error: cannot write /dev/full"), "{command}: {}", full.err);
        }
    }
}

#[test]
fn a_report_does_not_replace_its_record() {
    let folder = folder();
    let run = format!("prune m --spec 2:4 --method magnitude {CALIB} --out run");
    assert_eq!(folder.run(&run).code, 0);
    for input in ["run", "run/openwork/record.json"] {
        let message =
            refused(&folder, &format!("report {input} --out run/openwork/record.json --force"));
        assert!(message.contains("would overwrite the input"), "{message}");
    }
    assert_eq!(folder.run("report run --out run/page.html").code, 0);
    assert_eq!(folder.run("report run --out run/page.html --force").code, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_runs_out_ends_in_words() {
    use std::process::Command;
    let folder = Folder::new();
    // H of 16384 columns takes 2 GB.
    folder.file("x.safetensors", &[f32s("x", &[1, 16384], &noise(16384, 1))]);
    let command = format!(
        "ulimit -v 1000000 && exec {} hessian x.safetensors --out h.safetensors --threads 1",
        env!("CARGO_BIN_EXE_openwork")
    );
    let said = Command::new("sh").arg("-c").arg(command).current_dir(folder.path("")).output();
    let said = said.unwrap();
    let words = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{words}");
    assert!(words.contains("error: out of memory: ") && words.contains("ulimit -v"), "{words}");
    assert!(!folder.path("h.safetensors").exists());
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_to_is_a_failure_of_the_run() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    std::fs::create_dir(folder.path("locked")).unwrap();
    let lock = |mode| {
        let path = folder.path("locked");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    lock(0o555);
    if std::fs::write(folder.path("locked/probe"), b"").is_ok() {
        std::fs::remove_file(folder.path("locked/probe")).unwrap();
        eprintln!("SKIPPED: this user may write to any folder (root); permissions not tested");
        return;
    }
    let prune = format!("prune m --spec 2:4 --method magnitude {CALIB}");
    for command in [
        format!("{prune} --out locked/run"),
        "show 2:4 --shape 8,16 --svg locked/x.svg".to_string(),
        "demo --out locked/x.html".to_string(),
        "pack m --spec unstructured(100%) --out locked/packed".to_string(),
    ] {
        let said = folder.run(&command);
        assert_eq!(said.code, 1, "{command}: {}", said.err);
        assert!(said.err.contains("ermission denied"), "{command}: {}", said.err);
    }
    lock(0o755);
}
