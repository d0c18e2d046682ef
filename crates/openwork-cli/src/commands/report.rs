//! `openwork report RUN.. --out page.html`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::format::count;
use openwork_llm::output::OutputFile;
use openwork_llm::report::{Record, page, warnings};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Write an HTML report of one or more runs
///
/// The page is one self-contained file. Runs of the same spec are compared with
/// the first of them; runs evaluated on different texts, windows or dense models
/// are charted separately, with a warning.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork report pruned --out page.html
  openwork report pruned-sparsegpt pruned-s-obs --out compare.html")]
pub struct Report {
    /// Output folders of `openwork prune`, or their record.json
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Write the page to FILE
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

impl Report {
    /// Reads all records, then writes the page.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let records: Vec<PathBuf> = self.runs.iter().map(|run| Record::path(run)).collect();
        let inputs: Vec<&Path> = records.iter().map(PathBuf::as_path).collect();
        let out = OutputFile::new(&self.out, &inputs, self.force)?;
        let mut runs = Vec::with_capacity(self.runs.len());
        for (path, name) in self.runs.iter().zip(names(&self.runs)) {
            runs.push((name, Record::read(path).map_err(Failure::input)?));
        }
        let warnings = warnings(&runs);
        if !global.quiet {
            warnings.iter().for_each(|warning| print::aside(format!("warning: {warning}")));
        }
        let page = page(&runs);
        global.write(&out, page.as_bytes())?;
        if global.json {
            let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
            return print::line(json!({
                "out": self.out, "bytes": page.len(), "runs": names, "warnings": warnings,
            }));
        }
        print::line(format!("{}: open {}", count(runs.len(), "run"), self.out.display()))
    }
}

/// The name of each run: its folder's name, or the whole path if two folders
/// have the same name.
fn names(runs: &[PathBuf]) -> Vec<String> {
    let short: Vec<String> = runs.iter().map(|path| name(path)).collect();
    (runs.iter().zip(&short))
        .map(|(path, name)| {
            let alone = short.iter().filter(|other| *other == name).count() == 1;
            if alone { name.clone() } else { path.display().to_string() }
        })
        .collect()
}

fn name(path: &Path) -> String {
    // RUN/openwork/record.json has the name of RUN.
    let run = match path.ends_with("openwork/record.json") {
        true => path.parent().and_then(Path::parent).unwrap_or(path),
        false => path,
    };
    let name = if run.extension().is_some_and(|e| e == "json") {
        run.file_stem()
    } else {
        run.file_name()
    };
    name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_after_its_folder() {
        let of = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["out/a/", "b/openwork/record.json", "c.json"]), ["a", "b", "c"]);
        assert_eq!(of(&["x/a", "y/a", "b"]), ["x/a", "y/a", "b"]);
        assert_eq!(of(&["."]), ["."]);
        assert_eq!(of(&["openwork/record.json"]), ["openwork/record.json"]);
    }
}
