//! Saliencies: the cost of dropping a weight, estimated from the weight and its input
//! alone. The saliency of a block is the sum over its weights.

use crate::prune::Needs;

/// A row of [`SALIENCIES`].
#[derive(Debug)]
pub struct Saliency {
    /// Its name, which is also a method name.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// The input statistics it needs.
    pub needs: Needs,
    /// The saliency of a weight whose input column has H_jj.
    pub element: fn(f64, f64) -> f64,
}

/// Every saliency. Each is a pruning method without compensation, and a criterion for
/// dropping blocks in sparse training.
pub const SALIENCIES: &[Saliency] = &[
    // The square, so that a block's score is the square of its L2 norm.
    Saliency {
        name: "magnitude",
        summary: "drops the blocks with the smallest L2 norm; needs no data",
        needs: Needs::Weights,
        element: |w, _| w * w,
    },
    Saliency {
        name: "wanda",
        summary: "drops the blocks with the smallest sum of |w| times the norm of its input",
        needs: Needs::Norms,
        element: |w, h| w.abs() * h.sqrt(),
    },
    // One half of H_ee w_e^2 (the paper, section 5.2).
    Saliency {
        name: "s-obd",
        summary: "drops the blocks with the smallest 1/2 sum H_ee w_e^2; diagonal, without compensation",
        needs: Needs::Norms,
        element: |w, h| 0.5 * h * w * w,
    },
];
