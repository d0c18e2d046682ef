//! Fast visits of the elements of many blocks: the layouts of blocks and scopes expanded
//! into lists of offsets, if they are short enough.

use super::domain::Space;
use super::{Element, Spec};

/// The maximum length of an expanded layout.
const MAX_LIST: usize = 1 << 22;

/// Visits the elements of blocks without a division or an allocation per element.
pub(crate) struct Walker<'a> {
    spec: &'a Spec,
    /// For each tensor, the offsets of a block's elements and of a scope's blocks; `None` if
    /// a list would be too long.
    lists: Option<Vec<(Vec<usize>, Vec<usize>)>>,
}

impl<'a> Walker<'a> {
    pub fn new(spec: &'a Spec) -> Self {
        let short =
            spec.tensors().iter().all(|t| t.element().len().max(t.block().len()) <= MAX_LIST);
        let lists = short.then(|| {
            spec.tensors()
                .iter()
                .map(|t| (t.element().iter().collect(), t.block().iter().collect()))
                .collect()
        });
        Self { spec, lists }
    }

    /// Sets `bases` to the first offset of a scope in each tensor's view.
    pub fn enter(&self, scope: usize, bases: &mut Vec<usize>) {
        bases.clear();
        bases.extend(self.spec.tensors().iter().map(|tensor| tensor.scope().at(scope)));
    }

    /// Visits the elements of a block of the scope that was entered.
    pub fn visit(
        &self,
        scope: usize,
        bases: &[usize],
        block: usize,
        mut visit: impl FnMut(Element),
    ) {
        let Some(lists) = &self.lists else {
            self.spec.elements(scope, block).for_each(visit);
            return;
        };
        let (tensors, block) = self.spec.parts(block);
        for t in tensors {
            let (elements, blocks) = &lists[t];
            let base = bases[t] + blocks[block];
            match &self.spec.tensors()[t].space {
                Space::Direct { first } => {
                    elements
                        .iter()
                        .for_each(|step| visit(Element { tensor: t, offset: first + base + step }));
                }
                space => {
                    let places = elements.iter().filter_map(|step| space.place(base + step));
                    places.for_each(|offset| visit(Element { tensor: t, offset }));
                }
            }
        }
    }
}
