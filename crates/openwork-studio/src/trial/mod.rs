//! Trials: patterns and methods on a real matrix with its inputs, side by side.

mod job;
mod measure;
mod source;

pub use source::SourceError;

pub(crate) use job::Jobs;
pub(crate) use source::Sources;

use crate::Studio;
use crate::request::{Request, Response};
use openwork::Pattern;
use openwork::prune::Method;
use serde::Deserialize;
use serde_json::json;

/// Most patterns and methods of a trial, and characters of a method.
const MAX_PATTERNS: usize = 4;
const MAX_METHODS: usize = 3;
const MAX_METHOD: usize = 200;
/// Most cells of a picture of a mask.
const MAX_CELLS: usize = 1 << 18;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrialRequest {
    source: usize,
    tensor: usize,
    patterns: Vec<String>,
    methods: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobRequest {
    job: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MaskRequest {
    job: u64,
    result: usize,
    /// Each byte of the answer stands for `step` x `step` weights.
    step: usize,
    /// Most rows and columns of the answer, from the first on.
    rows: usize,
    cols: usize,
}

/// What patterns can be tried on.
pub(crate) fn sources(studio: &Studio, _: &Request<'_>) -> Result<Response, Response> {
    Ok(Response::json(&json!({"sources": studio.sources.to_json()})))
}

/// Starts a trial; one that is running is cancelled.
pub(crate) fn start(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: TrialRequest = request.json()?;
    let count = |what: &str, found: usize, most: usize| match found {
        found if (1..=most).contains(&found) => Ok(()),
        found => {
            Err(Response::error(400, format!("a trial has 1 to {most} {what}, found {found}")))
        }
    };
    count("patterns", request.patterns.len(), MAX_PATTERNS)?;
    count("methods", request.methods.len(), MAX_METHODS)?;
    let refuse = |what: &str, why: String| {
        let short: String = what.chars().take(MAX_METHOD).collect();
        Response::error(422, format!("{short}: {why}"))
    };
    let Some(tensor) = studio.sources.tensor(request.source, request.tensor) else {
        return Err(Response::error(404, "there is no such tensor"));
    };
    let mut work = Vec::new();
    for text in &request.patterns {
        let pattern: Pattern = text.parse().map_err(|error| refuse(text, format!("{error}")))?;
        pattern.bind(&tensor.shape).map_err(|error| refuse(text, format!("{error}")))?;
        for name in &request.methods {
            if name.len() > MAX_METHOD {
                return Err(refuse(name, "the method is too long".to_string()));
            }
            let method: Method = name.parse().map_err(|error| refuse(name, format!("{error}")))?;
            work.push(job::Work { pattern: pattern.clone(), text: text.clone(), method });
        }
    }
    let job = studio.jobs.start(tensor, work);
    job.map(|id| Response::json(&json!({"job": id}))).ok_or_else(|| {
        Response::error(429, "earlier trials are still stopping; try again in a moment")
    })
}

fn job_of(studio: &Studio, id: u64) -> Result<std::sync::Arc<job::Job>, Response> {
    studio.jobs.find(id).ok_or_else(|| Response::error(404, "there is no such trial"))
}

/// Progress and results so far.
pub(crate) fn status(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: JobRequest = request.json()?;
    Ok(Response::json(&job_of(studio, request.job)?.status()))
}

/// Cancels a trial.
pub(crate) fn cancel(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: JobRequest = request.json()?;
    job_of(studio, request.job)?.cancel();
    Ok(Response::json(&json!({"cancelled": true})))
}

/// The share of kept weights, 0 to 255, of each square of a mask.
pub(crate) fn mask(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: MaskRequest = request.json()?;
    let job = job_of(studio, request.job)?;
    let Some((bits, rows, cols)) = job.mask(request.result) else {
        return Err(Response::error(404, "there is no such result"));
    };
    let step = request.step;
    let cells = |all: usize, most: usize| all.checked_div(step).map(|n| most.min(n + 1));
    let fits = |(rows, cols): &(usize, usize)| rows * cols <= MAX_CELLS;
    let size = cells(rows, request.rows).zip(cells(cols, request.cols)).filter(fits);
    let Some((down, across)) = size else {
        return Err(Response::error(400, format!("a picture has at most {MAX_CELLS} cells")));
    };
    let mut shares = Vec::with_capacity(down * across);
    for top in (0..rows).step_by(step).take(down) {
        for left in (0..cols).step_by(step).take(across) {
            let (bottom, right) = ((top + step).min(rows), (left + step).min(cols));
            let row = |i: usize| (left..right).filter(|j| bits.get(i * cols + j)).count();
            let kept: usize = (top..bottom).map(row).sum();
            shares.push((kept * 255 / ((bottom - top) * (right - left))) as u8);
        }
    }
    Ok(Response::bytes(shares))
}
