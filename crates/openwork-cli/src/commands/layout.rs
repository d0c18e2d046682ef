//! `openwork layout OP ARG..` and `openwork layout --batch`.

use crate::failure::Failure;
use crate::print;
use openwork::layout::ops::{OPS, Op, Value, find, nearest};
use serde_json::{Value as Json, json};
use std::io::{BufRead, Read};

/// Longest batch line in bytes; a longer line is an error of that line.
const MAX_LINE: usize = 1 << 22;

/// Compute with CuTe layouts such as (4,8):(1,4), written shape:stride
#[derive(Debug, clap::Args)]
#[command(after_help = operations())]
pub struct Layout {
    /// Operation; see the list below
    #[arg(required_unless_present = "batch", conflicts_with = "batch")]
    op: Option<String>,
    /// Inputs of the operation, in order; quote them for the shell
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    inputs: Vec<String>,
    /// Read JSON lines {"op": .., "inputs": {..}} from stdin and answer each with
    /// {"output": ..} or {"error": ..}
    #[arg(long)]
    batch: bool,
}

impl Layout {
    /// Computes and prints.
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let Some(name) = self.op else { return batch(std::io::stdin().lock()) };
        let op = named(&name).map_err(Failure::Input)?;
        if self.inputs.len() != op.inputs.len() {
            return Err(Failure::Input(format!(
                "{} takes {} ({}), found {}; for example: {}",
                op.name,
                counted(op.inputs.len()),
                op.inputs.join(", "),
                self.inputs.len(),
                example(op),
            )));
        }
        let texts: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let value = op.run(&texts).map_err(Failure::input)?;
        if json {
            print::line(json!({ "output": to_json(value) }))
        } else {
            print::line(plain(value))
        }
    }
}

fn counted(inputs: usize) -> String {
    if inputs == 1 { "1 input".into() } else { format!("{inputs} inputs") }
}

/// The operation called `name`, or an error with the nearest names.
fn named(name: &str) -> Result<&'static Op, String> {
    find(name).ok_or_else(|| {
        let shown: String = name.chars().take(40).collect();
        format!(
            "unknown layout operation {shown:?}; did you mean {}? `openwork layout --help` lists all",
            nearest(name).join(" or ")
        )
    })
}

/// Answers every line of `input` with a line; a bad line does not stop the others.
fn batch(mut input: impl BufRead) -> Result<(), Failure> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = MAX_LINE as u64 + 1;
        let unreadable = |error| Failure::running(format!("cannot read stdin: {error}"));
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            return Ok(());
        }
        let answer = if read > MAX_LINE {
            skip_line(&mut input, line.last()).map_err(unreadable)?;
            Err(format!("the line has more than {MAX_LINE} bytes"))
        } else if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        } else {
            answer(&line)
        };
        print::line(match answer {
            Ok(value) => json!({ "output": to_json(value) }),
            Err(error) => json!({ "error": error }),
        })?;
    }
}

/// Skips the rest of a line of which the part ending in `last` was read.
fn skip_line(input: &mut impl BufRead, last: Option<&u8>) -> std::io::Result<()> {
    let mut ended = last == Some(&b'\n');
    while !ended {
        let chunk = input.fill_buf()?;
        let end = chunk.iter().position(|&byte| byte == b'\n');
        ended = end.is_some() || chunk.is_empty();
        let used = end.map_or(chunk.len(), |end| end + 1);
        input.consume(used);
    }
    Ok(())
}

/// Answers one line.
fn answer(line: &[u8]) -> Result<Value, String> {
    let request: Json = serde_json::from_slice(line)
        .map_err(|error| format!("the line is not valid JSON: {error}"))?;
    let name = request["op"].as_str().ok_or(r#"the line has no string "op""#)?;
    let op = named(name)?;
    let inputs = request["inputs"].as_object().ok_or(r#"the line has no object "inputs""#)?;
    let takes = || format!("{} takes {}", op.name, op.inputs.join(", "));
    if let Some(extra) = inputs.keys().find(|key| !op.inputs.contains(&key.as_str())) {
        return Err(format!("unknown input {extra:?}: {}", takes()));
    }
    let mut texts = Vec::new();
    for name in op.inputs {
        let value =
            inputs.get(*name).ok_or_else(|| format!("input {name:?} is missing: {}", takes()))?;
        texts.push(to_text(value).map_err(|error| format!("input {name:?}: {error}"))?);
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    op.run(&texts).map_err(|error| error.to_string())
}

/// An input as text: `[2,[3,4]]` is `(2,(3,4))`, null is `_`.
fn to_text(value: &Json) -> Result<String, String> {
    match value {
        Json::String(text) => Ok(text.clone()),
        Json::Number(number) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        Json::Null => Ok("_".into()),
        Json::Array(modes) => {
            let modes: Result<Vec<_>, _> = modes.iter().map(to_text).collect();
            Ok(format!("({})", modes?.join(",")))
        }
        Json::Number(number) => Err(format!("{number} is not a 64-bit integer")),
        Json::Bool(_) | Json::Object(_) => {
            Err(format!("expected text, a number or a list, found {value}"))
        }
    }
}

fn to_json(value: Value) -> Json {
    match value {
        Value::Int(n) => n.into(),
        Value::Bool(b) => b.into(),
        Value::Text(text) => text.into(),
        Value::List(list) => list.into(),
        Value::Slice(layout, offset) => json!([layout, offset]),
    }
}

fn plain(value: Value) -> String {
    match value {
        Value::Text(text) => text,
        Value::Slice(layout, offset) => format!("{layout} + {offset}"),
        other => to_json(other).to_string(),
    }
}

/// A command line with the example of `op`.
fn example(op: &Op) -> String {
    let quoted: Vec<_> = op.example.iter().map(|text| format!("'{text}'")).collect();
    format!("openwork layout {} {}", op.name, quoted.join(" "))
}

/// The help's list of operations, with inputs and an example each.
fn operations() -> String {
    let mut help = String::from("Operations:\n");
    for op in OPS {
        help += &format!("  {} {{{}}}\n      {}\n", op.name, op.inputs.join(", "), op.summary);
        help += &format!("      {}\n", example(op));
    }
    help + "\nA layout without strides is column-major: (4,8) is (4,8):(1,4). In a coordinate or\n\
        tiler, _ keeps a mode. A tiler <3:4,8> has one layout per mode; an integer n is n:1.\n"
}
