//! The order in which a packed tensor stores its kept weights, known before it is packed.

use super::kept::Kept;
use super::{Layout, Packed, Shape, layout};
use crate::choice::kept_blocks;
use crate::mask::{Choice, Mask};
use crate::spec::Spec;

/// The packed order of a tensor's kept weights. Groups of codes are consecutive weights of
/// one strip; the last group of a strip may be shorter.
#[derive(Clone, Debug)]
pub struct PackedOrder {
    shape: Shape,
    index: Vec<u8>,
    rows: usize,
    cols: usize,
}

impl PackedOrder {
    /// The order for tensor `tensor` of a spec and a mask that conforms to it.
    ///
    /// # Panics
    ///
    /// If there is no such tensor, or the mask does not conform.
    pub fn new(spec: &Spec, tensor: usize, mask: &Mask) -> Self {
        let choice = match spec.has_levels() {
            true => mask.find_choice(spec).expect("a mask that conforms"),
            false => Choice::from_levels(kept_blocks(spec, mask), [None, None]),
        };
        Self::of_choice(spec, tensor, &choice)
    }

    /// The same for the blocks that are kept.
    pub(super) fn of_choice(spec: &Spec, tensor: usize, choice: &Choice) -> Self {
        let (rows, cols) = spec.tensors()[tensor].matrix();
        let mut shape = Packed::plan(spec, tensor).1;
        let index = layout!(&shape, l => l.encode(&Kept { spec, tensor, choice }));
        shape.accept(&index);
        Self { shape, index, rows, cols }
    }

    /// Rows of the tensor.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows of a strip; the last strip may have fewer.
    pub fn strip_rows(&self) -> usize {
        layout!(&self.shape, l => l.strip())
    }

    /// Number of strips.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(self.strip_rows())
    }

    /// The row-major offsets of a strip's kept weights, from the strip's first row on.
    ///
    /// # Panics
    ///
    /// If there is no such strip.
    pub fn strip(&self, strip: usize) -> Vec<usize> {
        let strips = strip..strip + 1;
        let mut offsets = Vec::new();
        layout!(&self.shape, l => {
            let index = &self.index[l.index_of(strips.clone())];
            l.part(strips).each(index, |offset| offsets.push(offset));
        });
        let rows = self.strip_rows().min(self.rows - strip * self.strip_rows());
        debug_assert!(offsets.iter().all(|&offset| offset < rows * self.cols));
        offsets
    }
}
