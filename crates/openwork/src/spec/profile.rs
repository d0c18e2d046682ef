//! Blocks and scopes as tuples, formed like the view.

use super::axes::leaves;
use super::env::{Bound, Env, shape_text};
use super::error::SpecError;
use super::grid::GridError;
use super::pattern::{Atom, Tuple};

/// The nesting of a view's shape: for each top axis, how many leaves it has.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    modes: Vec<Mode>,
    pub leaves: usize,
}

#[derive(Clone, Debug)]
enum Mode {
    Leaf,
    Nested(Vec<Mode>),
}

impl Mode {
    fn new(tuple: &Tuple) -> Self {
        match tuple {
            Tuple::Leaf(_) => Self::Leaf,
            Tuple::List(items, _) => Self::Nested(items.iter().map(Self::new).collect()),
        }
    }

    fn leaves(&self) -> usize {
        match self {
            Self::Leaf => 1,
            Self::Nested(modes) => modes.iter().map(Self::leaves).sum(),
        }
    }
}

impl Profile {
    pub fn new(shape: &Tuple) -> Self {
        let modes: Vec<_> = match shape {
            Tuple::Leaf(_) => vec![Mode::Leaf],
            Tuple::List(items, _) => items.iter().map(Mode::new).collect(),
        };
        let leaves = modes.iter().map(Mode::leaves).sum();
        Self { modes, leaves }
    }

    pub fn flat(rank: usize) -> Self {
        Self { modes: vec![Mode::Leaf; rank], leaves: rank }
    }

    /// The profile of a grid whose axis `k` is this one's axis `perm[k]`.
    pub fn permuted(&self, perm: &[usize]) -> Self {
        if perm.iter().enumerate().all(|(k, &p)| k == p) {
            self.clone()
        } else {
            Self::flat(self.leaves)
        }
    }

    /// The extents that `tuple` asks for, one for each leaf of a space of extents
    /// `space`; where `open`, missing trailing axes are whole.
    pub fn extents(
        &self,
        tuple: &Tuple,
        space: &[usize],
        open: bool,
        what: &str,
        env: &Env<'_>,
    ) -> Bound<Vec<usize>> {
        let one;
        let items = match tuple {
            Tuple::List(items, _) => items.as_slice(),
            Tuple::Leaf(_) => {
                one = [tuple.clone()];
                &one[..]
            }
        };
        // A nested view may also be spoken of leaf by leaf.
        if items.len() == self.leaves && items.len() > self.modes.len() {
            return Self::flat(self.leaves).extents(tuple, space, open, what, env);
        }
        if items.len() > self.modes.len() || (items.len() < self.modes.len() && !open) {
            let detail = format!("there are {}: {}", self.modes.len(), shape_text(space));
            return Err(env.error(
                tuple.at(),
                format!("{what} {tuple} has {} axes", items.len()),
                detail,
            ));
        }
        let mut extents = Vec::with_capacity(space.len());
        for (mode, item) in self.modes.iter().zip(items) {
            Self::mode(mode, item, space, &mut extents, what, env)?;
        }
        extents.extend(&space[extents.len()..]);
        Ok(extents)
    }

    fn mode(
        mode: &Mode,
        item: &Tuple,
        space: &[usize],
        out: &mut Vec<usize>,
        what: &str,
        env: &Env<'_>,
    ) -> Bound<()> {
        match (mode, item) {
            (Mode::Leaf, Tuple::Leaf(expr)) => {
                let whole = space[out.len()];
                out.push(env.eval(expr, Some(whole))?);
            }
            (Mode::Nested(modes), Tuple::List(items, _)) if modes.len() == items.len() => {
                for (mode, item) in modes.iter().zip(items) {
                    Self::mode(mode, item, space, out, what, env)?;
                }
            }
            // All of a nested axis, or single entries of it.
            (Mode::Nested(modes), Tuple::Leaf(expr))
                if expr.rest.is_empty() && expr.first == Atom::Whole =>
            {
                let leaves: usize = modes.iter().map(Mode::leaves).sum();
                out.extend(&space[out.len()..out.len() + leaves]);
            }
            (Mode::Nested(modes), Tuple::Leaf(expr)) if expr.literal() == Some(1) => {
                out.extend(std::iter::repeat_n(1, modes.iter().map(Mode::leaves).sum()));
            }
            _ => {
                let detail =
                    "write it nested as the view's shape is, or `_` or 1 for a nested axis";
                return Err(env.error(
                    item.at(),
                    format!("{what} {item} is not formed like the view"),
                    detail,
                ));
            }
        }
        Ok(())
    }
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
        (Some(axis), Some(tuple)) if exprs.len() == tile.len() => {
            exprs.get(axis).map_or(tuple.at(), |e| e.at.0)
        }
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
