//! Several tensors under one decision. One tensor is a coupling of one.

use super::domain::Space;
use super::env::{Env, shape_text};
use super::error::SpecError;
use super::grid::Grid;
use super::keep::keep;
use super::pattern::{Keep, Member, Tuple};
use super::profile::{Profile, grid_error};
use super::steps::{Steps, row_major};
use super::{Coupling, Spec, Tensor};

/// One tensor's domain, view and blocks, before scopes.
pub(crate) struct BlockedTensor {
    pub name: String,
    pub dims: Vec<usize>,
    pub size: usize,
    pub space: Space,
    pub view: Steps,
    pub profile: Profile,
    pub blocks: Grid,
}

impl BlockedTensor {
    /// The distance in the view between neighbouring blocks along each grid axis.
    fn block_stride(&self) -> Vec<usize> {
        self.view.stride().iter().zip(self.blocks.tile()).map(|(d, b)| d * b).collect()
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

/// Blocks at the same place of a common grid are one block.
pub(crate) fn blocks(
    parts: Vec<BlockedTensor>,
    members: &[&Member],
    scope: Option<&Tuple>,
    kept: Option<&Keep>,
    env: &Env<'_>,
) -> Result<Spec, SpecError> {
    for member in members {
        // The parser leaves `scope` and `keep` to the coupling; a preset's are taken off.
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
    let common = permuted(parts[0].blocks.counts(), &perms[0]);
    for ((part, perm), member) in parts.iter().zip(&perms).zip(members) {
        let counts = permuted(part.blocks.counts(), perm);
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
            parts[0].profile.permuted(&perms[0]).extents(scope, &common, true, "scope", env)?
        }
    };
    let scopes = Grid::new(&common, &tile)
        .map_err(|error| grid_error(&error, "scope", "the grid of blocks", scope, &tile, env))?;
    let keep = keep(kept, scopes.tile_size(), env)?;
    let index = row_major(&common);
    let tensors = parts
        .into_iter()
        .zip(perms)
        .map(|(part, perm)| {
            let view = permuted(&part.block_stride(), &perm);
            let axes = Axes { tile: tile.clone(), view, index: index.clone() };
            tensor(part, perm, &axes, &axes, scopes.counts())
        })
        .collect();
    Spec::new(Coupling::Blocks, tensors, scopes.counts().to_vec(), common, scopes.tile_size(), keep)
}

/// Scopes at the same place of a common grid are one scope.
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
            Some(scope) => part.profile.extents(scope, counts, true, "scope", env)?,
        };
        let grid = Grid::new(counts, &tile).map_err(|error| {
            grid_error(&error, "scope", "the grid of blocks", scope, &tile, env)
        })?;
        grids.push(grid);
    }
    let common = permuted(grids[0].counts(), &perms[0]);
    for (i, (grid, perm)) in grids.iter().zip(&perms).enumerate() {
        let counts = permuted(grid.counts(), perm);
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
    let blocks_per_scope = grids.iter().map(Grid::tile_size).sum();
    let keep = keep(kept, blocks_per_scope, &envs[0])?;
    let tensors = parts
        .into_iter()
        .zip(perms)
        .zip(&grids)
        .map(|((part, perm), grid)| {
            let index = row_major(part.blocks.counts());
            let own = Axes { tile: grid.tile().to_vec(), view: part.block_stride(), index };
            let turned = own.permuted(&perm);
            tensor(part, perm, &own, &turned, &common)
        })
        .collect();
    Spec::new(Coupling::Scopes, tensors, common.clone(), common, blocks_per_scope, keep)
}

/// Along each axis of a grid: the blocks of a scope, and what a step of one
/// block adds to the view's offset and to the row-major index of the block.
struct Axes {
    tile: Vec<usize>,
    view: Vec<usize>,
    index: Vec<usize>,
}

impl Axes {
    fn permuted(&self, perm: &[usize]) -> Self {
        let turn = |values: &[usize]| permuted(values, perm);
        Self { tile: turn(&self.tile), view: turn(&self.view), index: turn(&self.index) }
    }
}

/// Puts the short tables of one tensor together: blocks of a scope lie along
/// the axes `inner`, scopes `counts` times along the axes `outer`.
fn tensor(
    part: BlockedTensor,
    perm: Vec<usize>,
    inner: &Axes,
    outer: &Axes,
    counts: &[usize],
) -> Tensor {
    let scaled = |stride: &[usize]| stride.iter().zip(&outer.tile).map(|(d, t)| d * t).collect();
    let element = Steps::new(part.blocks.tile().to_vec(), part.view.stride().to_vec());
    let block = Steps::new(inner.tile.clone(), inner.view.clone());
    let scope = Steps::new(counts.to_vec(), scaled(&outer.view));
    let block_index = Steps::new(inner.tile.clone(), inner.index.clone());
    let scope_index = Steps::new(counts.to_vec(), scaled(&outer.index));
    let padded = part.space.has_padding(part.view.len());
    Tensor {
        name: part.name,
        dims: part.dims,
        size: part.size,
        space: part.space,
        view: part.view,
        blocks: part.blocks,
        perm,
        scope_tile: inner.tile.clone(),
        element,
        block,
        scope,
        block_index,
        scope_index,
        padded,
        weight: 1.0,
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
                        "perm {} is no permutation of the grid of `{}`",
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
fn permuted(values: &[usize], perm: &[usize]) -> Vec<usize> {
    perm.iter().map(|&axis| values[axis]).collect()
}
