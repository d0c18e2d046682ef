//! The options of a run are those of the library's list, in the command's help
//! and in docs/pruning.md; and what a run prints while it works.

mod common;

use common::Folder;
use openwork_llm::pipeline::{OPTIONS, OptionKind, RunOption};
use serde_json::Value;
use std::path::Path;

const START: &str = "<!-- options:";
const END: &str = "<!-- end of options -->";

fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
    path.canonicalize().unwrap().display().to_string()
}

fn folder() -> Folder {
    let words = ["assert", "value", "return", "name", "in", "the", "class", "a", "object", "is"];
    let text: Vec<&str> = (0..6000).map(|i: usize| words[(i * i + i / 7) % words.len()]).collect();
    let folder = Folder::new();
    folder.bytes("calib.txt", text.join(" ").as_bytes());
    folder
}

const ARGS: &str = "--calib calib.txt --samples 4 --seq-len 32";

/// The flag with its value, as the help prints it.
fn flag(option: &RunOption) -> String {
    let short = option.short.map_or(String::new(), |short| format!("-{short}, "));
    let value = match (option.kind, option.value) {
        (_, "") => String::new(),
        (OptionKind::Flag, value) => format!(" [{value}]"),
        (_, value) => format!(" {value}"),
    };
    format!("{short}--{}{value}", option.flag())
}

fn table() -> String {
    let mut text = String::from("\n| option | default | what it does |\n|---|---|---|\n");
    let mut group = "";
    for option in OPTIONS {
        if option.group != group {
            group = option.group;
            text += &format!("| **{group}** | | |\n");
        }
        let default = match option.required {
            true => "required",
            false => option.default.unwrap_or_default(),
        };
        let cell = |text: &str| text.replace('|', "\\|");
        text += &format!("| `{}` | {default} | {} |\n", cell(&flag(option)), cell(option.help));
    }
    text + "\n"
}

#[test]
fn the_page_lists_every_option() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pruning.md");
    let page = std::fs::read_to_string(path).unwrap();
    let start = page.find(START).expect("the start mark");
    let start = start + page[start..].find('\n').expect("a line after it") + 1;
    let end = page.find(END).expect("the end mark");
    let right = format!("{}{}{}", &page[..start], table(), &page[end..]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, right).unwrap();
    } else {
        assert!(
            page == right,
            "docs/pruning.md is out of date: UPDATE_DOCS=1 cargo test -p openwork-cli --test prune_options"
        );
    }
}

#[test]
fn the_help_lists_every_option_under_its_heading() {
    let said = Folder::new().run("prune --help");
    assert_eq!(said.code, 0, "{}", said.err);
    let help = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for option in OPTIONS {
        let value = match (option.kind, option.value) {
            (_, "") => String::new(),
            (OptionKind::Flag, value) => format!(" [<{value}>]"),
            (_, value) => format!(" <{value}>"),
        };
        let flag = format!("--{}{value}", option.flag());
        assert!(help.contains(&flag), "{flag} in {}", said.out);
        assert!(help.contains(&option.description()), "{} in {}", option.description(), said.out);
        assert!(said.out.contains(&format!("\n{}:\n", option.group)), "{}", option.group);
        for alias in option.aliases {
            assert!(!help.contains(&format!("--{alias} <")), "--{alias} is hidden");
        }
    }
}

#[test]
fn errors_name_the_flag_that_was_given() {
    let folder = folder();
    let llama = model("models/llama");
    let refused = |rest: &str| folder.refused(&format!("prune {llama} --spec 2:4 {ARGS} {rest}"));
    let words = refused("-o out --eval calib.txt --eval-tokens 5 --eval-seq-len 32");
    assert_eq!(
        words,
        "--eval-tokens 5: that is fewer than one window of 32 tokens; use more tokens, or give a smaller --eval-seq-len"
    );
    let words = refused("-o out --eval-every 2");
    assert_eq!(words, "--eval-every 2: it needs --eval, the text to measure on");
    let words = refused("-o out --resume --force");
    assert_eq!(words, "--resume and --force cannot be combined; give one of them");
    let words = refused("-o out --max-memory 4X");
    assert_eq!(words, "--max-memory 4X: give a size such as 4G or 800M");
    assert!(!folder.path("out").exists());
    // The old name of --single-tokens still works.
    let said = folder
        .run(&format!("prune {llama} --spec 2:4 {ARGS} --starts 3 --out out --dry-run --quiet"));
    assert!(said.out.contains("3 single tokens"), "{}\n{}", said.out, said.err);
}

#[test]
fn layers_count_from_zero_and_evaluations_follow_their_layer() {
    let folder = folder();
    let said = folder.run(&format!(
        "prune {} --spec 2:4 --method wanda {ARGS} --exclude layers.1 --eval calib.txt \
         --eval-tokens 200 --eval-seq-len 32 --eval-every 1 --out out",
        model("models/gemma3")
    ));
    assert_eq!(said.code, 0, "{}", said.err);
    let lines: Vec<&str> =
        said.err
            .lines()
            .filter(|line| line.starts_with("layer") || line.starts_with("perplexity"))
            .map(|line| {
                if line.starts_with("layer") { &line[..9] } else { line.split(':').next().unwrap() }
            })
            .collect();
    let expected = [
        "perplexity dense",
        "layer   0",
        "perplexity after layer 0",
        "layer   1",
        "perplexity after layer 1",
        "layer   2",
        "perplexity after layer 2",
        "layer   3",
        "perplexity after layer 3",
    ];
    assert_eq!(lines, expected, "{}", said.err);
    assert!(!said.err.contains("-0.0"), "{}", said.err);
    assert!(said.err.contains("layer   1  dense  "), "{}", said.err);
    let record: Value =
        serde_json::from_slice(&std::fs::read(folder.path("out/openwork/record.json")).unwrap())
            .unwrap();
    let after: Vec<&Value> =
        record["evaluations"].as_array().unwrap().iter().map(|e| &e["after_layer"]).collect();
    assert_eq!(after, [&Value::Null, &0.into(), &1.into(), &2.into(), &3.into()]);
}

#[test]
fn events_have_the_same_keys_for_every_layer() {
    let folder = folder();
    let said = folder.run(&format!(
        "prune {} --spec 2:4 --method wanda {ARGS} --eval calib.txt --eval-tokens 200 \
         --eval-seq-len 32 --out out --events",
        model("models/llama")
    ));
    let events: Vec<Value> =
        said.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let pruned = ["pruned"; 7];
    let layer = [&pruned[..], &["layer"]].concat();
    let all = [&["evaluated", "start"][..], &layer, &layer, &["evaluated"]].concat();
    assert_eq!(kinds, all);
    assert_eq!((&events[1]["first"], &events[1]["layers"]), (&0.into(), &2.into()));
    assert_eq!((&events[9]["layer"], &events[17]["layer"]), (&0.into(), &1.into()));
    assert!(events[9]["decoder_error"].is_f64() && events[9]["linears"].is_array());
    assert!(events[0]["token_perplexity"].is_f64() && events[0]["after_layer"].is_null());
}

#[test]
fn a_dry_run_groups_layers_that_are_treated_alike() {
    let folder = folder();
    let said = folder.run(&format!(
        "prune {} --spec 2:4 --exclude layers.2.*q_proj {ARGS} --out out --dry-run --quiet",
        model("models/gemma3")
    ));
    let rows: Vec<Vec<&str>> =
        said.out.lines().take(9).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..2], ["self_attn.q_proj", "0-1,"], "{}", said.out);
    assert_eq!(rows[2][..2], ["self_attn.k_proj", "0-3"], "{}", said.out);
    assert!(
        said.out.contains("dense") && said.out.contains("27 of 28 linear layers"),
        "{}",
        said.out
    );
    assert!(!folder.path("out").exists());
}

#[test]
fn summaries_print_the_spec_as_it_was_written() {
    let folder = folder();
    let args = format!("{ARGS} --method wanda --quiet");
    let llama = model("models/llama");
    for (rest, out) in [("", "masked"), ("--remove", "smaller")] {
        let said = folder.run_list(
            &[
                &["prune", &llama, "--spec", "mlp keep 75%", "--out", out][..],
                &format!("{args} {rest}").split_whitespace().collect::<Vec<_>>(),
            ]
            .concat(),
        );
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(said.out.contains("mlp keep 75%") && !said.out.contains("blocks"), "{}", said.out);
    }
    let record: Value = serde_json::from_slice(
        &std::fs::read(folder.path("smaller/openwork/record.json")).unwrap(),
    )
    .unwrap();
    let (before, after) = (&record["sizes"]["before"], &record["sizes"]["after"]);
    assert!(before["parameters"].as_u64() > after["parameters"].as_u64(), "{before} {after}");
}

#[test]
fn a_quantized_file_that_grows_is_noted() {
    let folder = folder();
    let said = folder
        .run(&format!("prune {} --spec 2:4 {ARGS} --out out --dry-run", model("gguf/qwen2.gguf")));
    assert!(said.out.contains("of quantized weights become"), "{}\n{}", said.out, said.err);
    assert!(said.out.contains("openwork pack out"), "{}", said.out);
}
