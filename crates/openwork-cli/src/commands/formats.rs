//! `openwork formats`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork::sparse::FORMATS;
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
        for format in FORMATS {
            print::line(format!("{:8}  {:14}  {}", format.name, format.example, format.summary))?;
        }
        print::line(
            "The first format that fits a spec is used; docs/formats.md specifies the layouts.",
        )
    }
}
