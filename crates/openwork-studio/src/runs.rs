//! The runs below a folder: how far they are, what they measured, how to resume them. Nothing
//! is written, and a request names a run by its number, never by a path.

use crate::Studio;
use crate::request::{Request, Response};
use openwork_llm::format::shell_word;
use openwork_llm::pipeline::{RunState, RunStatus, find_runs};
use openwork_llm::report::{Record, page};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Folders down, and most runs, that are listed.
const DEPTH: usize = 3;
const MAX_RUNS: usize = 100;

/// What a report page may load: nothing but its own styles. It is readable without its script.
const REPORT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The folder of runs.
#[derive(Debug)]
pub(crate) struct Runs {
    root: PathBuf,
}

impl Runs {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    fn folders(&self) -> Vec<PathBuf> {
        find_runs(&self.root, DEPTH, MAX_RUNS)
    }

    /// The folder of a request. Numbers change when runs appear, so the answer has the name.
    fn folder(&self, request: &Request<'_>) -> Result<PathBuf, Response> {
        let number: Option<usize> = request.query_value("run").and_then(|text| text.parse().ok());
        let mut folders = self.folders();
        match number {
            Some(number) if number < folders.len() => Ok(folders.swap_remove(number)),
            _ => Err(Response::error(404, "there is no such run")),
        }
    }

    fn name(&self, folder: &Path) -> String {
        let below = folder.strip_prefix(&self.root).unwrap_or(folder);
        match below.as_os_str().is_empty() {
            true => self.root.display().to_string(),
            false => below.display().to_string(),
        }
    }
}

/// All runs, with a line on each.
pub(crate) fn list(studio: &Studio, _: &Request<'_>) -> Result<Response, Response> {
    let runs = &studio.runs;
    let all = runs.folders().into_iter().enumerate().filter_map(|(number, folder)| {
        let status = RunStatus::read(&folder)?;
        let mut line = summary(&status);
        line["number"] = json!(number);
        line["name"] = json!(runs.name(&folder));
        Some(line)
    });
    let root = runs.root.display().to_string();
    Ok(Response::json(&json!({"folder": root, "runs": all.collect::<Vec<_>>()})))
}

/// One run in full.
pub(crate) fn one(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let folder = studio.runs.folder(request)?;
    let Some(status) = RunStatus::read(&folder) else {
        return Err(Response::error(404, "the run is gone"));
    };
    let mut out = summary(&status);
    out["name"] = json!(studio.runs.name(&folder));
    out["layers"] = status
        .layers
        .iter()
        .map(|layer| {
            let linears = layer.linears.iter().map(|linear| {
                json!({"name": linear.name, "error": finite(linear.error), "density": linear.density})
            });
            json!({
                "index": layer.index,
                "decoder_error": finite(layer.decoder_error),
                "seconds": finite(layer.seconds),
                "linears": linears.collect::<Vec<_>>(),
            })
        })
        .collect();
    out["evaluations"] = status
        .evaluations
        .iter()
        .map(|e| json!({"after_layer": e.after_layer, "perplexity": finite(e.token_perplexity)}))
        .collect();
    let linears = status.layers.last().map(|layer| layer.linears.len());
    out["progress"] = json!(within_layer(&studio.runs.root, &folder, linears));
    out["resume"] = json!(resume(&status, &folder));
    out["report"] = json!(format!(
        "openwork report {} --out report.html",
        shell_word(&folder.display().to_string())
    ));
    Ok(Response::json(&out))
}

/// How much of the current layer is pruned, for a run that was started with
/// `--events 2> FOLDER.events`; `all` is the number of linears of a layer, if one is done.
fn within_layer(root: &Path, folder: &Path, all: Option<usize>) -> Option<Value> {
    const TAIL: u64 = 1 << 16;
    // Nothing outside the folder of runs is read.
    folder.parent().filter(|parent| parent.starts_with(root))?;
    let mut name = folder.file_name()?.to_os_string();
    name.push(".events");
    let path = folder.with_file_name(name);
    if !path.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let events = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let pruned: Vec<Value> = events.take_while(|event| event["event"] == "pruned").collect();
    let layer = &pruned.first()?["layer"];
    let done = pruned.iter().filter(|event| event["layer"] == *layer).count();
    let share = all.map_or(0.0, |all| (done as f64 / all.max(1) as f64).min(1.0));
    Some(json!({"layer": layer, "pruned": done, "all": all, "share": share}))
}

/// The report page.
pub(crate) fn report(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let folder = studio.runs.folder(request)?;
    let record = Record::read(&folder).map_err(|error| Response::error(404, error.to_string()))?;
    let page = page(&[(studio.runs.name(&folder), record)]);
    let response = Response::text("text/html; charset=utf-8", page);
    Ok(response.with("Content-Security-Policy", REPORT_POLICY))
}

/// A number that JSON can hold.
fn finite(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { Value::Null }
}

fn summary(status: &RunStatus) -> Value {
    let (spec, method) = match (&status.record, &status.plan) {
        (Some(record), _) => (record.spec_as_written(), record.method.clone()),
        (None, Some(plan)) => {
            let recipe = &plan.recipe;
            (recipe.spec.clone().unwrap_or_default(), recipe.method.clone().unwrap_or_default())
        }
        (None, None) => Default::default(),
    };
    json!({
        "state": status.state.name(),
        "model": status.record.as_ref().map(|record| record.model.clone()),
        "spec": spec,
        "method": method,
        "done": status.layers.len(),
        "all": status.all_layers,
        "elapsed": finite(status.elapsed),
        "perplexity": status.evaluations.iter().rfind(|e| e.after_layer.is_some()).map(|e| finite(e.token_perplexity)),
        "dense_perplexity": status.evaluations.iter().find(|e| e.after_layer.is_none()).map(|e| finite(e.token_perplexity)),
    })
}

/// The command that continues a run, as far as its folder tells: paths of the model and of the
/// text are not in it.
fn resume(status: &RunStatus, folder: &Path) -> Option<String> {
    let plan = status.plan.as_ref().filter(|_| status.state != RunState::Finished)?;
    let mut words = vec!["openwork prune MODEL".to_string()];
    let mut option = |flag: &str, value: Option<&str>| {
        words.extend(value.map(|value| format!("--{flag} {}", shell_word(value))));
    };
    option("spec", plan.recipe.spec.as_deref());
    option("method", plan.recipe.method.as_deref());
    option("calib", Some(&plan.calibration.text));
    option("samples", Some(&plan.calibration.samples.to_string()));
    option("seq-len", Some(&plan.calibration.seq_len.to_string()));
    option("single-tokens", Some(&plan.calibration.single_tokens.to_string()));
    option("seed", Some(&plan.seed.to_string()));
    option("dtype", Some(&plan.dtype));
    option("recover", plan.recovery.as_deref());
    option("include", plan.include.as_deref());
    option("exclude", plan.exclude.as_deref());
    option("out", Some(&folder.display().to_string()));
    if !plan.recipe.rules.is_empty() || !plan.recipe.passes.is_empty() {
        words.push("--recipe RECIPE".to_string());
    }
    if plan.sequential {
        words.push("--sequential on".to_string());
    }
    words.push("--resume".to_string());
    Some(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_within_a_layer_is_read_from_the_events() {
        let root = tempfile::tempdir().unwrap();
        let (folder, path) = (root.path().join("run"), root.path().join("run.events"));
        let found = |text: &str, all| {
            std::fs::write(&path, text).unwrap();
            within_layer(root.path(), &folder, all).unwrap_or_default()
        };
        let pruned = |layer: usize| json!({"event": "pruned", "layer": layer}).to_string() + "\n";
        let layer = "{\"event\":\"layer\",\"index\":0}\n";
        let text = format!("{}{layer}{}{}", pruned(0), pruned(1), pruned(1));
        let expected = json!({"layer": 1, "pruned": 2, "all": 4, "share": 0.5});
        assert_eq!(found(&text, Some(4)), expected);
        // The last line may be half written.
        assert_eq!(found(&format!("{text}{{\"ev"), Some(4)), expected);
        assert_eq!(found(&pruned(0), None)["share"], 0.0);
        for text in ["", "not JSON", layer] {
            assert!(found(text, Some(4)).is_null(), "{text}");
        }
        assert!(within_layer(&root.path().join("other"), &folder, None).is_none());
    }
}
