//! `openwork methods`: the tables of methods, modifiers and their options.

use crate::args::Global;
use crate::failure::Failure;
use openwork::prune::{DAMPING, METHODS, MODIFIERS, Method, OptionInfo};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Methods compose: a method, its options in brackets, then modifiers behind plus signs.

  s-obs
  s-obs[damping=diag:0.1,scoring=joint]
  sparsegpt+refit

Examples:
  openwork methods
  openwork methods --json";

/// Lists the pruning methods and their options
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
            }));
        }
        let mut text = String::from("Methods (--method NAME)\n\n");
        METHODS.iter().for_each(|method| text += &as_text(method, ""));
        if !MODIFIERS.is_empty() {
            text += "Modifiers (--method NAME+MODIFIER)\n\n";
            MODIFIERS.iter().for_each(|method| text += &as_text(method, "+"));
        }
        text += "Options of every method and modifier\n\n";
        text += &option_text(&DAMPING);
        crate::print::text(&text)
    }
}

fn as_json(method: &Method) -> Value {
    json!({
        "name": method.name,
        "summary": method.summary,
        "damping": method.damping.to_string(),
        "options": method.options.iter().map(option_json).collect::<Vec<_>>(),
    })
}

fn option_json(option: &OptionInfo) -> Value {
    json!({
        "name": option.name,
        "values": option.values,
        "default": option.default,
        "help": option.help,
    })
}

fn as_text(method: &Method, plus: &str) -> String {
    let mut text = format!("  {plus}{}\n      {}\n", method.name, method.summary);
    for option in method.options {
        text += &option_text(option);
    }
    text + "\n"
}

fn option_text(option: &OptionInfo) -> String {
    format!(
        "      {}={}   (default {})\n          {}\n",
        option.name, option.values, option.default, option.help
    )
}
