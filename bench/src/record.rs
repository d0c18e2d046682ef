//! Records: figures with the machine they were measured on.

use super::Failed;
use serde_json::{Value, json};
use std::path::Path;

/// The machine, as far as it matters for time.
pub fn machine() -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": field("model name"),
        "cores": cores,
        "os": std::env::consts::OS,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Writes a record if a file is given.
pub fn save(path: Option<&Path>, record: &Value) -> Result<(), Failed> {
    if let Some(path) = path {
        std::fs::write(path, format!("{record:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// A Markdown table; the first row is its header.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        text += &format!("| {} |\n", row.join(" | "));
        if i == 0 {
            text += &format!("|{}\n", "---|".repeat(row.len()));
        }
    }
    text
}

/// The geometric mean.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|x| x.ln()).sum::<f64>() / values.len() as f64).exp()
}
