//! Backward passes: gradients of a layer's parameters and inputs, and of losses
//! on its output, for training a pruned model with its masks in place.
//!
//! ```text
//! forward_saving   a layer on one window, keeping what its backward pass needs   (layer.rs)
//! backward         from the gradient of its output to that of its input
//! token_loss       distance of a layer's output from a reference's               (loss.rs)
//! Head::backward   distillation and cross-entropy                                (head.rs)
//! ```
//!
//! Gradients of one window are sums in a fixed order, so they have the same
//! bytes at any number of threads; those of several windows are computed apart
//! and added in the order of the windows.

mod attention;
mod delta_net;
mod delta_rule;
mod experts;
mod head;
mod layer;
mod loss;
mod mixer;
mod norm;
mod per_layer;
mod sharing;

pub use head::{HeadGradients, Objective, Reference};
pub use layer::{Activations, Interior, LayerGradients};
pub use loss::token_loss;
