//! Options and output that all benchmark programs share.

use super::{Failed, capture, random, record, synthetic};
use clap::Args;
use openwork::Matrix;
use openwork::hessian::Hessian;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of most programs.
#[derive(Args)]
pub struct Common {
    /// Repetitions; the fastest counts
    #[arg(long, default_value_t = 3)]
    pub repeats: usize,
    /// Write all figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

impl Common {
    /// Writes the record of a benchmark: `fields` beside its name, the machine and the
    /// number of repetitions.
    pub fn save(&self, benchmark: &str, fields: Value) -> Result<(), Failed> {
        let mut record = json!({
            "benchmark": benchmark, "machine": record::machine(), "repeats": self.repeats,
        });
        if let (Some(record), Value::Object(fields)) = (record.as_object_mut(), fields) {
            record.extend(fields);
        }
        record::save(self.record.as_deref(), &record)
    }
}

/// Where layers come from.
#[derive(Args)]
pub struct Captures {
    /// Folder written by bench/capture.py [default: $OPENWORK_CAPTURES]
    #[arg(long, value_name = "DIR")]
    pub captures: Option<PathBuf>,
}

impl Captures {
    /// The folder given, or that of the environment variable.
    pub fn folder(&self) -> Result<PathBuf, Failed> {
        let variable = || std::env::var_os("OPENWORK_CAPTURES").map(PathBuf::from);
        self.captures.clone().or_else(variable).ok_or_else(|| {
            "give --captures DIR or set OPENWORK_CAPTURES; bench/capture.py writes one".into()
        })
    }

    /// The layer called `name`, or a synthetic one of its shape in SmolLM2 if there are
    /// no captures; and which of both it is.
    pub fn layer(&self, name: &str) -> Result<(Matrix, Hessian, &'static str), Failed> {
        if let Ok(folder) = self.folder() {
            let layer = capture::load(&folder, name)?;
            return Ok((layer.weight, layer.hessian, "captured"));
        }
        let k = if name.ends_with("down") { 1536 } else { 576 };
        Ok((random(576, k, 7), synthetic(k, 4 * k)?, "synthetic"))
    }
}

/// Ends a program; an error is printed.
pub fn finish(result: Result<(), Failed>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
