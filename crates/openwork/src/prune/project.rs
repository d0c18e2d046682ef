//! Repeated projection onto a pattern: keeps the blocks of largest norm.

use super::batches::{Positions, check_numbering};
use super::{Group, PruneError};
use crate::mask::Mask;
use crate::matrix::Matrix;
use crate::select::{PADDING, Scratch, Selector, keep_best};
use crate::spec::{Element, Spec};
use rayon::prelude::*;

/// Scopes per parallel task.
const CHUNK: usize = 1024;

/// Blocks per parallel task.
const MANY: usize = 1 << 16;

/// The blocks of a spec as index tables over the groups of a problem (up to 13 bytes
/// per weight), so that a projection evaluates no layout.
///
/// Weights are numbered group after group, row-major over the group's rows and
/// columns.
pub(crate) struct Projection<'s> {
    spec: &'s Spec,
    groups: &'s [Group],
    /// The weights of all blocks, concatenated.
    elements: Vec<u32>,
    /// Where each block begins in `elements`, and the end of the last.
    starts: Vec<u32>,
    /// The block of every weight.
    blocks: Vec<u32>,
    /// Whether each block is kept.
    stays: Vec<bool>,
}

impl<'s> Projection<'s> {
    /// Builds the tables; every block is kept.
    pub fn new(spec: &'s Spec, groups: &'s [Group]) -> Result<Self, PruneError> {
        check_numbering(spec, groups.iter().map(|group| group.rows.len()).sum())?;
        let (positions, selector) = (Positions::new(spec, groups), Selector::new(spec));
        let mut firsts = vec![0];
        for group in groups {
            firsts.push(firsts[firsts.len() - 1] + group.rows.len() * group.columns.len());
        }
        let weights = firsts[groups.len()];
        // The block and the number of each weight, in the order of the scopes.
        let chunks = (0..spec.scopes()).into_par_iter().step_by(CHUNK);
        let visited: Vec<Vec<[u32; 2]>> = chunks
            .map(|first| {
                let (mut visited, mut scratch) = (Vec::new(), Scratch::default());
                for scope in first..spec.scopes().min(first + CHUNK) {
                    selector.visit(scope, &mut scratch, |block, element| {
                        let block = scope * spec.blocks_per_scope() + block;
                        let position = positions.position(element);
                        let width = groups[position.group].columns.len();
                        let at = firsts[position.group] + position.row * width + position.column;
                        visited.push([block as u32, at as u32]);
                    });
                }
                visited
            })
            .collect();
        let mut blocks = vec![0; weights];
        let mut elements: Vec<u32> = Vec::with_capacity(weights);
        let mut starts = Vec::with_capacity(spec.blocks() + 1);
        for [block, at] in visited.into_iter().flatten() {
            // Blocks of padding in between begin and end here.
            starts.resize(block as usize + 1, elements.len() as u32);
            blocks[at as usize] = block;
            elements.push(at);
        }
        starts.resize(spec.blocks() + 1, elements.len() as u32);
        let stays = vec![true; spec.blocks()];
        Ok(Self { spec, groups, elements, starts, blocks, stays })
    }

    /// Keeps the blocks of largest norm of `p` in every scope.
    pub fn project(&mut self, p: &[f32]) {
        let (count, keep) = (self.spec.blocks_per_scope(), self.spec.keep());
        let Self { elements, starts, stays, .. } = self;
        stays.par_chunks_mut(CHUNK * count).enumerate().for_each(|(chunk, stays)| {
            let (mut scores, mut order) = (vec![0.0; count], Vec::new());
            for (scope, stays) in stays.chunks_exact_mut(count).enumerate() {
                let first = (chunk * CHUNK + scope) * count;
                let bounds = &starts[first..=first + count];
                for (score, bound) in scores.iter_mut().zip(bounds.windows(2)) {
                    let block = &elements[bound[0] as usize..bound[1] as usize];
                    *score = if block.is_empty() {
                        PADDING
                    } else {
                        block.iter().map(|&e| f64::from(p[e as usize])).map(|p| p * p).sum()
                    };
                }
                keep_best(&mut scores, keep, stays, &mut order);
            }
        });
    }

    /// Whether each block is kept.
    pub fn kept(&self) -> &[bool] {
        &self.stays
    }

    /// The block of every weight.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The number of kept weights, and the number of weights kept now or at `before`
    /// (an earlier [`Projection::kept`]) but not both.
    pub fn changed(&self, before: &[bool]) -> (usize, usize) {
        let places = (self.stays.par_chunks(MANY).zip(before.par_chunks(MANY))).enumerate();
        let counted = places.map(|(part, (now, then))| {
            let (mut kept, mut changed) = (0, 0);
            let bounds = self.starts[part * MANY..].windows(2);
            for ((&now, &then), bound) in now.iter().zip(then).zip(bounds) {
                let size = (bound[1] - bound[0]) as usize;
                kept += if now { size } else { 0 };
                changed += if now == then { 0 } else { size };
            }
            (kept, changed)
        });
        counted.reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// For each group, 1 where a weight is kept and 0 where it is dropped.
    pub fn keeps(&self) -> Vec<Matrix> {
        let mut first = 0;
        self.groups
            .iter()
            .map(|group| {
                let (rows, columns) = (group.rows.len(), group.columns.len());
                let blocks = &self.blocks[first..first + rows * columns];
                first += blocks.len();
                let stays = blocks.iter().map(|&block| self.stays[block as usize]);
                Matrix::from_vec(rows, columns, stays.map(|s| f32::from(u8::from(s))).collect())
            })
            .collect()
    }

    /// The kept weights as a mask.
    pub fn mask(&self) -> Mask {
        let mut mask = Mask::full(self.spec);
        for (group, keep) in self.groups.iter().zip(self.keeps()) {
            let cols = self.spec.tensors()[group.tensor].matrix().1;
            for (i, &row) in group.rows.iter().enumerate() {
                for (&column, &keep) in group.columns.iter().zip(keep.row(i)) {
                    if keep == 0.0 {
                        let offset = row * cols + column as usize;
                        mask.set(Element { tensor: group.tensor, offset }, false);
                    }
                }
            }
        }
        mask
    }
}
