//! `openwork presets`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork::Pattern;
use openwork::spec::{PRESETS, Preset};
use serde_json::json;

/// List all presets, each with its expansion and an example
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  openwork presets\n  openwork presets --json\n  openwork show rows16 --shape 16,32"
)]
pub struct Presets {}

impl Presets {
    /// Prints the table, or one JSON object.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        if global.json {
            let rows = PRESETS.iter().map(row).collect::<Result<Vec<_>, _>>()?;
            return print::line(json!({ "presets": rows }));
        }
        let mut text = String::new();
        for preset in PRESETS {
            let shape: Vec<_> = preset.shape.iter().map(ToString::to_string).collect();
            text.push_str(&format!("{:18}{}\n", preset.name, preset.summary));
            text.push_str(&format!("{:18}{} = {}\n", "", preset.example, expansion(preset)?));
            text.push_str(&format!(
                "{:18}openwork show '{}' --shape {}\n\n",
                "",
                preset.example,
                shape.join(",")
            ));
        }
        text.push_str(
            "N:M keeps N of M. Clauses after a preset override its own: `2:4 in (M/4,0)+(M*3/4,K)`, \
             `channel keep 75%`.\n",
        );
        print::text(&text)
    }
}

/// The expansion of a preset's example on its sample shape.
fn expansion(preset: &Preset) -> Result<String, Failure> {
    let pattern: Pattern = preset.example.parse().map_err(Failure::running)?;
    let expanded = pattern.expand(&[("tensor", preset.shape)]).map_err(Failure::running)?;
    Ok(expanded.to_string())
}

fn row(preset: &Preset) -> Result<serde_json::Value, Failure> {
    Ok(json!({
        "name": preset.name,
        "summary": preset.summary,
        "example": preset.example,
        "shape": preset.shape,
        "text": expansion(preset)?,
    }))
}
