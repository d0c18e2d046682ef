//! `openwork methods`: the tables of methods, modifiers and their options.

use crate::args::Global;
use crate::failure::Failure;
use openwork::prune::{DAMPING, METHODS, MODIFIERS, Method, MethodInfo, Needs, OptionInfo};
use openwork_llm::recover::{STAGES, StageInfo};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
A method may have options in brackets and modifiers after plus signs:

  s-obs
  s-obs[damping=diag:0.1,scoring=joint]
  sparsegpt+refit

Examples:
  openwork methods
  openwork methods --json";

/// List the pruning methods and their options
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Methods {}

impl Methods {
    /// Prints the tables.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        if global.json {
            return crate::print::line(json!({
                "methods": METHODS.iter().map(as_json).collect::<Vec<_>>(),
                "modifiers": MODIFIERS.iter().map(as_json).collect::<Vec<_>>(),
                "options": [option_json(&DAMPING)],
                "recovery": STAGES.iter().map(stage_json).collect::<Vec<_>>(),
            }));
        }
        let mut text = String::from("Methods (--method NAME)\n\n");
        METHODS.iter().for_each(|method| text += &as_text(method, ""));
        if !MODIFIERS.is_empty() {
            text += "Modifiers (--method NAME+MODIFIER)\n\n";
            MODIFIERS.iter().for_each(|method| text += &as_text(method, "+"));
        }
        text += "Option of every method that uses H, shared by its modifiers\n\n";
        text += &option_text(&DAMPING);
        text += "\nRecovery (--recover STAGE, or a chain such as blocks+model)\n\n";
        STAGES.iter().for_each(|stage| text += &stage_text(stage));
        crate::print::text(&text)
    }
}

fn as_json(method: &MethodInfo) -> Value {
    json!({
        "name": method.name,
        "summary": method.summary,
        "needs": needs(method).map(|needs| match needs {
            Needs::Weights => "weights",
            Needs::Norms => "norms",
            Needs::Hessian => "hessian",
        }),
        "damping": damping(method),
        "options": method.options.iter().map(option_json).collect::<Vec<_>>(),
    })
}

fn stage_json(stage: &StageInfo) -> Value {
    json!({
        "name": stage.name,
        "summary": stage.summary,
        "options": stage.options.iter().map(option_json).collect::<Vec<_>>(),
    })
}

fn stage_text(stage: &StageInfo) -> String {
    let mut text = format!("  {}\n    {}\n", stage.name, stage.summary);
    stage.options.iter().for_each(|option| text += &option_text(option));
    text + "\n"
}

fn option_json(option: &OptionInfo) -> Value {
    json!({
        "name": option.name,
        "values": option.values,
        "default": option.default,
        "help": option.help,
    })
}

/// The statistics a method needs; `None` for a modifier, which needs H.
fn needs(method: &MethodInfo) -> Option<Needs> {
    method.name.parse().ok().map(|method: Method| method.needs())
}

/// The default damping of a method that uses it; modifiers use their method's.
fn damping(method: &MethodInfo) -> Option<String> {
    (needs(method) == Some(Needs::Hessian)).then(|| method.damping.to_string())
}

fn as_text(method: &MethodInfo, plus: &str) -> String {
    let damping = damping(method).map_or(String::new(), |damping| format!("   damping={damping}"));
    let mut text = format!("  {plus}{}{damping}\n{}", method.name, wrapped(method.summary, 6));
    for option in method.options {
        text += &option_text(option);
    }
    text + "\n"
}

fn option_text(option: &OptionInfo) -> String {
    let OptionInfo { name, values, default, help } = option;
    format!("      {name}={values}   (default {default})\n{}", wrapped(help, 10))
}

/// Wraps text into indented lines of at most 90 characters.
fn wrapped(text: &str, indent: usize) -> String {
    const WIDTH: usize = 90;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && indent + last.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(word.to_string());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}
