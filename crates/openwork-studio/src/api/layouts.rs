//! The layout algebra: an operation with its inputs and its result as grids of offsets.

use crate::Studio;
use crate::request::{Request, Response};
use openwork::layout::ops::{OPS, Value as Output, find, nearest};
use openwork::layout::{Layout, MAX_IMAGE};
use serde::Deserialize;
use serde_json::{Value, json};

/// Most cells of a grid, and rows of a table of steps.
const MAX_CELLS: i64 = 4096;
const MAX_STEPS: i64 = 64;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutRequest {
    op: String,
    inputs: Vec<String>,
}

/// Every operation, for the page's menus.
pub(super) fn operations() -> Vec<Value> {
    let operation = |op: &openwork::layout::ops::Op| {
        json!({
            "name": op.name, "inputs": op.inputs, "summary": op.summary, "example": op.example,
        })
    };
    OPS.iter().map(operation).collect()
}

pub(super) fn layout(_: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let LayoutRequest { op: name, inputs } = request.json()?;
    let Some(op) = find(&name) else {
        let short: String = name.chars().take(40).collect();
        let why =
            format!("unknown operation {short:?}; did you mean {}?", nearest(&short).join(" or "));
        return Err(Response::error(404, why));
    };
    if inputs.len() != op.inputs.len() {
        let why = format!("{} takes {}", op.name, op.inputs.join(", "));
        return Err(Response::error(400, why));
    }
    let texts: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let shown: Vec<Value> = op
        .inputs
        .iter()
        .zip(&texts)
        .map(|(name, text)| json!({"name": name, "text": text, "grid": grid(text)}))
        .collect();
    // `image` lists every offset.
    let large =
        |text: &&str| text.parse::<Layout>().is_ok_and(|l| l.size() > MAX_CELLS.min(MAX_IMAGE));
    let output = match op.name {
        "image" if texts.iter().any(large) => {
            Err(format!("the page lists the offsets of at most {MAX_CELLS} positions"))
        }
        _ => op.run(&texts).map_err(|error| error.to_string()),
    };
    Ok(Response::json(&match output {
        Err(error) => json!({"inputs": shown, "error": error}),
        Ok(output) => {
            let (text, value) = text(&output);
            json!({
                "inputs": shown,
                "output": text,
                "value": value,
                "grid": if matches!(output, Output::Text(_) | Output::Slice(..)) { grid(&text) } else { Value::Null },
                "steps": if op.name == "composition" { steps(&texts, &text) } else { Value::Null },
            })
        }
    }))
}

/// The result as text that is again an input, and whether it is a layout.
fn text(output: &Output) -> (String, &'static str) {
    match output {
        Output::Text(text) => (text.clone(), "text"),
        Output::Int(n) => (n.to_string(), "number"),
        Output::Bool(b) => (b.to_string(), "truth"),
        Output::List(list) => {
            let list: Vec<_> = list.iter().map(ToString::to_string).collect();
            (list.join(" "), "list")
        }
        Output::Slice(layout, offset) => (format!("{layout} + {offset}"), "slice"),
    }
}

/// A layout as a grid of offsets: the first mode runs down, all others run across, as CuTe
/// prints them. Null for other texts and for layouts too large to draw.
fn grid(text: &str) -> Value {
    let plain = text.split(" + ").next().unwrap_or(text);
    let Ok(layout) = plain.parse::<Layout>() else { return Value::Null };
    if !plain.contains(':') || layout.size() > MAX_CELLS || layout.size() < 1 {
        return Value::Null;
    }
    let rows = if layout.rank() > 1 { layout.modes()[0].size() } else { 1 };
    let cols = layout.size() / rows;
    // The algebra counts the first mode fastest.
    let at = |row: i64, col: i64| layout.at(col * rows + row).ok();
    let cells: Option<Vec<Vec<i64>>> =
        (0..rows).map(|row| (0..cols).map(|col| at(row, col)).collect()).collect();
    match cells {
        Some(cells) => json!({"rows": rows, "cols": cols, "cells": cells, "layout": plain}),
        None => Value::Null,
    }
}

/// Composition step by step: an index c, B(c), and A(B(c)) beside R(c).
fn steps(inputs: &[&str], result: &str) -> Value {
    let (Ok(a), Ok(b), Ok(r)) =
        (inputs[0].parse::<Layout>(), inputs[1].parse::<Layout>(), result.parse::<Layout>())
    else {
        return Value::Null;
    };
    let step = |c: i64| {
        let inner = b.at(c).ok()?;
        Some(json!({"c": c, "b": inner, "a": a.at(inner).ok()?, "r": r.at(c).ok()?}))
    };
    let count = b.size().min(MAX_STEPS);
    json!({"rows": (0..count).map_while(step).collect::<Vec<_>>(), "all": b.size()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use openwork::layout::StridedLayout;

    #[test]
    fn a_grid_lists_every_offset_of_the_layout() {
        for text in ["(4,8):(8,1)", "((2,2),3):((1,4),2)", "6:2", "(2,3,4):(12,4,1)"] {
            let layout: Layout = text.parse().unwrap();
            let shown = grid(text);
            let mut cells: Vec<i64> = shown["cells"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|row| row.as_array().unwrap().iter().map(|cell| cell.as_i64().unwrap()))
                .collect();
            let mut expected: Vec<i64> =
                StridedLayout::from(&layout).iter().map(|offset| offset as i64).collect();
            cells.sort_unstable();
            expected.sort_unstable();
            assert_eq!(cells, expected, "{text}");
        }
        assert!(grid("24").is_null() && grid("(1000,1000):(1,1000)").is_null());
    }
}
