//! A slow twin of the spec: what a pattern means, worked out coordinate by
//! coordinate from the definitions, with nothing of the library in it.

use std::collections::BTreeSet;

/// Part of a tensor.
#[derive(Clone, Debug)]
pub enum Domain {
    Whole,
    Box { offset: Vec<usize>, extent: Vec<usize> },
    Layout { shape: Vec<usize>, stride: Vec<usize>, start: usize },
    Union(Vec<Domain>),
    Not(Box<Domain>),
}

/// How a tensor's domain is looked at.
#[derive(Clone, Debug)]
pub enum View {
    Own,
    /// Each axis of the domain split into parts, slowest first; then which part,
    /// counted over all axes, each axis of the view is.
    Axes {
        parts: Vec<Vec<usize>>,
        order: Vec<usize>,
    },
    Layout {
        shape: Vec<usize>,
        stride: Vec<usize>,
    },
}

/// One tensor: everything but the coupling's own scope.
#[derive(Clone, Debug)]
pub struct Part {
    pub dims: Vec<usize>,
    pub domain: Domain,
    /// Multiples that the domain's axes are rounded up to.
    pub pad: Option<Vec<usize>>,
    pub view: View,
    pub block: Vec<usize>,
    pub perm: Vec<usize>,
    /// For coupled scopes: blocks of a scope along the tensor's own grid.
    pub scope: Vec<usize>,
}

/// A block: its row-major index (in the common grid, or its tensor's own where
/// scopes are coupled), its tensor where scopes are coupled, its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub tensor: Option<usize>,
    pub index: usize,
    pub elements: Vec<(usize, usize)>,
}

/// All coordinates of a shape, row-major.
pub fn coordinates(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &extent in shape {
        all = all
            .into_iter()
            .flat_map(|c: Vec<usize>| {
                (0..extent).map(move |i| c.iter().copied().chain([i]).collect())
            })
            .collect();
    }
    all
}

/// The row-major index of a coordinate.
pub fn index(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |index, (&i, &extent)| index * extent + i)
}

pub fn row_major(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

fn dot(a: &[usize], b: &[usize]) -> usize {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Domain {
    /// Its own axes and the offset at each coordinate of them, row-major.
    pub fn positions(&self, dims: &[usize]) -> (Vec<usize>, Vec<usize>) {
        match self {
            Self::Whole => (dims.to_vec(), (0..dims.iter().product()).collect()),
            Self::Box { offset, extent } => {
                let at = |c: Vec<usize>| {
                    let moved: Vec<_> = c.iter().zip(offset).map(|(c, o)| c + o).collect();
                    index(&moved, dims)
                };
                (extent.clone(), coordinates(extent).into_iter().map(at).collect())
            }
            Self::Layout { shape, stride, start } => {
                let at = |c: Vec<usize>| start + dot(&c, stride);
                (shape.clone(), coordinates(shape).into_iter().map(at).collect())
            }
            Self::Union(..) | Self::Not(_) => {
                let set: Vec<usize> = self.set(dims).into_iter().collect();
                (vec![set.len()], set)
            }
        }
    }

    pub fn set(&self, dims: &[usize]) -> BTreeSet<usize> {
        match self {
            Self::Union(parts) => parts.iter().flat_map(|part| part.set(dims)).collect(),
            Self::Not(inner) => {
                let inner = inner.set(dims);
                (0..dims.iter().product()).filter(|offset| !inner.contains(offset)).collect()
            }
            _ => self.positions(dims).1.into_iter().collect(),
        }
    }
}

impl Part {
    /// The domain's axes after padding.
    pub fn padded(&self) -> Vec<usize> {
        let extents = self.domain.positions(&self.dims).0;
        match &self.pad {
            None => extents,
            Some(pad) => {
                extents.iter().zip(pad).map(|(&extent, &by)| extent.div_ceil(by) * by).collect()
            }
        }
    }

    /// The view's extents and the offset at each coordinate, row-major; nothing
    /// at a padded position.
    pub fn viewed(&self) -> (Vec<usize>, Vec<Option<usize>>) {
        let (real, offsets) = self.domain.positions(&self.dims);
        let padded = self.padded();
        let place = |c: &[usize]| {
            let inside = c.iter().zip(&real).all(|(c, real)| c < real);
            inside.then(|| offsets[index(c, &real)])
        };
        match &self.view {
            View::Own => {
                let at = coordinates(&padded).iter().map(|c| place(c)).collect();
                (padded, at)
            }
            View::Axes { parts, order } => {
                let sizes: Vec<usize> = parts.iter().flatten().copied().collect();
                let shape: Vec<usize> = order.iter().map(|&part| sizes[part]).collect();
                let at = coordinates(&shape)
                    .into_iter()
                    .map(|c| {
                        let mut digits = vec![0; sizes.len()];
                        for (axis, &part) in order.iter().enumerate() {
                            digits[part] = c[axis];
                        }
                        let mut digits = digits.into_iter();
                        let own: Vec<usize> = parts
                            .iter()
                            .map(|group| {
                                group.iter().fold(0, |at, size| at * size + digits.next().unwrap())
                            })
                            .collect();
                        place(&own)
                    })
                    .collect();
                (shape, at)
            }
            View::Layout { shape, stride } => {
                let first = *self.domain.set(&self.dims).first().unwrap();
                let unpadded = padded == real;
                let at = coordinates(shape)
                    .into_iter()
                    .map(|c| {
                        let v = dot(&c, stride);
                        if unpadded {
                            return Some(first + v);
                        }
                        // Strides count row-major over the padded axes.
                        let mut left = v;
                        let mut own = vec![0; padded.len()];
                        for axis in (0..padded.len()).rev() {
                            own[axis] = left % padded[axis];
                            left /= padded[axis];
                        }
                        place(&own)
                    })
                    .collect();
                (shape.clone(), at)
            }
        }
    }

    pub fn grid(&self) -> Vec<usize> {
        self.viewed().0.iter().zip(&self.block).map(|(s, b)| s / b).collect()
    }

    /// The offsets of every block, row-major over the tensor's own grid.
    fn blocks(&self) -> Vec<Vec<usize>> {
        let (shape, offsets) = self.viewed();
        let grid = self.grid();
        let mut blocks = vec![Vec::new(); grid.iter().product()];
        for (c, offset) in coordinates(&shape).iter().zip(offsets) {
            let block: Vec<usize> = c.iter().zip(&self.block).map(|(c, b)| c / b).collect();
            blocks[index(&block, &grid)].extend(offset);
        }
        blocks
    }

    /// The coordinate on the tensor's own grid of a place on the common one.
    fn own(&self, common: &[usize]) -> Vec<usize> {
        let mut own = vec![0; common.len()];
        for (axis, &at) in common.iter().enumerate() {
            own[self.perm[axis]] = at;
        }
        own
    }
}

pub fn permuted(values: &[usize], perm: &[usize]) -> Vec<usize> {
    perm.iter().map(|&axis| values[axis]).collect()
}

/// Coupled blocks with scopes of `tile` common blocks: the scopes, row-major.
pub fn coupled_blocks(parts: &[Part], tile: &[usize]) -> Vec<Vec<Block>> {
    let common = permuted(&parts[0].grid(), &parts[0].perm);
    let counts: Vec<usize> = common.iter().zip(tile).map(|(c, t)| c / t).collect();
    let mut scopes = vec![Vec::new(); counts.iter().product()];
    let blocks: Vec<_> = parts.iter().map(Part::blocks).collect();
    for place in coordinates(&common) {
        let scope: Vec<usize> = place.iter().zip(tile).map(|(p, t)| p / t).collect();
        let elements = parts
            .iter()
            .enumerate()
            .flat_map(|(t, part)| {
                let own = index(&part.own(&place), &part.grid());
                blocks[t][own].iter().map(move |&offset| (t, offset))
            })
            .collect();
        let block = Block { tensor: None, index: index(&place, &common), elements };
        scopes[index(&scope, &counts)].push(block);
    }
    scopes
}

/// Coupled scopes, each part having its own tile: the scopes, row-major.
pub fn coupled_scopes(parts: &[Part]) -> Vec<Vec<Block>> {
    let own_counts = |part: &Part| -> Vec<usize> {
        part.grid().iter().zip(&part.scope).map(|(g, t)| g / t).collect()
    };
    let common = permuted(&own_counts(&parts[0]), &parts[0].perm);
    let blocks: Vec<_> = parts.iter().map(Part::blocks).collect();
    let mut scopes = Vec::new();
    for place in coordinates(&common) {
        let mut scope = Vec::new();
        for (t, part) in parts.iter().enumerate() {
            let here = part.own(&place);
            for block in coordinates(&part.grid()) {
                let inside: Vec<usize> =
                    block.iter().zip(&part.scope).map(|(b, s)| b / s).collect();
                if inside == here {
                    let index = index(&block, &part.grid());
                    let elements = blocks[t][index].iter().map(|&offset| (t, offset)).collect();
                    scope.push(Block { tensor: Some(t), index, elements });
                }
            }
        }
        scopes.push(scope);
    }
    scopes
}
