//! Edits of a pattern's text: one axis moved, one extent or the number of kept blocks changed,
//! everything else as it was written.

use super::error::SpecError;
use super::level::Side;
use super::pattern::{
    At, Atom, Axes, Body, Clauses, Expr, Keep, Kind, Layout, Level, One, Operand, Pattern, Tuple,
    View,
};
use super::{Spec, Tensor};

/// A change of one clause. Axes are those of the view, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Moves an axis of the view so that it becomes axis `to`.
    MoveAxis {
        /// The axis.
        from: usize,
        /// Its place afterwards.
        to: usize,
    },
    /// Sets the extent of a block along an axis, in weights.
    Block {
        /// The axis.
        axis: usize,
        /// The extent.
        extent: usize,
    },
    /// Sets the extent of a scope along an axis, in blocks. For coupled blocks it is an axis
    /// of the common grid.
    Scope {
        /// The axis.
        axis: usize,
        /// The extent.
        extent: usize,
    },
    /// Sets the number of kept blocks of each scope.
    Keep(usize),
}

/// The part of a pattern that is edited.
#[derive(Clone, Copy, Debug, Default)]
pub struct EditTarget<'a> {
    /// The level: `then` or `else` for each step from the outermost.
    pub level: &'a [Side],
    /// The tensor of a coupling.
    pub tensor: usize,
}

impl Pattern {
    /// The pattern with one clause changed. `tensors` are those it is bound to: extents that
    /// are not written follow from them. A scope that no longer divides the grid of blocks,
    /// and a keep that exceeds the blocks of a scope, are lowered. A moved axis takes its
    /// extents of block and scope along, and a preset is then written out.
    ///
    /// ```
    /// use openwork::{Pattern, spec::{Edit, EditTarget}};
    /// let pattern: Pattern = "2:4".parse().unwrap();
    /// let edited = |edit| pattern.edited(&[("tensor", &[8, 16])], EditTarget::default(), edit);
    /// let wider = edited(Edit::Scope { axis: 1, extent: 8 }).unwrap();
    /// assert_eq!(wider.to_string(), "2:4 scope (1,8)");
    /// let moved = edited(Edit::MoveAxis { from: 0, to: 1 }).unwrap();
    /// assert_eq!(moved.to_string(), "view M K -> K M scope (4,1) keep 2");
    /// ```
    pub fn edited(
        &self,
        tensors: &[(&str, &[usize])],
        target: EditTarget<'_>,
        edit: Edit,
    ) -> Result<Self, SpecError> {
        let bound = self.bind_all(tensors)?;
        let spec = level_of(&bound, target.level)?;
        let Some(tensor) = spec.tensors().get(target.tensor) else {
            let what = format!("there is no tensor {}", target.tensor);
            return Err(SpecError::whole(what, format!("the spec has {}", spec.tensors().len())));
        };
        check(edit, spec, tensor)?;
        let moves = matches!(edit, Edit::MoveAxis { .. });
        let mut body = if moves { self.expand(tensors)?.body } else { self.body.clone() };
        match &mut body {
            Body::Levels(level) => {
                let clauses = &mut level_mut(level, target.level)?.clauses;
                match edit {
                    Edit::MoveAxis { from, to } => {
                        let order = moved(tensor.axes().len(), from, to);
                        move_axis(clauses, tensor, &order);
                        if let Some(scope) = &mut clauses.scope {
                            *scope = permuted(scope, tensor.scope_tile(), &order);
                        }
                    }
                    Edit::Block { axis, extent } => {
                        set_block(clauses, tensor, axis, extent);
                        refit(&mut clauses.scope, &mut clauses.keep, spec, (tensor, axis, extent));
                    }
                    Edit::Scope { axis, extent } => {
                        set_scope(&mut clauses.scope, &mut clauses.keep, spec, axis, extent);
                    }
                    Edit::Keep(count) => clauses.keep = Some(Keep::Count(number(count))),
                }
            }
            Body::Couple(couple) => {
                let blocks = couple.kind == Kind::Blocks;
                let member = &mut couple.members[target.tensor];
                match edit {
                    Edit::MoveAxis { from, to } => {
                        let clauses = &mut member.one.clauses;
                        let order = moved(tensor.axes().len(), from, to);
                        move_axis(clauses, tensor, &order);
                        if let Some(scope) = &mut clauses.scope {
                            *scope = permuted(scope, tensor.scope_tile(), &order);
                        }
                        // The common grid stays: its axis k is where the old one went.
                        let place = |old: &usize| order.iter().position(|from| from == old);
                        let perm: Vec<usize> = tensor.perm().iter().filter_map(place).collect();
                        let same = perm.iter().enumerate().all(|(k, &axis)| k == axis);
                        member.perm = (!same).then_some((perm, At(0)));
                    }
                    Edit::Block { axis, extent } => {
                        set_block(&mut member.one.clauses, tensor, axis, extent);
                    }
                    Edit::Scope { axis, extent } if blocks => {
                        set_scope(&mut couple.scope, &mut couple.keep, spec, axis, extent);
                    }
                    Edit::Scope { axis, extent } => {
                        let tile = tensor.scope_tile();
                        let scope = &mut member.one.clauses.scope;
                        *scope = Some(with(scope.as_ref(), tile, tile, axis, number(extent)));
                    }
                    Edit::Keep(count) => couple.keep = Some(Keep::Count(number(count))),
                }
            }
        }
        // Parsed again, so that errors point into the new text.
        Self { source: String::new(), body }.to_string().parse()
    }
}

/// Refuses axes and extents that cannot be meant.
fn check(edit: Edit, spec: &Spec, tensor: &Tensor) -> Result<(), SpecError> {
    let rank = match edit {
        Edit::Scope { .. } => tensor.scope_tile().len(),
        _ => tensor.axes().len(),
    };
    let (axes, extent) = match edit {
        Edit::MoveAxis { from, to } => (vec![from, to], 1),
        Edit::Block { axis, extent } | Edit::Scope { axis, extent } => (vec![axis], extent),
        Edit::Keep(count) if count > spec.blocks_per_scope() => {
            let what = format!("keep {count} is more than a scope has");
            return Err(SpecError::whole(what, format!("it has {}", spec.blocks_per_scope())));
        }
        Edit::Keep(_) => (Vec::new(), 1),
    };
    if let Some(axis) = axes.into_iter().find(|&axis| axis >= rank) {
        let what = format!("there is no axis {axis}");
        return Err(SpecError::whole(what, format!("the view has {rank}")));
    }
    match extent {
        0 => Err(SpecError::whole("an extent of 0 is empty", "give 1 or more")),
        _ => Ok(()),
    }
}

fn no_level() -> SpecError {
    SpecError::whole("there is no such level", "write it with `then` or `else` first")
}

fn level_of<'s>(spec: &'s Spec, path: &[Side]) -> Result<&'s Spec, SpecError> {
    path.iter().try_fold(spec, |spec, &side| Some(spec.level(side)?.spec())).ok_or_else(no_level)
}

fn level_mut<'l>(level: &'l mut Level, path: &[Side]) -> Result<&'l mut One, SpecError> {
    let Some((side, rest)) = path.split_first() else { return Ok(&mut level.one) };
    let inner = side.pick(&mut level.then, &mut level.otherwise);
    level_mut(&mut inner.as_mut().ok_or_else(no_level)?.level, rest)
}

/// The order of `rank` axes after axis `from` became axis `to`.
fn moved(rank: usize, from: usize, to: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).collect();
    let axis = order.remove(from);
    order.insert(to, axis);
    order
}

fn number(n: usize) -> Expr {
    Expr { first: Atom::Int(n as u64), rest: Vec::new(), at: At(0) }
}

fn whole() -> Expr {
    Expr { first: Atom::Whole, rest: Vec::new(), at: At(0) }
}

/// The entries of a tuple, one for each axis; those that are not written follow from `tile`.
fn entries(tuple: Option<&Tuple>, tile: &[usize]) -> Vec<Tuple> {
    let written = match tuple {
        Some(Tuple::List(items, _)) => items.as_slice(),
        Some(leaf) => std::slice::from_ref(leaf),
        None => &[],
    };
    let flat = written.iter().all(|item| matches!(item, Tuple::Leaf(_)));
    let known = if flat && written.len() <= tile.len() { written } else { &[] };
    let rest = tile[known.len()..].iter().map(|&extent| Tuple::Leaf(number(extent)));
    known.iter().cloned().chain(rest).collect()
}

/// A tuple with another entry on an axis, `_` where that is all of the `extents`.
fn with(
    tuple: Option<&Tuple>,
    tile: &[usize],
    extents: &[usize],
    axis: usize,
    entry: Expr,
) -> Tuple {
    let mut items = entries(tuple, tile);
    let all = entry.first == Atom::Int(extents[axis] as u64) && extents[axis] > 1;
    let was_whole = matches!(&items[axis], Tuple::Leaf(e) if e.first == Atom::Whole);
    items[axis] = Tuple::Leaf(if all && was_whole { whole() } else { entry });
    Tuple::List(items, At(0))
}

fn permuted(tuple: &Tuple, tile: &[usize], order: &[usize]) -> Tuple {
    let items = entries(Some(tuple), tile);
    Tuple::List(order.iter().map(|&axis| items[axis].clone()).collect(), At(0))
}

fn set_block(clauses: &mut Clauses, tensor: &Tensor, axis: usize, extent: usize) {
    let tile = tensor.blocks().tile();
    let axes: Vec<usize> = extents(tensor);
    clauses.block = Some(with(clauses.block.as_ref(), tile, &axes, axis, number(extent)));
}

/// The extents of a view.
fn extents(tensor: &Tensor) -> Vec<usize> {
    tensor.blocks().tile().iter().zip(tensor.blocks().counts()).map(|(t, n)| t * n).collect()
}

/// Lowers scope and keep to what fits after the block of a tensor has changed along an axis.
fn refit(
    scope: &mut Option<Tuple>,
    keep: &mut Option<Keep>,
    spec: &Spec,
    (tensor, axis, extent): (&Tensor, usize, usize),
) {
    let (tile, counts) = (tensor.scope_tile(), tensor.blocks().counts());
    let count = extents(tensor)[axis] / extent;
    let is_whole = tile[axis] == counts[axis] && counts[axis] > 1;
    let fits = if is_whole { count } else { common_divisor(tile[axis], count) };
    if fits == tile[axis] || count == 0 {
        return;
    }
    // A scope that is not written, or written as `_`, follows by itself.
    let follows = match scope {
        Some(Tuple::List(items, _)) => items
            .get(axis)
            .is_none_or(|item| matches!(item, Tuple::Leaf(expr) if expr.first == Atom::Whole)),
        _ => scope.is_none(),
    };
    // Of a preset, the scope that it stands for.
    if !(is_whole && follows) {
        *scope = Some(with(scope.as_ref(), tile, tile, axis, number(fits)));
    }
    lower(keep, spec, spec.blocks_per_scope() / tile[axis] * fits);
}

fn set_scope(
    scope: &mut Option<Tuple>,
    keep: &mut Option<Keep>,
    spec: &Spec,
    axis: usize,
    extent: usize,
) {
    let tile = spec.tensors()[0].scope_tile();
    *scope = Some(with(scope.as_ref(), tile, tile, axis, number(extent)));
    lower(keep, spec, spec.blocks_per_scope() / tile[axis] * extent);
}

/// Keeps at most as many blocks as a scope of `blocks` has, where a count is written or
/// meant by a preset.
fn lower(keep: &mut Option<Keep>, spec: &Spec, blocks: usize) {
    let share = matches!(keep, Some(Keep::Percent { .. } | Keep::Share(_) | Keep::All));
    if !share && spec.keep() > blocks {
        *keep = Some(Keep::Count(number(blocks)));
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Reorders the axes of the view, and the extents of the block with them.
fn move_axis(clauses: &mut Clauses, tensor: &Tensor, order: &[usize]) {
    let reordered = |all: &[String]| -> Vec<(String, At)> {
        order.iter().map(|&axis| (all[axis].clone(), At(0))).collect()
    };
    let last = clauses.view.as_mut().map(|view| match view.rest.last_mut() {
        Some((operand, _)) => operand,
        None => &mut view.first,
    });
    match last {
        Some(Operand::Axes(axes)) if axes.right.len() == order.len() => {
            axes.right = order.iter().map(|&axis| axes.right[axis].clone()).collect();
        }
        // The names of the dims, in another order.
        None if distinct(tensor.axes()) => {
            let names = tensor.axes();
            let left = names.iter().map(|name| vec![(name.clone(), At(0))]).collect();
            let axes = Axes { left, right: reordered(names), sizes: Vec::new(), at: At(0) };
            clauses.view = Some(View { first: Operand::Axes(axes), rest: Vec::new() });
        }
        Some(Operand::Layout(layout)) if is_flat(layout, order.len()) => {
            // Of rank entries, so no tile is needed.
            let tile = vec![1; order.len()];
            layout.shape = permuted(&layout.shape, &tile, order);
            layout.stride = layout.stride.as_ref().map(|stride| permuted(stride, &tile, order));
        }
        _ => {
            let flat = tensor.view().flat();
            let tuple = |part: fn(&(i64, i64)) -> i64| {
                let leaf = |&axis: &usize| Tuple::Leaf(number(part(&flat[axis]) as usize));
                Tuple::List(order.iter().map(leaf).collect(), At(0))
            };
            let (shape, stride) = (tuple(|axis| axis.0), Some(tuple(|axis| axis.1)));
            let layout = Operand::Layout(Layout { shape, stride, at: At(0) });
            clauses.view = Some(View { first: layout, rest: Vec::new() });
        }
    }
    if let Some(block) = &mut clauses.block {
        *block = permuted(block, tensor.blocks().tile(), order);
    }
}

/// Whether a layout is written as a flat shape of `rank` entries with as many strides.
fn is_flat(layout: &Layout, rank: usize) -> bool {
    let flat = |tuple: &Tuple| match tuple {
        Tuple::List(items, _) => {
            items.len() == rank && items.iter().all(|item| matches!(item, Tuple::Leaf(_)))
        }
        Tuple::Leaf(_) => false,
    };
    flat(&layout.shape) && layout.stride.as_ref().is_some_and(flat)
}

fn distinct(names: &[String]) -> bool {
    names.iter().enumerate().all(|(i, name)| !names[..i].contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, dims: &[usize], edit: Edit) -> String {
        let pattern: Pattern = text.parse().unwrap();
        let edited = pattern.edited(&[("tensor", dims)], EditTarget::default(), edit).unwrap();
        edited.bind(dims).unwrap_or_else(|error| panic!("{edited}: {error}"));
        edited.to_string()
    }

    #[test]
    fn the_text_follows_an_edit() {
        let pairs = "view m (g j i) -> m g i j, j=2 i=8 block (1,1,1,2) scope (1,1,4,1) keep 2";
        for (text, dims, edit, expected) in [
            ("2:4", &[8, 16][..], Edit::Scope { axis: 1, extent: 8 }, "2:4 scope (1,8)"),
            ("2:4", &[8, 16], Edit::Scope { axis: 1, extent: 1 }, "2:4 scope (1,1) keep 1"),
            ("2:4", &[8, 16], Edit::Block { axis: 1, extent: 2 }, "2:4 block (1,2)"),
            ("2:4", &[8, 16], Edit::Block { axis: 1, extent: 8 }, "2:4 block (1,8) scope (1,2)"),
            ("2:4", &[8, 16], Edit::Keep(1), "2:4 keep 1"),
            ("keep 50%", &[8, 16], Edit::Block { axis: 0, extent: 8 }, "block (8,1) keep 50%"),
            (
                "block (1,_) scope (4,1) keep 2",
                &[8, 16],
                Edit::Block { axis: 1, extent: 8 },
                "block (1,8) scope (4,1) keep 2",
            ),
            (
                pairs,
                &[4, 32],
                Edit::MoveAxis { from: 3, to: 2 },
                "view m (g j i) -> m g j i, j=2 i=8 block (1,1,2,1) scope (1,1,1,4) keep 2",
            ),
            (
                "view (M,K/4,4):(K,4,1) scope (1,1,4) keep 2",
                &[8, 16],
                Edit::MoveAxis { from: 2, to: 0 },
                "view (4,M,K/4):(1,K,4) scope (4,1,1) keep 2",
            ),
            (
                "view (M,4,4) scope (1,1,4) keep 2",
                &[8, 16],
                Edit::MoveAxis { from: 0, to: 2 },
                "view (4,4,8):(4,1,16) scope (1,4,1) keep 2",
            ),
        ] {
            assert_eq!(edited(text, dims, edit), expected, "{text}");
        }
    }

    /// Moving an axis renames positions; blocks and scopes stay the same sets of weights.
    #[test]
    fn a_moved_axis_keeps_blocks_and_scopes() {
        let sets = |spec: &Spec| {
            let mut scopes: Vec<Vec<Vec<usize>>> = (0..spec.scopes())
                .map(|scope| {
                    let block = |block| spec.elements(scope, block).map(|e| e.offset).collect();
                    let mut blocks: Vec<Vec<usize>> =
                        (0..spec.blocks_per_scope()).map(block).collect();
                    blocks.iter_mut().for_each(|block| block.sort_unstable());
                    blocks.sort_unstable();
                    blocks
                })
                .collect();
            scopes.sort_unstable();
            scopes
        };
        for preset in crate::spec::PRESETS {
            let pattern: Pattern = preset.example.parse().unwrap();
            let spec = pattern.bind(preset.shape).unwrap();
            let rank = spec.tensors()[0].axes().len();
            for (from, to) in (0..rank).flat_map(|from| (0..rank).map(move |to| (from, to))) {
                let edit = Edit::MoveAxis { from, to };
                let tensors = [("tensor", preset.shape)];
                let moved = pattern.edited(&tensors, EditTarget::default(), edit).unwrap();
                let bound = moved.bind(preset.shape).unwrap_or_else(|e| panic!("{moved}: {e}"));
                assert_eq!(sets(&bound), sets(&spec), "{} by {edit:?} is {moved}", preset.name);
                assert_eq!(bound.keep(), spec.keep());
            }
        }
    }

    #[test]
    fn levels_and_couplings_are_edited_in_their_place() {
        let venom: Pattern = "block (4,1) scope (1,8) keep 4 then 2:4".parse().unwrap();
        let tensors: [(&str, &[usize]); 1] = [("tensor", &[8, 32])];
        let place = EditTarget { level: &[Side::Kept], tensor: 0 };
        let inner = venom.edited(&tensors, place, Edit::Keep(1)).unwrap();
        assert_eq!(inner.to_string(), "block (4,1) scope (1,8) keep 4 then 2:4 keep 1");
        let missing = EditTarget { level: &[Side::Dropped], tensor: 0 };
        assert!(venom.edited(&tensors, missing, Edit::Keep(1)).is_err());

        let text = "blocks up: block (1,_) & down perm (1,0): block (_,1) scope (4,1) keep 2";
        let coupled: Pattern = text.parse().unwrap();
        let tensors: [(&str, &[usize]); 2] = [("up", &[16, 8]), ("down", &[8, 16])];
        let place = EditTarget { level: &[], tensor: 1 };
        let moved = coupled.edited(&tensors, place, Edit::MoveAxis { from: 0, to: 1 }).unwrap();
        assert_eq!(
            moved.to_string(),
            "blocks up: block (1,_) & down: view M K -> K M block (1,_) scope (4,1) keep 2"
        );
        assert!(moved.bind_all(&tensors).is_ok());
        let wider = coupled.edited(&tensors, place, Edit::Scope { axis: 0, extent: 8 }).unwrap();
        assert!(wider.to_string().ends_with("scope (8,1) keep 2"), "{wider}");
    }

    #[test]
    fn axes_and_extents_that_are_not_there_are_refused() {
        let pattern: Pattern = "2:4".parse().unwrap();
        for edit in [
            Edit::MoveAxis { from: 2, to: 0 },
            Edit::Block { axis: 2, extent: 1 },
            Edit::Block { axis: 0, extent: 0 },
            Edit::Keep(5),
        ] {
            assert!(pattern.edited(&[("tensor", &[8, 16])], EditTarget::default(), edit).is_err());
        }
    }
}
