//! Hooks on the inputs of a layer's linear layers.

use super::linear::Site;
use openwork::MatrixRef;

/// Receives the inputs of a layer's linear layers, one window at a time.
pub trait Tap: Send {
    /// `inputs` is `[tokens of one window, width of the site]`; of an expert, the tokens
    /// routed to it.
    fn on_input(&mut self, site: Site, inputs: MatrixRef<'_>);

    /// Whether it uses the inputs of a site; others need not be computed.
    fn wants(&self, _: Site) -> bool {
        true
    }
}

/// A tap that ignores all inputs.
#[derive(Clone, Copy, Debug)]
pub struct NoTap;

impl Tap for NoTap {
    fn on_input(&mut self, _: Site, _: MatrixRef<'_>) {}

    fn wants(&self, _: Site) -> bool {
        false
    }
}
