//! Pruning of weights stored in 16 bits, one band of rows at a time.
//!
//! A 16-bit tensor doubles in size as f32, and pruning holds several copies. Rows
//! that share no scope are therefore pruned in bands: only the bands in progress are
//! widened, and results are kept in 16 bits.

use super::batches::ROWS;
use super::{
    Factors, Member, Method, Monitor, PruneError, Pruned, Task, measure::OutputError, prune,
    prune_with,
};
use crate::mask::{Bits, Mask};
use crate::spec::{Band, Pattern, bands};
use crate::values::{Number, ValueType, Values, rounded, typed};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Approximate number of weights of a band: a few megabytes per thread.
const WEIGHTS: usize = 1 << 18;

/// Prunes like [`prune`] and rounds the new weights to the storage type of the old
/// ones.
///
/// If a tensor is stored in 16 bits, and neither the spec nor the method couples all of
/// its rows, they are pruned in bands; `seconds` then includes measuring
/// the error.
///
/// ```
/// use openwork::{Pattern, prune::{Member, Task, prune_stored}, values::{Values, ValuesRef}};
/// let w = [3.0, -1.0, 0.5, 2.0].map(half::bf16::from_f32);
/// let spec = "1:2".parse::<Pattern>().unwrap().bind(&[1, 4]).unwrap();
/// let members = vec![Member { weights: ValuesRef::Bf16(&w), hessian: None }];
/// let task = Task { spec: &spec, members, monitor: &() };
/// let pruned = prune_stored(&"magnitude".parse().unwrap(), &task).unwrap();
/// let wanted = [3.0, 0.0, 0.0, 2.0].map(half::bf16::from_f32);
/// assert_eq!(pruned.weights[0], Values::Bf16(wanted.to_vec()));
/// ```
pub fn prune_stored(method: &Method, task: &Task<'_>) -> Result<Pruned<Values>, PruneError> {
    if let Some(bands) = cut(method, task) {
        return in_bands(method, task, &bands);
    }
    let Pruned { mask, weights, error, errors, parts, damping, seconds, notes } =
        prune(method, task)?;
    let mut new = Vec::with_capacity(weights.len());
    for ((wide, member), tensor) in weights.into_iter().zip(&task.members).zip(task.spec.tensors())
    {
        let value_type = member.weights.value_type();
        new.push(match value_type {
            ValueType::F32 => Values::F32(wide.into_vec()),
            _ => {
                let mut new = Values::zeros(value_type, wide.data().len());
                typed!(Values, &mut new, new => round(wide.data(), new, tensor.name(), 0))?;
                new
            }
        });
    }
    Ok(Pruned { mask, weights: new, error, errors, parts, damping, seconds, notes })
}

/// Bands of a 16-bit tensor, if they give the same result as the whole.
fn cut(method: &Method, task: &Task<'_>) -> Option<Vec<Band>> {
    let ([tensor], [member]) = (task.spec.tensors(), &task.members[..]) else { return None };
    // What modifiers solve for all rows at once stops for all of them at once.
    let apart = method.by_rows() && !method.has_modifiers();
    if !apart || member.weights.value_type() == ValueType::F32 {
        return None;
    }
    let pattern: Pattern = task.spec.text().parse().ok()?;
    // Whole batches, so that methods that work in batches find the same ones in a band.
    let batches = (WEIGHTS / tensor.matrix().1.max(1)).div_ceil(ROWS).max(1);
    bands(&pattern, task.spec, batches * ROWS)
}

fn in_bands(
    method: &Method,
    task: &Task<'_>,
    bands: &[Band],
) -> Result<Pruned<Values>, PruneError> {
    let started = Instant::now();
    let factors = Factors::new(method, task)?;
    let weights = task.members[0].weights;
    let mut new = Values::zeros(weights.value_type(), weights.len());
    let done = typed!(Values, &mut new, new => each_band(method, task, &factors, bands, new.as_mut_slice()))?;

    let (mut notes, mut bits) = (Vec::new(), Bits::zeros(0));
    let part: OutputError = done.iter().map(|band| band.parts[0]).sum();
    let damping = done.first().and_then(|band| band.damping);
    for band in done {
        bits.append(&band.mask.tensors()[0]);
        let fresh: Vec<String> =
            band.notes.into_iter().filter(|note| !notes.contains(note)).collect();
        notes.extend(fresh);
    }
    Ok(Pruned {
        mask: Mask::from_bits(vec![bits]),
        weights: vec![new],
        error: part.relative(),
        errors: vec![part.relative()],
        parts: vec![part],
        damping,
        seconds: started.elapsed().as_secs_f64(),
        notes,
    })
}

/// Prunes all bands and writes their weights to `new`; returns the rest of the result,
/// without weights.
fn each_band<T: Number>(
    method: &Method,
    task: &Task<'_>,
    factors: &Factors,
    bands: &[Band],
    new: &mut [T],
) -> Result<Vec<Pruned>, PruneError> {
    let tensor = &task.spec.tensors()[0];
    let cols = tensor.matrix().1;
    let monitor = Finished { whole: task.monitor, bands: bands.len(), done: AtomicUsize::new(0) };
    // All bands but the last have one height.
    let height = bands[0].rows.len();
    bands
        .par_iter()
        .zip(new.par_chunks_mut(height * cols))
        .map(|(Band { rows, spec }, new)| {
            if monitor.cancelled() {
                return Err(PruneError::Stopped);
            }
            let Member { weights, hessian } = task.members[0];
            let weights = weights.slice(rows.start * cols..rows.end * cols);
            let band = Task { spec, members: vec![Member { weights, hessian }], monitor: &monitor };
            let mut pruned = prune_with(method, &band, factors)?;
            for wide in pruned.weights.drain(..) {
                round(wide.data(), new, tensor.name(), rows.start * cols)?;
            }
            monitor.finish();
            Ok(pruned)
        })
        .collect()
}

/// Rounds new weights of a tensor from offset `first` on.
fn round<T: Number>(
    wide: &[f32],
    new: &mut [T],
    tensor: &str,
    first: usize,
) -> Result<(), PruneError> {
    rounded(wide, new).map_err(|at| PruneError::Beyond {
        tensor: tensor.to_string(),
        offset: first + at,
        value: wide[at],
        stored: T::TYPE,
    })
}

/// Reports the share of finished bands.
struct Finished<'a> {
    whole: &'a dyn Monitor,
    bands: usize,
    done: AtomicUsize,
}

impl Finished<'_> {
    fn finish(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.whole.progress(done as f64 / self.bands as f64);
    }
}

impl Monitor for Finished<'_> {
    /// Progress within one band is not reported.
    fn progress(&self, _: f64) {}

    fn cancelled(&self) -> bool {
        self.whole.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hessian::{Hessian, HessianSum};
    use crate::linalg::tests::random;
    use crate::prune::METHODS;
    use crate::values::ValuesRef;
    use half::{bf16, f16};

    fn hessian(columns: usize) -> Hessian {
        let mut sum = HessianSum::new(columns);
        sum.add(random(4 * columns, columns, 7).view()).unwrap();
        sum.finish().unwrap()
    }

    fn task<'a>(
        spec: &'a crate::Spec,
        weights: ValuesRef<'a>,
        hessian: Option<&'a Hessian>,
    ) -> Task<'a> {
        Task { spec, members: vec![Member { weights, hessian }], monitor: &() }
    }

    /// Bands give the mask, the damping, the notes and the error of the whole in
    /// f32, and its weights, rounded.
    #[test]
    fn bands_give_what_the_whole_gives() {
        let specs: &[(&str, &[usize])] = &[
            ("2:4", &[250, 32]),
            ("2:4x2", &[250, 32]),
            ("rows16", &[256, 32]),
            ("block(4,4)", &[256, 32]),
            ("rowwise(30%)", &[200, 24]),
            ("scope (1,4) keep 1 in (0,8)+(M,16)", &[200, 24]),
            ("2:4", &[200, 4, 2, 4]),
        ];
        let parsed = |text: &str| text.parse::<Method>().unwrap();
        let methods: Vec<Method> = METHODS
            .iter()
            .map(|method| parsed(method.name))
            .filter(Method::by_rows)
            .chain([parsed("s-obs[damping=mean:0.01]")])
            .collect();
        for &(text, dims) in specs {
            let pattern: Pattern = text.parse().unwrap();
            let spec = pattern.bind(dims).unwrap();
            let (rows, cols) = spec.tensors()[0].matrix();
            let h = hessian(cols);
            let halves: Vec<f16> =
                random(rows, cols, 3).data().iter().map(|&w| f16::from_f32(w)).collect();
            let wide = ValuesRef::F16(&halves).to_f32();
            let bands = bands(&pattern, &spec, ROWS).unwrap_or_else(|| panic!("{text}: no bands"));
            for method in &methods {
                let whole = prune(method, &task(&spec, ValuesRef::F32(&wide), Some(&h))).unwrap();
                let narrow = task(&spec, ValuesRef::F16(&halves), Some(&h));
                let found = in_bands(method, &narrow, &bands).unwrap();
                let wanted = whole.weights[0].data().iter().map(|&w| f16::from_f32(w)).collect();
                assert_eq!(found.mask, whole.mask, "{method} on {text}");
                assert_eq!(found.weights[0], Values::F16(wanted), "{method} on {text}");
                assert_eq!(found.damping, whole.damping, "{method} on {text}");
                assert_eq!(found.notes, whole.notes, "{method} on {text}");
                // Rows are summed in another order.
                let close = (found.error - whole.error).abs() <= 1e-12 * whole.error;
                assert!(close, "{method} on {text}: {} for {}", found.error, whole.error);
            }
        }
    }

    #[test]
    fn only_independent_rows_of_16_bits_are_cut() {
        let (rows, cols) = (1200, 512);
        let (narrow, wide) = (vec![bf16::ONE; rows * cols], vec![1.0; rows * cols]);
        let count = |text: &str, method: &str, weights| {
            let spec = text.parse::<Pattern>().unwrap().bind(&[rows, cols]).unwrap();
            cut(&method.parse().unwrap(), &task(&spec, weights, None)).map(|bands| bands.len())
        };
        assert_eq!(count("2:4", "wanda", ValuesRef::Bf16(&narrow)), Some(3));
        assert_eq!(count("2:4", "wanda", ValuesRef::F32(&wide)), None);
        assert_eq!(count("unstructured(50%)", "wanda", ValuesRef::Bf16(&narrow)), None);
        assert_eq!(count("2:4", "admm", ValuesRef::Bf16(&narrow)), None);
        assert_eq!(count("2:4", "sparsegpt+refit", ValuesRef::Bf16(&narrow)), None);
    }

    #[test]
    fn a_weight_beyond_f16_is_an_error_with_its_place() {
        let mut new = [f16::ZERO; 2];
        let error = round(&[1.0, -1e6], &mut new, "w", 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the new weight -1e6 at offset 11 of `w` is outside the range of f16; nothing was written: \
             use more damping, or store the weights as f32 or bf16"
        );
    }
}
