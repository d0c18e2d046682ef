//! Methods that drop the blocks of lowest score and leave the other weights
//! unchanged: magnitude, Wanda and S-OBD.

use super::problem::loss_weight;
use super::{Build, MethodInfo, Monitor, Needs, Problem, PruneError, Pruner, Solution};
use crate::hessian::Damping;
use crate::saliency::{SALIENCIES, Saliency};
use crate::select::Selector;

/// A saliency as a method.
struct Score(&'static Saliency);

/// `magnitude`.
pub const MAGNITUDE: MethodInfo = method(&SALIENCIES[0], |_| Ok(Box::new(Score(&SALIENCIES[0]))));
/// `wanda`.
pub const WANDA: MethodInfo = method(&SALIENCIES[1], |_| Ok(Box::new(Score(&SALIENCIES[1]))));
/// `s-obd`.
pub const S_OBD: MethodInfo = method(&SALIENCIES[2], |_| Ok(Box::new(Score(&SALIENCIES[2]))));

const fn method(
    saliency: &'static Saliency,
    build: fn(&super::Settings) -> Result<Box<dyn Pruner>, String>,
) -> MethodInfo {
    MethodInfo {
        name: saliency.name,
        summary: saliency.summary,
        options: &[],
        damping: Damping::Auto,
        build: Build::Base(build),
    }
}

impl Pruner for Score {
    fn needs(&self) -> Needs {
        self.0.needs
    }

    fn prune(&self, problem: &Problem<'_>, monitor: &dyn Monitor) -> Result<Solution, PruneError> {
        let diagonals: Vec<Vec<f64>> = (0..problem.weights.len())
            .map(|t| match problem.hessian(t) {
                Some(h) => h.diagonal(),
                // Only magnitude runs without statistics, and it ignores them.
                None => vec![1.0; problem.weights[t].cols()],
            })
            .collect();
        let mask = Selector::new(problem.spec).select(|element| {
            let w = problem.weights[element.tensor].values().at(element.offset);
            let diagonal = &diagonals[element.tensor];
            let h = diagonal[element.offset % diagonal.len()];
            loss_weight(&problem.spec.tensors()[element.tensor]) * (self.0.element)(f64::from(w), h)
        });
        let mut weights = problem.copies();
        for (t, w) in weights.iter_mut().enumerate() {
            mask.apply(t, w.data_mut());
        }
        monitor.progress(1.0);
        Ok(Solution { mask, weights, notes: Vec::new() })
    }
}
