//! Hooks on the inputs of a layer's linear layers.

use openwork::MatrixRef;

/// The four inputs in a layer that its seven linear layers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// Input of the q, k and v projections.
    Qkv,
    /// Input of the o projection.
    Out,
    /// Input of the gate and up projections.
    GateUp,
    /// Input of the down projection.
    Down,
}

impl Site {
    /// In the order of the forward pass.
    pub const ALL: [Site; 4] = [Site::Qkv, Site::Out, Site::GateUp, Site::Down];

    /// `qkv`, `out`, `gate_up` or `down`.
    pub fn name(self) -> &'static str {
        match self {
            Site::Qkv => "qkv",
            Site::Out => "out",
            Site::GateUp => "gate_up",
            Site::Down => "down",
        }
    }
}

/// Receives the inputs of a layer's linear layers, one window at a time.
pub trait Tap: Send {
    /// `inputs` is `[tokens of one window, width of the site]`.
    fn on_input(&mut self, site: Site, inputs: MatrixRef<'_>);
}

/// A tap that ignores all inputs.
#[derive(Clone, Copy, Debug)]
pub struct NoTap;

impl Tap for NoTap {
    fn on_input(&mut self, _: Site, _: MatrixRef<'_>) {}
}
