//! One result of a trial: error, energy, errors of rows, packed bytes, speed on this machine.

use super::job::Work;
use half::bf16;
use openwork::hessian::Hessian;
use openwork::mask::Bits;
use openwork::prune::measure::{OutputError, row_errors};
use openwork::prune::{Member, Monitor, Needs, Pruned, Task, prune};
use openwork::sparse::Packed;
use openwork::values::ValuesRef;
use openwork::{Matrix, Pattern, Spec};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most rows whose errors are sent one by one; more are averaged in groups.
const MAX_ROWS: usize = 512;
/// Time for which each product is repeated; the best repetition counts.
const TIMED: Duration = Duration::from_millis(40);

/// A matrix that patterns are tried on, with the statistics of its inputs.
pub(super) struct Subject {
    pub weights: Matrix,
    pub hessian: Option<Arc<Hessian>>,
    /// Seconds of its product with a vector, which all results are compared with.
    dense_seconds: Option<f64>,
}

impl Subject {
    /// Times the product of the dense matrix.
    pub fn new(weights: Matrix, hessian: Option<Arc<Hessian>>) -> Self {
        let all: Option<Pattern> = "keep 100%".parse().ok();
        let spec = all.and_then(|all| all.bind(&[weights.rows(), weights.cols()]).ok());
        let packed = spec
            .and_then(|spec| Packed::pack(&Arc::new(spec), ValuesRef::Bf16(&half(&weights))).ok());
        let dense_seconds = packed.map(|packed| time(&packed));
        Self { weights, hessian, dense_seconds }
    }
}

/// Prunes and measures; the mask, if that succeeded.
pub(super) fn measure(
    work: &Work,
    subject: &Subject,
    monitor: &dyn Monitor,
) -> (Value, Option<Bits>) {
    let (weights, hessian) = (&subject.weights, subject.hessian.as_deref());
    let mut result = json!({"pattern": work.text, "method": work.method.to_string()});
    match pruned(work, weights, hessian, monitor) {
        Err(why) => {
            result["failed"] = json!(why);
            (result, None)
        }
        Ok((spec, pruned)) => {
            let bits = pruned.mask.tensors()[0].clone();
            let square = |w: f32| f64::from(w) * f64::from(w);
            let all: f64 = weights.data().iter().map(|&w| square(w)).sum();
            let kept: f64 = weights
                .data()
                .iter()
                .enumerate()
                .filter(|(i, _)| bits.get(*i))
                .map(|(_, &w)| square(w))
                .sum();
            let new = &pruned.weights[0];
            let h = hessian.map(|h| h.matrix().view());
            let rows = row_errors(weights.view(), new.view(), h);
            let total: OutputError = rows.iter().copied().sum();
            result["error"] = json!(pruned.error);
            result["energy"] = json!(if all > 0.0 { kept / all } else { 1.0 });
            result["density"] = json!(pruned.mask.density());
            result["seconds"] = json!(pruned.seconds);
            result["damping"] = json!(pruned.damping.map(|damping| damping.to_string()));
            result["notes"] = json!(pruned.notes);
            result["blind"] = json!(hessian.is_none());
            result["rows"] = json!(shares(&rows, total));
            result["packed"] = packed(&spec, new, subject.dense_seconds);
            (result, Some(bits))
        }
    }
}

fn pruned(
    work: &Work,
    weights: &Matrix,
    hessian: Option<&Hessian>,
    monitor: &dyn Monitor,
) -> Result<(Arc<Spec>, Pruned), String> {
    let shape = [weights.rows(), weights.cols()];
    let spec = work.pattern.bind(&shape).map_err(|error| error.to_string())?;
    if hessian.is_none() && work.method.needs() != Needs::Weights {
        return Err("this method needs inputs, and the file has none".to_string());
    }
    let members = vec![Member { weights: weights.data().into(), hessian }];
    let pruned = prune(&work.method, &Task { spec: &spec, members, monitor });
    Ok((Arc::new(spec), pruned.map_err(|error| error.to_string())?))
}

/// The relative error of every row, or of groups of rows.
fn shares(rows: &[OutputError], total: OutputError) -> Value {
    let group = rows.len().div_ceil(MAX_ROWS).max(1);
    let errors: Vec<f64> = rows
        .chunks(group)
        .map(|rows| rows.iter().copied().sum::<OutputError>().relative())
        .map(|error| if error.is_finite() { error } else { 0.0 })
        .collect();
    json!({"errors": errors, "group": group, "count": rows.len(), "mean": total.relative()})
}

/// Bytes and speed of the packed matrix, with values of 16 bits.
fn packed(spec: &Arc<Spec>, new: &Matrix, dense_seconds: Option<f64>) -> Value {
    let packed = match Packed::pack(spec, ValuesRef::Bf16(&half(new))) {
        Ok(packed) => packed,
        Err(error) => return json!({"why": error.to_string()}),
    };
    let mut out = json!({
        "format": packed.format().name,
        "kernels": packed.format().kernels,
        "slow": Packed::slow_because(spec, 0),
        "bytes": packed.stored_bytes(),
        "index_bytes": packed.index().len(),
        "value_bytes": packed.values().bytes(),
        "dense_bytes": packed.dense_bytes(),
    });
    if let Some(dense) = dense_seconds {
        out["dense_seconds"] = json!(dense);
        out["seconds"] = json!(time(&packed));
    }
    out
}

fn half(matrix: &Matrix) -> Vec<bf16> {
    matrix.data().iter().map(|&w| bf16::from_f32(w)).collect()
}

/// Seconds of the fastest of several products with a vector.
fn time(packed: &Packed) -> f64 {
    let x: Vec<f32> = (0..packed.cols()).map(|i| (i % 7) as f32 - 3.0).collect();
    let mut y = vec![0.0; packed.rows()];
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    loop {
        let turn = Instant::now();
        packed.matvec(&x, &mut y);
        best = best.min(turn.elapsed().as_secs_f64());
        if started.elapsed() > TIMED {
            return best;
        }
    }
}
