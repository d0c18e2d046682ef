//! `openwork families`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::model::{FAMILIES, Family};
use serde_json::json;

/// List the supported model families, and how each differs from Llama
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  openwork families\n  openwork families --json")]
pub struct Families {}

impl Families {
    /// Prints the table.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        if global.json {
            let families: Vec<_> = FAMILIES.iter().map(Family::to_json).collect();
            return print::line(json!({ "families": families }));
        }
        for family in FAMILIES {
            let architectures = family.architectures.join(", ");
            print::line(format!("{:12}{} ({architectures})", family.name, family.summary))?;
            let traits = family.traits().join(", ");
            if !traits.is_empty() {
                print::line(format!("{:12}{traits}", ""))?;
            }
        }
        Ok(())
    }
}
