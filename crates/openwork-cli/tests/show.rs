//! `openwork show` and `openwork presets`, run as a user would.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn openwork(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_openwork")).args(args).output().unwrap()
}

fn text(args: &[&str]) -> String {
    let output = openwork(args);
    let errors = String::from_utf8_lossy(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn show(spec: &str, shapes: &[&str]) -> Value {
    let mut args = vec!["show", spec, "--json", "--elements"];
    for shape in shapes {
        args.extend(["--shape", shape]);
    }
    serde_json::from_str(&text(&args)).unwrap()
}

/// The words of a refusal: exit code 2, nothing on stdout.
fn refusal(args: &[&str]) -> String {
    let output = openwork(args);
    let errors = String::from_utf8_lossy(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(errors.starts_with("error: "), "{errors}");
    errors
}

#[test]
fn a_ratio_in_json() {
    let shown = show("2:4", &["16,32"]);
    assert_eq!(shown["spec"], "2:4");
    assert_eq!(shown["expanded"], "scope (1,4) keep 2");
    assert_eq!(shown["coupling"], Value::Null);
    let tensor = &shown["tensors"][0];
    assert_eq!(tensor["name"], "tensor");
    assert_eq!(tensor["shape"], json!([16, 32]));
    assert_eq!(tensor["view"], "(16,32):(32,1)");
    assert_eq!((&tensor["block"], &tensor["block_grid"]), (&json!([1, 1]), &json!([16, 32])));
    assert_eq!((&shown["scope"], &shown["scope_grid"]), (&json!([1, 4]), &json!([16, 8])));
    for (key, value) in [
        ("num_blocks", 512),
        ("block_size", 1),
        ("num_scopes", 128),
        ("blocks_per_scope", 4),
        ("scope_size", 4),
        ("keep", 2),
        ("domain_size", 512),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    for key in ["density", "sparsity", "tensor_density"] {
        assert_eq!(shown[key], 0.5, "{key}");
    }
    assert_eq!(shown["facts"]["densities"], json!([0.0, 0.25, 0.5, 0.75, 1.0]));
    assert_eq!(shown["facts"]["storage"][0]["ratio"], 9.0 / 16.0);
}

#[test]
fn coupled_columns_pair_columns_eight_apart() {
    let shown = show("2:4@8", &["2,32"]);
    assert_eq!(shown["tensors"][0]["view"], "(2,2,8,2):(32,16,1,8)");
    assert_eq!(shown["tensors"][0]["block_grid"], json!([2, 2, 8, 1]));
    assert_eq!(shown["scope_grid"], json!([2, 2, 2, 1]));
    assert_eq!(shown["elements"].as_array().unwrap().len(), 32);
    // Row-major over the grid: groups of 16 columns, then pairs.
    assert_eq!(shown["elements"][0], json!([0, 8]));
    assert_eq!(shown["elements"][7], json!([7, 15]));
    assert_eq!(shown["elements"][8], json!([16, 24]));
    assert_eq!(shown["elements"][16], json!([32, 40]));
    assert_eq!(shown["scopes"][0], json!([0, 1, 2, 3]));
    assert_eq!(shown["scopes"][1], json!([4, 5, 6, 7]));
    assert_eq!(shown["scopes"].as_array().unwrap().len(), 8);
}

#[test]
fn runs_of_sixteen_columns_compete_with_the_row_eight_below() {
    let shown = show("rows16", &["32,32"]);
    assert_eq!(shown["tensors"][0]["view"], "(2,8,2,32):(512,32,256,1)");
    assert_eq!(shown["tensors"][0]["block_grid"], json!([2, 8, 2, 2]));
    assert_eq!(shown["num_scopes"], 32);
    let run = |start: usize| json!((start..start + 16).collect::<Vec<_>>());
    // Grid (2,8,2,2): tile, row, upper or lower, run of columns.
    assert_eq!(shown["elements"][0], run(0));
    assert_eq!(shown["elements"][1], run(16));
    assert_eq!(shown["elements"][2], run(8 * 32));
    assert_eq!(shown["elements"][4], run(32));
    assert_eq!(shown["elements"][32], run(16 * 32));
    assert_eq!(shown["scopes"][0], json!([0, 2]));
    assert_eq!(shown["scopes"][1], json!([1, 3]));
    assert_eq!(shown["scopes"][2], json!([4, 6]));
}

#[test]
fn coupled_blocks_list_their_tensors() {
    let spec = "blocks up: block (1,_) & down perm (1,0): block (_,1) scope (2,1) keep 1";
    let shown = show(spec, &["down=3,4", "up=4,2"]);
    assert_eq!(shown["coupling"], "blocks");
    assert_eq!(shown["tensors"][0]["name"], "up");
    assert_eq!(shown["tensors"][1]["block_grid"], json!([1, 4]));
    assert_eq!((&shown["num_blocks"], &shown["block_size"]), (&json!(4), &json!(5)));
    assert_eq!((&shown["scope"], &shown["scope_grid"]), (&json!([2, 1]), &json!([2, 1])));
    assert_eq!(
        shown["elements"],
        json!([
            [[0, 1], [0, 4, 8]],
            [[2, 3], [1, 5, 9]],
            [[4, 5], [2, 6, 10]],
            [[6, 7], [3, 7, 11]]
        ])
    );
    assert_eq!(shown["scopes"], json!([[0, 1], [2, 3]]));
}

#[test]
fn coupled_scopes_list_tensor_and_block() {
    let spec = "scopes a: block (1,2) scope (1,_) & b perm (1,0): scope (_,1) keep 50%";
    let shown = show(spec, &["a=2,4", "b=3,2"]);
    assert_eq!(shown["coupling"], "scopes");
    assert_eq!(shown["scope"], json!([[1, 2], [3, 1]]));
    assert_eq!(shown["tensors"][1]["scope"], json!([3, 1]));
    assert_eq!(shown["scope_grid"], json!([2, 1]));
    assert_eq!((&shown["num_blocks"], &shown["block_size"]), (&json!(10), &json!([2, 1])));
    assert_eq!((&shown["blocks_per_scope"], &shown["keep"]), (&json!(5), &json!(3)));
    assert_eq!(
        shown["elements"],
        json!([[[0, 1], [2, 3], [4, 5], [6, 7]], [[0], [1], [2], [3], [4], [5]]])
    );
    assert_eq!(
        shown["scopes"],
        json!([[[0, 0], [0, 1], [1, 0], [1, 2], [1, 4]], [[0, 2], [0, 3], [1, 1], [1, 3], [1, 5]]])
    );
}

#[test]
fn a_domain_and_padding_are_counted() {
    let shown = show("2:4 in (M/4,0)+(M*3/4,K)", &["w=8,8"]);
    assert_eq!(shown["tensors"][0]["name"], "w");
    assert_eq!((&shown["domain_size"], &shown["tensor_density"]), (&json!(48), &json!(0.625)));
    let shown = show("2:4 pad (1,4)", &["1,6"]);
    assert_eq!(shown["tensors"][0]["padding"], 2);
    assert_eq!(shown["elements"], json!([[0], [1], [2], [3], [4], [5], [], []]));
}

#[test]
fn text_is_as_it_was_approved() {
    for (name, args) in [
        ("ratio", &["show", "2:4", "--shape", "8,16"][..]),
        ("coupled-columns", &["show", "2:4@8", "--shape", "4x32"]),
        ("rows16", &["show", "rows16", "--shape", "(16,32)"]),
        ("large", &["show", "channel(30%)", "--shape", "4096,4096"]),
        ("convolution", &["show", "filter", "--shape", "8,4,3,3"]),
        ("padded", &["show", "2:4 pad (1,4)", "--shape", "4,10"]),
        (
            "outside",
            &["show", "in ~((0,0)+(4,8) | (4,8)+(4,8)) scope (4) keep 2", "--shape", "8,16"],
        ),
        (
            "neurons",
            &[
                "show",
                "blocks up: block (1,_) & down perm (1,0): block (_,1) scope (4,1) keep 50%",
                "--shape",
                "up=16,8",
                "--shape",
                "down=8,16",
            ],
        ),
        ("presets", &["presets"]),
    ] {
        let found = text(args);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/show/{name}.txt"));
        if std::env::var_os("OPENWORK_APPROVE").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
        assert!(
            found == wanted,
            "{name}.txt differs; look at it, then run with OPENWORK_APPROVE=1:\n{found}"
        );
        assert!(!found.contains('\x1b'), "no colors where nobody looks");
    }
}

#[test]
fn every_preset_has_text() {
    let shown: Value = serde_json::from_str(&text(&["presets", "--json"])).unwrap();
    let rows = shown["presets"].as_array().unwrap();
    assert!(rows.len() >= 10);
    for row in rows {
        assert!(row["text"].as_str().unwrap().contains("keep "), "{row}");
    }
}

#[test]
fn a_bare_number_is_no_share() {
    let said = refusal(&["show", "unstructured(50)", "--shape", "64,64"]);
    assert!(said.contains("write `50%` for a share, or `keep 50` for a count of blocks"), "{said}");
    assert_eq!(show("unstructured(50%)", &["64,64"])["density"], 0.5);
}

#[test]
fn bad_input_is_refused_with_reasons() {
    let words =
        refusal(&["show", "view (4,10):(10,1) block (1,4) scope (1,1) keep 1", "--shape", "4,10"]);
    assert_eq!(
        words,
        "error: block (1,4) does not divide the view\n\
         \x20 view (4,10):(10,1) block (1,4) scope (1,1) keep 1\n\
         \x20                             ^ axis 1 has 10 entries, not a multiple of 4; pad it or narrow the domain\n"
    );
    for (args, part) in [
        (&["show", "2:4", "--shape", "16,x"][..], "a dimension is missing"),
        (&["show", "2:4", "--shape", "16,-4"], "`-4` is not a number"),
        (&["show", "", "--shape", "4,4"], "expected a pattern"),
        (&["show", "2:4", "--shape", "0,4"], "has no elements"),
        (&["show", "2:4", "--shape", "4,4", "--elements"], "--elements needs --json"),
        (&["show", "2:4", "--shape", "4096,4096", "--json", "--elements"], "at most 4194304"),
        (&["show", "2:4", "--shape", "4,4", "--shape", "4,4"], "is for one tensor"),
        (&["show", "blocks a: & b: keep 1", "--shape", "4,4"], "as in `a=4,4`"),
        (&["show", "blocks a: & b: keep 1", "--shape", "a=4,4"], "`b` was not given"),
        (
            &["show", "2:4", "--shape", "4,4", "--svg", "no/such/folder/x.svg"],
            "the folder no/such/folder does not exist",
        ),
        (&["show", "2:4"], "--shape"),
    ] {
        let words = refusal(args);
        assert!(words.contains(part), "{args:?}: {words}");
    }
}

#[test]
fn a_picture_is_written_whole() {
    let folder = std::env::temp_dir().join(format!("openwork-show-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("pattern.svg");
    let name = path.to_str().unwrap();
    text(&["show", "2:4", "--shape", "8,16", "--svg", name, "--seed", "3"]);
    let first = std::fs::read_to_string(&path).unwrap();
    assert!(first.starts_with("<svg") && first.ends_with("</svg>\n"));
    text(&["show", "2:4", "--shape", "8,16", "--svg", name, "--seed", "4", "--force"]);
    assert_ne!(std::fs::read_to_string(&path).unwrap(), first);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Commands in `sh` blocks that need no file run; errors in `text` blocks after
/// `$ ` are as shown.
#[cfg(unix)]
#[test]
fn the_documents_tell_the_truth() {
    let folder = Path::new(env!("CARGO_BIN_EXE_openwork")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let shell = |command: &str| {
        Command::new("sh").args(["-c", command]).env("PATH", &path).output().unwrap()
    };
    let mut ran = 0;
    for document in ["docs/spec-language.md", "README.md"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
        let text = std::fs::read_to_string(&file).unwrap();
        for (i, block) in text.split("```").enumerate().filter(|(i, _)| i % 2 == 1) {
            if let Some(commands) = block.strip_prefix("sh\n") {
                let whole = commands.replace("\\\n", " ");
                let ours = |command: &&str| {
                    ["openwork show", "openwork layout", "openwork families"]
                        .iter()
                        .any(|start| command.starts_with(start))
                };
                for command in whole.lines().filter(ours) {
                    let output = shell(command);
                    assert!(output.status.success(), "{document} {i}: {command}");
                    ran += 1;
                }
            } else if let Some(sample) = block.strip_prefix("text\n$ ") {
                let (command, shown) = sample.split_once('\n').unwrap();
                let output = shell(command);
                assert_eq!(String::from_utf8_lossy(&output.stderr), shown, "{document}: {command}");
                ran += 1;
            }
        }
    }
    assert!(ran >= 12, "only {ran} samples were found");
}

/// One-line specs in the documents' other blocks are read without complaint.
#[test]
fn the_documents_specs_are_read() {
    for (spec, shape) in [
        ("view m (g j i) -> m g i j, j=2 i=8  block (1,1,1,2) scope (1,1,4,1) keep 2", "8,32"),
        ("view (M,K/16,8,2):(K,16,1,8)  block (1,1,1,2) scope (1,1,4,1) keep 2", "8,32"),
        ("block (1,_) keep K/2", "8,16"),
        ("scope (1,8) keep 12.5%", "8,16"),
        ("in (4,4,4):(68,16,1)  block (1,1,2) scope (1,1,2) keep 1", "16,16"),
        ("in (M,4):(K,1)@8  scope (1,4) keep 2", "16,16"),
        ("in (0,0)+(4,8) | (4,8)+(4,8)  scope (4) keep 2", "8,16"),
        ("block(16,16,25%)", "64,64"),
        ("channel keep 75%", "8,16"),
        ("head(h=16,75%)", "64,64"),
        ("block (64,1) scope (1,8) keep 4", "128,64"),
        ("view (M/16,8,2,K):(16*K,K,8*K,1) block (1,1,1,16) scope (1,1,2,1) keep 1", "32,32"),
    ] {
        text(&["show", spec, "--shape", shape]);
    }
}
