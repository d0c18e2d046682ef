//! `openwork formats`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork::sparse::{FORMATS, Format};
use openwork_llm::format::align_columns;
use serde_json::json;

/// List the packed formats: which specs each is for, and what it stores
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  openwork formats\n  openwork formats --json")]
pub struct Formats {}

impl Formats {
    /// Prints the table.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        if global.json {
            let formats: Vec<_> = FORMATS
                .iter()
                .map(|f| {
                    json!({
                        "name": f.name, "summary": f.summary, "example": f.example,
                        "kernels": f.kernels,
                    })
                })
                .collect();
            return print::line(json!({ "formats": formats }));
        }
        let row = |f: &Format| [f.name, f.example, f.summary].map(String::from);
        let rows: Vec<[String; 3]> = FORMATS.iter().map(row).collect();
        print::text(&align_columns(&rows, [false; 3]))?;
        print::line(
            "The first format that fits a spec is used; docs/formats.md specifies the layouts.",
        )
    }
}
