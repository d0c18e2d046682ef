//! Chooses damping by the error on held-out samples.
//!
//! Fits that hardly damp follow the calibration samples too closely: with about
//! as many samples as columns S-OBS then loses to SparseGPT on other inputs.
//! So: prune with H of two thirds of the samples, measure with H of the rest.

use std::sync::Arc;

use super::{Curvature, Damping, Hessian, HessianError, Note};

/// The shares of the diagonal that `auto` tries: around .01 is best for many
/// more samples than columns, 1 for as many, 3 for a third as many.
pub const AUTO_SHARES: [f64; 6] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0];

/// The damping chosen, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Always [`Damping::Diag`].
    pub damping: Damping,
    /// The held-out error of every share tried, in the order of trials; empty if
    /// a rule decided.
    pub errors: Vec<(f64, f64)>,
    /// Set if a rule decided.
    pub notes: Vec<Note>,
}

/// One share of the diagonal on trial: for each Hessian that of the fitting
/// samples, damped and as it is, and that of the held-out samples.
pub struct Trial<'a> {
    /// To prune with.
    pub damped: &'a [Arc<Curvature>],
    /// What was damped.
    pub fit: &'a [Hessian],
    /// To measure with.
    pub held_out: &'a [Hessian],
}

/// Chooses one share of the diagonal for tensors that are pruned together.
///
/// A trial damps the Hessians of the fitting samples; `error` prunes with them
/// by some cheap method and measures with the Hessians of the held-out samples,
/// all in the same order (see [`Trial`]). Trials go through [`AUTO_SHARES`] from
/// the share of [`share_by_rule`] downhill, and stop where both neighbors are
/// worse, after three or four of the six as a rule; a factorization each is what
/// they cost. The least error wins, the smaller share of equals; NaN never wins.
///
/// Without held-out samples [`share_by_rule`] decides, and a note reports it.
///
/// ```
/// use openwork::{Matrix, hessian::{Damping, HessianError, HessianSum, choose}};
/// let x = Matrix::from_fn(600, 2, |i, j| ((i * 7 + j * 3) % 11) as f32);
/// let mut sum = HessianSum::new(2);
/// sum.add(x.view()).unwrap();
/// let h = sum.finish().unwrap();
/// // A real `error` prunes; this one likes 0.3.
/// let choice = choose(&[&h], |trial| {
///     let Damping::Diag(share) = trial.damped[0].damping() else { unreachable!() };
///     Ok::<_, HessianError>((share - 0.3).abs())
/// });
/// assert_eq!(choice.unwrap().damping, Damping::Diag(0.3));
/// ```
pub fn choose<E: From<HessianError>>(
    hessians: &[&Hessian],
    mut error: impl FnMut(Trial<'_>) -> Result<f64, E>,
) -> Result<Choice, E> {
    let Some(splits) = hessians.iter().map(|h| h.split()).collect::<Option<Vec<_>>>() else {
        return Ok(by_rule(hessians));
    };
    let (fits, held): (Vec<Hessian>, Vec<Hessian>) = splits.into_iter().unzip();
    let mut errors: Vec<(f64, f64)> = Vec::new();
    let mut measured = |at: usize| -> Result<f64, E> {
        let share = AUTO_SHARES[at];
        if let Some(&(_, e)) = errors.iter().find(|(tried, _)| *tried == share) {
            return Ok(e);
        }
        let damped: Vec<Arc<Curvature>> = fits
            .iter()
            .map(|h| h.damp(Damping::Diag(share)).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let e = error(Trial { damped: &damped, fit: &fits, held_out: &held })?;
        let e = if e.is_nan() { f64::INFINITY } else { e };
        errors.push((share, e));
        Ok(e)
    };
    let start = rule(hessians).0;
    let mut at = AUTO_SHARES.iter().position(|&share| share >= start).unwrap_or(0);
    let mut least = measured(at)?;
    loop {
        let (here, up) = (at, at + 1);
        if up < AUTO_SHARES.len() && measured(up)? < least {
            (at, least) = (up, measured(up)?);
        }
        // Against the best so far, so that a valley is followed downwards.
        if here > 0 && measured(here - 1)? <= least {
            (at, least) = (here - 1, measured(here - 1)?);
        }
        if at == here {
            break;
        }
    }
    Ok(if least.is_finite() {
        Choice { damping: Damping::Diag(AUTO_SHARES[at]), errors, notes: vec![] }
    } else {
        by_rule(hessians)
    })
}

/// The choice if there are no held-out samples.
fn by_rule(hessians: &[&Hessian]) -> Choice {
    let (share, samples) = rule(hessians);
    let used = Damping::Diag(share);
    Choice { damping: used, errors: vec![], notes: vec![Note::DampingByRule { used, samples }] }
}

/// The largest share by rule over all Hessians, and its number of samples.
fn rule(hessians: &[&Hessian]) -> (f64, Option<usize>) {
    let shares = hessians.iter().map(|h| (share_by_rule(h.samples(), h.columns()), h.samples()));
    shares.reduce(|a, b| if b.0 > a.0 { b } else { a }).unwrap_or((share_by_rule(None, 0), None))
}

/// The share of the diagonal by the number of samples alone.
///
/// | samples per column | below 1/2 | 1/2 to 4 | 4 to 16 | 16 to 64 | 64 and more | unknown |
/// |---|---|---|---|---|---|---|
/// | share | 3 | 1 | 0.3 | 0.1 | 0.03 | 0.01 |
///
/// The shares 3, 1 and 0.03 were measured on held-out tokens; those between are
/// interpolated. A matrix with an unknown number of samples is assumed to be well sampled.
pub fn share_by_rule(samples: Option<usize>, columns: usize) -> f64 {
    let Some(n) = samples else { return 0.01 };
    match n as f64 / columns.max(1) as f64 {
        r if r < 0.5 => 3.0,
        r if r < 4.0 => 1.0,
        r if r < 16.0 => 0.3,
        r if r < 64.0 => 0.1,
        _ => 0.03,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hessian::HessianSum;
    use crate::linalg::tests::random;

    fn sampled(n: usize) -> Hessian {
        let mut sum = HessianSum::new(3);
        sum.add(random(n, 3, 1).view()).unwrap();
        sum.finish().unwrap()
    }

    #[test]
    fn the_least_held_out_error_wins_and_the_smaller_share_of_equals() {
        let h = sampled(1000);
        let mut seen = Vec::new();
        let choice = choose(&[&h], |trial| {
            assert_eq!(trial.held_out[0].samples(), Some(256));
            assert_eq!(trial.fit[0].samples(), Some(744));
            let Damping::Diag(share) = trial.damped[0].damping() else { unreachable!() };
            seen.push(share);
            let at = AUTO_SHARES.iter().position(|&s| s == share).unwrap();
            Ok::<_, HessianError>([2.0, f64::NAN, 1.0, 1.0, 0.0, 4.0][at])
        })
        .unwrap();
        assert_eq!(choice.damping, Damping::Diag(0.1));
        // From the rule's share outwards; what lies behind a rise is not seen.
        assert_eq!(seen, [0.03, 0.1, 0.01, 0.3]);
        assert_eq!((choice.errors.len(), choice.notes.len()), (4, 0));
    }

    #[test]
    fn without_a_split_a_rule_decides_and_says_so() {
        fn never(_: Trial<'_>) -> Result<f64, HessianError> {
            panic!("there is nothing to measure on")
        }
        let few = sampled(10);
        let unknown = Hessian::from_matrix(few.matrix().clone(), None).unwrap();
        let choice = choose(&[&unknown], never).unwrap();
        assert_eq!(choice.damping, Damping::Diag(0.01));
        assert_eq!(
            choice.notes[0].to_string(),
            "no samples to choose the damping by; used diag:0.01"
        );
        // The most careful of several.
        let choice = choose(&[&unknown, &few], never).unwrap();
        assert_eq!(
            choice.notes[0].to_string(),
            "no held-out samples to choose the damping by; used diag:1 for 10 samples"
        );
    }
}
