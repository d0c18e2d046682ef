//! Couplings: several tensors under one decision. A single tensor is a coupling of one.

use super::domain::Space;
use super::env::{Env, shape_text};
use super::error::SpecError;
use super::grid::{Grid, permuted};
use super::keep::keep;
use super::pattern::{Keep, Member, Tuple};
use super::profile::{extents, grid_error};
use super::view::row_major;
use super::{Coupling, Spec, Tensor};
use crate::layout::{IntTuple, Layout};

/// One tensor with its domain, view and blocks, before scopes.
pub(crate) struct BlockedTensor {
    pub name: String,
    pub dims: Vec<usize>,
    pub size: usize,
    pub space: Space,
    pub view: Layout,
    pub blocks: Grid,
    /// The view as it was written, if it is a composition.
    pub composition: Option<String>,
    /// The names of the view's axes.
    pub axes: Vec<String>,
}

impl BlockedTensor {
    /// The layout of the blocks' first positions.
    fn grid(&self) -> &Layout {
        self.blocks.division()[1]
    }

    /// The shape of the grid of blocks, nested like the view's.
    fn grid_shape(&self) -> IntTuple {
        self.view.shape().with_leaves(&mut self.grid().shape().leaves().into_iter())
    }

    fn rank(&self) -> usize {
        self.blocks.counts().len()
    }
}

/// A spec over one tensor.
pub(crate) fn one(
    part: BlockedTensor,
    scope: Option<&Tuple>,
    kept: Option<&Keep>,
    env: &Env<'_>,
) -> Result<Spec, SpecError> {
    coupled_blocks(vec![part], &[None], scope, kept, env)
}

/// Couples blocks: those at the same position of a common grid are one block.
pub(crate) fn blocks(
    parts: Vec<BlockedTensor>,
    members: &[&Member],
    scope: Option<&Tuple>,
    kept: Option<&Keep>,
    env: &Env<'_>,
) -> Result<Spec, SpecError> {
    for member in members {
        // The parser assigns `scope` and `keep` to the coupling; those of presets are removed.
        debug_assert!(member.one.clauses.scope.is_none() && member.one.clauses.keep.is_none());
    }
    let members: Vec<_> = members.iter().map(|member| Some(*member)).collect();
    coupled_blocks(parts, &members, scope, kept, env)
}

fn coupled_blocks(
    parts: Vec<BlockedTensor>,
    members: &[Option<&Member>],
    scope: Option<&Tuple>,
    kept: Option<&Keep>,
    env: &Env<'_>,
) -> Result<Spec, SpecError> {
    let perms = permutations(&parts, members, env)?;
    let common = permuted_counts(parts[0].blocks.counts(), &perms[0]);
    for ((part, perm), member) in parts.iter().zip(&perms).zip(members) {
        let counts = permuted_counts(part.blocks.counts(), perm);
        if counts != common {
            return Err(grids_differ(
                &parts[0].name,
                &common,
                &part.name,
                &counts,
                "grid of blocks",
                member,
                env,
            ));
        }
    }
    let tile = match scope {
        None => common.clone(),
        Some(scope) => {
            let identity = perms[0].iter().enumerate().all(|(k, &axis)| k == axis);
            let shape = match identity {
                true => parts[0].grid_shape(),
                false => common.iter().copied().collect(),
            };
            extents(scope, &shape, true, "scope", env)?
        }
    };
    let divided = |grid: &Layout| {
        Grid::new(grid, &tile)
            .map_err(|error| grid_error(&error, "scope", "the grid of blocks", scope, &tile, env))
    };
    let index = divided(&row_major(&common))?;
    let keep = keep(kept, index.tile_size(), env)?;
    let tensors = parts
        .into_iter()
        .zip(perms)
        .map(|(part, perm)| {
            let scopes = divided(&permuted(part.grid(), &perm))?;
            Ok(tensor(part, perm, scopes, index.clone()))
        })
        .collect::<Result<_, _>>()?;
    Spec::new(Coupling::Blocks, tensors, index.counts().to_vec(), common, index.tile_size(), keep)
}

/// Couples scopes: those at the same position of a common grid are one scope.
pub(crate) fn scopes(
    parts: Vec<BlockedTensor>,
    members: &[&Member],
    kept: Option<&Keep>,
    envs: &[Env<'_>],
) -> Result<Spec, SpecError> {
    let optional: Vec<_> = members.iter().map(|member| Some(*member)).collect();
    let perms = permutations(&parts, &optional, &envs[0])?;
    let mut grids = Vec::with_capacity(parts.len());
    for ((part, member), env) in parts.iter().zip(members).zip(envs) {
        let counts = part.blocks.counts();
        let scope = member.one.clauses.scope.as_ref();
        let tile = match scope {
            None => counts.to_vec(),
            Some(scope) => extents(scope, &part.grid_shape(), true, "scope", env)?,
        };
        let divided = |grid: &Layout| {
            Grid::new(grid, &tile).map_err(|error| {
                grid_error(&error, "scope", "the grid of blocks", scope, &tile, env)
            })
        };
        grids.push((divided(part.grid())?, divided(&row_major(counts))?));
    }
    let common = permuted_counts(grids[0].0.counts(), &perms[0]);
    for (i, ((grid, _), perm)) in grids.iter().zip(&perms).enumerate() {
        let counts = permuted_counts(grid.counts(), perm);
        if counts != common {
            let (first, this) = (&parts[0].name, &parts[i].name);
            return Err(grids_differ(
                first,
                &common,
                this,
                &counts,
                "grid of scopes",
                &optional[i],
                &envs[i],
            ));
        }
    }
    let blocks_per_scope = grids.iter().map(|(grid, _)| grid.tile_size()).sum();
    let keep = keep(kept, blocks_per_scope, &envs[0])?;
    let tensors = parts
        .into_iter()
        .zip(perms)
        .zip(grids)
        .map(|((part, perm), (scopes, index))| {
            let (scopes, index) = (scopes.permuted(&perm), index.permuted(&perm));
            tensor(part, perm, scopes, index)
        })
        .collect();
    Spec::new(Coupling::Scopes, tensors, common.clone(), common, blocks_per_scope, keep)
}

/// A tensor with the division of its grid of blocks into scopes, and that of the
/// blocks' row-major indices.
fn tensor(part: BlockedTensor, perm: Vec<usize>, scopes: Grid, index: Grid) -> Tensor {
    let BlockedTensor { name, dims, size, space, view, blocks, composition, axes } = part;
    let padded = space.has_padding(view.size() as usize);
    let weight = 1.0;
    Tensor {
        name,
        dims,
        size,
        space,
        view,
        blocks,
        perm,
        scopes,
        index,
        padded,
        weight,
        composition,
        axes,
    }
}

/// Each member's permutation, checked; the identity where none is given.
fn permutations(
    parts: &[BlockedTensor],
    members: &[Option<&Member>],
    env: &Env<'_>,
) -> Result<Vec<Vec<usize>>, SpecError> {
    let mut perms = Vec::with_capacity(parts.len());
    for (part, member) in parts.iter().zip(members) {
        let rank = part.rank();
        let perm = match member.and_then(|member| member.perm.as_ref()) {
            None => (0..rank).collect(),
            Some((perm, at)) => {
                let mut sorted = perm.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..rank) {
                    let what = format!(
                        "perm {} is not a permutation of the axes of the grid of `{}`",
                        shape_text(perm),
                        part.name
                    );
                    let all: Vec<_> = (0..rank).collect();
                    let detail =
                        format!("the grid has {rank} axes; use each of {} once", shape_text(&all));
                    return Err(env.error(at.0, what, detail));
                }
                perm.clone()
            }
        };
        if rank != parts[0].rank() {
            let what =
                format!("the grids of `{}` and `{}` differ in rank", parts[0].name, part.name);
            let detail = format!(
                "{} against {}",
                shape_text(parts[0].blocks.counts()),
                shape_text(part.blocks.counts())
            );
            return Err(env.error(member.map_or(0, |member| member.at.0), what, detail));
        }
        perms.push(perm);
    }
    Ok(perms)
}

fn grids_differ(
    first: &str,
    common: &[usize],
    name: &str,
    counts: &[usize],
    grid: &str,
    member: &Option<&Member>,
    env: &Env<'_>,
) -> SpecError {
    let at = member.map_or(0, |member| member.at.0);
    let what = format!("`{first}` and `{name}` cannot be coupled");
    let detail = format!(
        "the {grid} of `{first}` is {}, that of `{name}` is {} after its permutation",
        shape_text(common),
        shape_text(counts)
    );
    env.error(at, what, detail)
}

/// Axis `k` of the result is axis `perm[k]` of `values`.
fn permuted_counts(values: &[usize], perm: &[usize]) -> Vec<usize> {
    perm.iter().map(|&axis| values[axis]).collect()
}
