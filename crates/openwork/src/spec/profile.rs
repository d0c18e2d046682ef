//! Extents of blocks and scopes: tuples nested like the view's shape.

use super::axes::leaves;
use super::env::{Bound, Env, shape_text};
use super::error::SpecError;
use super::grid::GridError;
use super::pattern::{Atom, Tuple};
use crate::layout::IntTuple;

/// The extents that `tuple` asks for, one for each leaf of the shape of a space;
/// where `open`, missing trailing axes are whole.
pub(crate) fn extents(
    tuple: &Tuple,
    space: &IntTuple,
    open: bool,
    what: &str,
    env: &Env<'_>,
) -> Bound<Vec<usize>> {
    let items = match tuple {
        Tuple::List(items, _) => items.as_slice(),
        Tuple::Leaf(_) => std::slice::from_ref(tuple),
    };
    let (modes, flat) = (space.modes(), space.flatten());
    // A nested view may also be addressed leaf by leaf.
    if items.len() == flat.rank() && items.len() > modes.len() {
        return extents(tuple, &flat, open, what, env);
    }
    if items.len() > modes.len() || (items.len() < modes.len() && !open) {
        let what = format!("{what} {tuple} has {} axes", items.len());
        return Err(env.error(tuple.at(), what, format!("there are {}: {flat}", modes.len())));
    }
    let mut extents = Vec::with_capacity(flat.rank());
    for (mode, item) in modes.iter().zip(items) {
        mode_extents(mode, item, &mut extents, what, env)?;
    }
    extents.extend(modes[items.len()..].iter().flat_map(whole));
    Ok(extents)
}

fn mode_extents(
    mode: &IntTuple,
    item: &Tuple,
    out: &mut Vec<usize>,
    what: &str,
    env: &Env<'_>,
) -> Bound<()> {
    match (mode, item) {
        (&IntTuple::Int(extent), Tuple::Leaf(expr)) => {
            out.push(env.eval(expr, Some(extent as usize))?);
        }
        (IntTuple::Tuple(modes), Tuple::List(items, _)) if modes.len() == items.len() => {
            for (mode, item) in modes.iter().zip(items) {
                mode_extents(mode, item, out, what, env)?;
            }
        }
        // All of a nested axis, or single entries of it.
        (IntTuple::Tuple(_), Tuple::Leaf(expr))
            if expr.rest.is_empty() && expr.first == Atom::Whole =>
        {
            out.extend(whole(mode));
        }
        (IntTuple::Tuple(_), Tuple::Leaf(expr)) if expr.literal() == Some(1) => {
            out.extend(mode.leaves().iter().map(|_| 1));
        }
        // An axis of a composition: a run of its entries, if that is a tile of its parts.
        (IntTuple::Tuple(_), Tuple::Leaf(expr)) if env.composed => {
            let size = whole(mode).iter().product();
            let extent = env.eval(expr, Some(size))?;
            out.extend(run_tile(&whole(mode), extent).ok_or_else(|| {
                let what = format!("{what} {item} does not divide the view");
                let detail = format!(
                    "composition makes this axis {mode}, of which the first {extent} entries are \
                     no tile; use an extent that divides it part by part"
                );
                env.error(item.at(), what, detail)
            })?);
        }
        _ => {
            let detail = "write it nested as the view's shape is, or `_` or 1 for a nested axis";
            let what = format!("{what} {item} is not nested like the view");
            return Err(env.error(item.at(), what, detail));
        }
    }
    Ok(())
}

/// The tile of the first `extent` entries of an axis with these parts, the first part
/// varying fastest as in the algebra; `None` if they are no tile.
fn run_tile(parts: &[usize], extent: usize) -> Option<Vec<usize>> {
    let mut left = extent;
    let tile = parts.iter().map(|&part| {
        let here = left.min(part);
        let divides = here > 0 && left.is_multiple_of(here) && part.is_multiple_of(here);
        left = left.checked_div(here)?;
        divides.then_some(here)
    });
    let tile: Vec<usize> = tile.collect::<Option<_>>()?;
    (tile.iter().product::<usize>() == extent).then_some(tile)
}

/// The leaves of a shape as extents.
pub(crate) fn whole(shape: &IntTuple) -> Vec<usize> {
    shape.leaves().into_iter().map(|extent| extent as usize).collect()
}

/// What is wrong with a grid, at the axis in `tuple` that is at fault.
pub(crate) fn grid_error(
    error: &GridError,
    what: &str,
    over: &str,
    tuple: Option<&Tuple>,
    tile: &[usize],
    env: &Env<'_>,
) -> SpecError {
    let mut exprs = Vec::new();
    if let Some(tuple) = tuple {
        leaves(tuple, &mut exprs);
    }
    let at = match (error.axis(), tuple) {
        (Some(axis), Some(tuple)) => exprs.get(axis).map_or(tuple.at(), |e| e.at.0),
        (_, Some(tuple)) => tuple.at(),
        _ => 0,
    };
    let shown = tuple.map_or_else(|| shape_text(tile), ToString::to_string);
    let what = match error {
        GridError::Empty { .. } => format!("{what} {shown} is empty"),
        _ => format!("{what} {shown} does not divide {over}"),
    };
    env.error(at, what, error.to_string())
}
