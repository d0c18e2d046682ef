//! The layout command, run as users run it, over the shared cases.

use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn openwork(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_openwork"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = stdin.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A command that reads no stdin may close it early.
    let _ = writer.join().unwrap();
    output
}

fn batch(stdin: &str) -> Vec<Value> {
    let output = openwork(&["layout", "--batch"], stdin);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_shared_case_gives_its_answer() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/layouts.toml");
    let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let mut lines = String::new();
    let mut expected = Vec::new();
    for (op, cases) in &table {
        for case in cases.as_array().unwrap() {
            let mut inputs = serde_json::to_value(case).unwrap();
            let fields = inputs.as_object_mut().unwrap();
            let answer = (fields.remove("output"), fields.remove("error"));
            lines += &format!("{}\n", json!({ "op": op, "inputs": inputs }));
            expected.push((format!("{op} {inputs}"), answer));
        }
    }
    let answers = batch(&lines);
    assert_eq!(answers.len(), expected.len());
    let mut wrong = Vec::new();
    for (answer, (case, (output, error))) in answers.iter().zip(expected) {
        let right = match &error {
            None => answer.get("output") == output.as_ref(),
            Some(words) => {
                answer["error"].as_str().is_some_and(|e| e.contains(words.as_str().unwrap()))
            }
        };
        if !right {
            wrong.push(format!("{case} gave {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Every operation has cases.
    for op in openwork::layout::ops::OPS {
        assert!(table.contains_key(op.name), "no case for {}", op.name);
    }
}

#[test]
fn a_bad_line_does_not_stop_the_rest() {
    let deep = format!("{}4{}", "(".repeat(10_000), ")".repeat(10_000));
    let long = "9".repeat(1 << 20);
    let lines = [
        "no json".to_owned(),
        r#"{"inputs": {}}"#.into(),
        r#"{"op": "colaesce", "inputs": {"layout": "4:1"}}"#.into(),
        r#"{"op": "size"}"#.into(),
        r#"{"op": "eval", "inputs": {"layout": "4:1"}}"#.into(),
        r#"{"op": "size", "inputs": {"shape": 2, "stride": 1}}"#.into(),
        r#"{"op": "size", "inputs": {"shape": 2.5}}"#.into(),
        json!({"op": "size", "inputs": {"shape": deep}}).to_string(),
        json!({"op": "size", "inputs": {"shape": long}}).to_string(),
        "[".repeat(10_000),
        r#"{"op": "size", "inputs": {"shape": [2, [3, 4]]}}"#.into(),
    ];
    let answers = batch(&lines.join("\n"));
    let errors: Vec<_> = answers.iter().map(|a| a["error"].as_str().unwrap_or("")).collect();
    assert!(errors[0].starts_with("the line is not valid JSON"));
    assert_eq!(errors[1], r#"the line has no string "op""#);
    assert!(
        errors[2].starts_with(r#"unknown layout operation "colaesce"; did you mean coalesce or "#)
    );
    assert_eq!(errors[3], r#"the line has no object "inputs""#);
    assert_eq!(errors[4], r#"input "coord" is missing: eval takes layout, coord"#);
    assert_eq!(errors[5], r#"unknown input "stride": size takes shape"#);
    assert_eq!(errors[6], r#"input "shape": 2.5 is not a 64-bit integer"#);
    assert!(errors[7].contains("more than 64 levels") && errors[8].contains("more than the limit"));
    assert!(errors[9].contains("recursion limit"));
    assert_eq!(answers[10], json!({ "output": 24 }));
}

#[test]
fn the_calculator_prints_results_and_refuses_in_one_line() {
    let out = |args: &[&str]| {
        let output = openwork(&[&["layout"], args].concat(), "");
        let code = output.status.code().unwrap();
        (
            code,
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let composed = ["composition", "(6,2):(8,2)", "(4,3):(3,1)"];
    assert_eq!(out(&composed), (0, "((2,2),3):((24,2),8)\n".into()));
    assert_eq!(out(&["slice_and_offset", "(4,8):(1,4)", "(_,3)"]), (0, "(4):(1) + 12\n".into()));
    assert_eq!(out(&["image", "3:2", "--json"]), (0, "{\"output\":[0,2,4]}\n".into()));
    assert_eq!(
        out(&["eval", "4:1", "-3"]),
        (2, "error: coordinate -3 is negative; coordinates start at 0\n".into())
    );
    let (code, words) = out(&["flaten", "2"]);
    assert_eq!(code, 2);
    assert!(
        words.starts_with("error: unknown layout operation \"flaten\"; did you mean flatten or "),
        "{words}"
    );
    assert_eq!(
        out(&["size"]),
        (2, "error: size takes 1 input (shape), found 0; for example: openwork layout size '(2,(3,4))'\n".into())
    );
    assert_eq!(out(&[]).0, 2);
}

#[test]
fn help_lists_every_operation() {
    let output = openwork(&["layout", "--help"], "");
    let help = String::from_utf8(output.stdout).unwrap();
    for op in openwork::layout::ops::OPS {
        assert!(
            help.contains(&format!("  {} {{{}}}", op.name, op.inputs.join(", "))),
            "{}",
            op.name
        );
    }
}
