//! Locators: the scope and block of many elements of one tensor, without an allocation for
//! each.

use super::domain::Space;
use super::{Element, Spec};
use crate::layout::StridedLayout;

/// Finds the scope and block of elements, as [`Spec::locate`] does, with tables computed
/// once.
///
/// ```
/// use openwork::{Pattern, spec::Locator};
/// let spec = "2:4@8".parse::<Pattern>().unwrap().bind(&[2, 32]).unwrap();
/// let locator = Locator::new(&spec, 0);
/// assert_eq!((locator.locate(1), locator.locate(9)), (Some((0, 1)), Some((0, 1))));
/// ```
#[derive(Debug)]
pub struct Locator<'a> {
    spec: &'a Spec,
    tensor: usize,
    /// The axes of scopes, blocks and elements by falling stride; `None` if strides
    /// interleave, so that digits have to be searched for.
    digits: Option<Vec<Digit>>,
    /// The number of the tensor's first block in a scope.
    first_block: usize,
}

/// One axis: its entries are `stride` apart, and a step along it adds to the index of the
/// scope and to that of the block.
#[derive(Clone, Copy, Debug)]
struct Digit {
    stride: usize,
    extent: usize,
    scope: usize,
    block: usize,
}

impl<'a> Locator<'a> {
    /// For tensor `tensor` of a spec.
    ///
    /// # Panics
    ///
    /// If there is no such tensor.
    pub fn new(spec: &'a Spec, tensor: usize) -> Self {
        let this = &spec.tensors()[tensor];
        let mut digits = Vec::new();
        let mut add = |layout: &StridedLayout, scopes: bool, blocks: bool| {
            let mut step = 1;
            for (&extent, &stride) in layout.shape().iter().zip(layout.stride()).rev() {
                let (scope, block) = (step * usize::from(scopes), step * usize::from(blocks));
                digits.extend((extent > 1).then_some(Digit { stride, extent, scope, block }));
                step *= extent;
            }
        };
        add(this.scope(), true, false);
        add(this.block(), false, true);
        add(this.element(), false, false);
        digits.sort_by_key(|digit| digit.stride);
        // Each stride exceeds what smaller ones add up to: digits follow by division.
        let mut reach = 0;
        let nested = digits.iter().all(|digit| {
            let above = digit.stride > reach;
            reach += (digit.extent - 1) * digit.stride;
            above
        });
        digits.reverse();
        let first_block = spec.own_blocks(tensor).start;
        Self { spec, tensor, digits: nested.then_some(digits), first_block }
    }

    /// The scope of the element at an offset, and its block there; `None` outside the domain.
    pub fn locate(&self, offset: usize) -> Option<(usize, usize)> {
        let Some(digits) = &self.digits else {
            return self.spec.locate(Element { tensor: self.tensor, offset });
        };
        let mut v = match &self.spec.tensors()[self.tensor].space {
            Space::Direct { first } => offset.checked_sub(*first)?,
            space => space.unplace(offset)?,
        };
        let (mut scope, mut block) = (0, self.first_block);
        for digit in digits {
            let at = v / digit.stride;
            if at >= digit.extent {
                return None;
            }
            v -= at * digit.stride;
            scope += at * digit.scope;
            block += at * digit.block;
        }
        (v == 0).then_some((scope, block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    #[test]
    fn a_locator_finds_what_the_spec_locates() {
        for (text, dims) in [
            ("2:4@8", &[4, 32][..]),
            ("rows16", &[32, 32]),
            ("filter", &[4, 2, 3, 3]),
            ("view m k -> k m scope (1,4) keep 2", &[8, 6]),
            ("pad (1,4) scope (1,4) keep 2", &[3, 10]),
            ("in (1,2)+(2,5) pad (1,4) scope (1,4) keep 2", &[4, 10]),
            ("in (4,3):(2,8)@1 scope (4,1) keep 2", &[4, 8]),
            ("in (2,3):(3,2) scope (2,1) keep 1", &[2, 8]),
            ("in ~((0,0)+(2,2) | (2,2)+(2,2)) scope (4) keep 2", &[4, 4]),
        ] {
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let locator = Locator::new(&spec, 0);
            for offset in 0..spec.tensors()[0].size() + 3 {
                let expected = spec.locate(Element { tensor: 0, offset });
                assert_eq!(locator.locate(offset), expected, "{text} at {offset}");
            }
        }
        let coupled: Pattern =
            "scopes a: block (1,2) scope (1,_) & b: block (1,4) scope (1,_) keep 50%"
                .parse()
                .unwrap();
        let spec = coupled.bind_all(&[("a", &[6, 12]), ("b", &[6, 16])]).unwrap();
        for tensor in 0..2 {
            let locator = Locator::new(&spec, tensor);
            for offset in 0..spec.tensors()[tensor].size() {
                assert_eq!(locator.locate(offset), spec.locate(Element { tensor, offset }));
            }
        }
    }
}
