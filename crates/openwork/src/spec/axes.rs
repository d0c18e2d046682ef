//! Views from text: layouts with expressions, and axes that are split and reordered.

use super::bind::MAX_ELEMENTS;
use super::env::{Bound, Env, shape_text};
use super::error::SpecError;
use super::pattern::{self, Axes, Expr, Tuple};
use super::profile::whole;
use super::view::{Fault, strided};
use crate::layout::{IntTuple, Layout};

/// A layout as written, with its expressions evaluated; row-major where it has no
/// strides of its own.
pub(crate) fn layout(written: &pattern::Layout, dims: &[usize], env: &Env<'_>) -> Bound<Layout> {
    let mut exprs = Vec::new();
    leaves(&written.shape, &mut exprs);
    let mut extents = Vec::with_capacity(exprs.len());
    for (axis, expr) in exprs.iter().enumerate() {
        // `_` is the tensor's dimension in the same place, if there is one.
        let whole = matches!(&written.shape, Tuple::List(items, _) if items.len() == exprs.len());
        let extent = env.eval(expr, if whole { dims.get(axis).copied() } else { None })?;
        if extent == 0 {
            let detail = "extents are 1 or more";
            return Err(env.error(expr.at.0, "a layout has no empty axis", detail));
        }
        extents.push(extent);
    }
    let size = extents.iter().try_fold(1usize, |size, &extent| size.checked_mul(extent));
    if size.is_none_or(|size| size > MAX_ELEMENTS) {
        let detail = format!("at most {MAX_ELEMENTS} positions");
        return Err(env.error(written.at.0, "the layout is too large", detail));
    }
    let shape = nested(&written.shape, &mut extents.iter().copied());
    let Some(stride) = &written.stride else { return Ok(strided(shape, None)) };
    exprs.clear();
    leaves(stride, &mut exprs);
    if !nested(stride, &mut exprs.iter().map(|_| 1)).congruent(&shape) {
        let what = format!("shape {} and strides {stride} differ in form", written.shape);
        return Err(env.error(stride.at(), what, "give one stride for each axis, nested alike"));
    }
    let mut strides = Vec::with_capacity(exprs.len());
    let mut reach = 0usize;
    for (axis, (expr, &extent)) in exprs.iter().zip(&extents).enumerate() {
        let value = env.eval(expr, None)?;
        if value == 0 && extent > 1 {
            let detail =
                format!("axis {axis} has {extent} positions at one offset; a stride is 1 or more");
            return Err(env.error(expr.at.0, "stride 0 visits one element repeatedly", detail));
        }
        reach = (extent - 1)
            .checked_mul(value)
            .and_then(|r| r.checked_add(reach))
            .filter(|&r| r <= MAX_ELEMENTS)
            .ok_or_else(|| {
                let detail = format!("offsets go up to {MAX_ELEMENTS}");
                env.error(expr.at.0, "the layout reaches too far", detail)
            })?;
        // The stride of an axis with one entry is irrelevant, except in a composition, where
        // the last axis may extend.
        strides.push(if extent == 1 && !env.composed { 0 } else { value });
    }
    let stride = nested(stride, &mut strides.into_iter());
    Ok(strided(shape, Some(stride)))
}

/// Numbers in the brackets of a tuple.
fn nested(tuple: &Tuple, leaves: &mut impl Iterator<Item = usize>) -> IntTuple {
    match tuple {
        // As many numbers as leaves are given.
        Tuple::Leaf(_) => IntTuple::Int(leaves.next().map_or(1, |n| n as i64)),
        Tuple::List(items, _) => items.iter().map(|item| nested(item, leaves)).collect(),
    }
}

/// The expressions of a tuple, however it is nested.
pub(crate) fn leaves<'a>(tuple: &'a Tuple, out: &mut Vec<&'a Expr>) {
    match tuple {
        Tuple::Leaf(expr) => out.push(expr),
        Tuple::List(items, _) => items.iter().for_each(|item| leaves(item, out)),
    }
}

/// `m (g j i) -> m g i j, j=2 i=8` over the axes of a domain.
pub(crate) fn axes_view(axes: &Axes, domain: &Layout, env: &Env<'_>) -> Bound<Layout> {
    let (extents, stride) = (&whole(domain.shape()), whole(domain.stride()));
    if axes.left.len() != extents.len() {
        let what = format!("the view names {} axes, there are {}", axes.left.len(), extents.len());
        return Err(env.error(axes.at.0, what, format!("the domain is {}", shape_text(extents))));
    }
    let mut sizes: Vec<(&str, usize)> = Vec::new();
    for (name, expr, at) in &axes.sizes {
        if !axes.left.iter().flatten().any(|(axis, _)| axis == name) {
            return Err(env.error(
                at.0,
                format!("`{name}` has a size but is not an axis"),
                "name it left of the arrow",
            ));
        }
        if sizes.iter().any(|(known, _)| known == name) {
            return Err(env.error(at.0, format!("`{name}` has two sizes"), "give it once"));
        }
        let size = env.eval(expr, None)?;
        if size == 0 {
            return Err(env.error(at.0, format!("`{name}` has no entries"), "sizes are 1 or more"));
        }
        sizes.push((name, size));
    }
    let mut modes: Vec<(&str, usize, usize)> = Vec::new();
    for (axis, group) in axes.left.iter().enumerate() {
        let known = |name: &str| sizes.iter().find(|(n, _)| *n == name).map(|&(_, size)| size);
        let unknown: Vec<_> = group.iter().filter(|(name, _)| known(name).is_none()).collect();
        let product = group
            .iter()
            .filter_map(|(name, _)| known(name))
            .try_fold(1usize, |p, s| p.checked_mul(s));
        let at = group.first().map_or(axes.at.0, |(_, at)| at.0);
        let product = product.unwrap_or(usize::MAX);
        let extent = extents[axis];
        if let [_, (second, at), ..] = unknown.as_slice() {
            return Err(env.error(
                at.0,
                format!("the size of `{second}` is open"),
                format!(
                    "at most one axis of a group may be; write it after a comma: `, {second}=8`"
                ),
            ));
        }
        if unknown.is_empty() && product != extent {
            let detail = format!(
                "axis {axis} has {extent} entries, the sizes of its parts multiply to {product}"
            );
            return Err(env.error(at, "the sizes do not fit", detail));
        }
        if !extent.is_multiple_of(product) {
            let detail = format!(
                "axis {axis} has {extent} entries, not a multiple of {product}; pad it or narrow the domain"
            );
            return Err(env.error(at, "the sizes do not divide", detail));
        }
        let mut step = stride[axis];
        let mut parts = Vec::new();
        for (name, _) in group.iter().rev() {
            let size = known(name).unwrap_or(extent / product);
            parts.push((name.as_str(), size, step));
            step = step.saturating_mul(size);
        }
        modes.extend(parts.into_iter().rev());
    }
    for (i, (name, _, _)) in modes.iter().enumerate() {
        if modes[..i].iter().any(|(other, ..)| other == name) {
            return Err(env.error(
                axes.at.0,
                format!("axis `{name}` is named twice"),
                "give each axis its own name",
            ));
        }
    }
    let mut shape = Vec::new();
    let mut strides = Vec::new();
    for (i, (name, at)) in axes.right.iter().enumerate() {
        let Some(&(_, size, step)) = modes.iter().find(|(known, ..)| known == name) else {
            return Err(env.error(
                at.0,
                format!("`{name}` is not on the left of the arrow"),
                "both sides must have the same axes",
            ));
        };
        if axes.right[..i].iter().any(|(other, _)| other == name) {
            return Err(env.error(
                at.0,
                format!("axis `{name}` is on the right twice"),
                "list each axis once",
            ));
        }
        shape.push(size);
        strides.push(if size == 1 { 0 } else { step });
    }
    if let Some((name, ..)) =
        modes.iter().find(|(name, ..)| !axes.right.iter().any(|(other, _)| other == name))
    {
        return Err(env.error(
            axes.at.0,
            format!("`{name}` is missing right of the arrow"),
            "both sides must have the same axes",
        ));
    }
    Ok(strided(shape.into_iter().collect(), Some(strides.into_iter().collect())))
}

/// The error for a view that is not a bijection.
pub(crate) fn not_covered(
    fault: Fault,
    view: &Layout,
    positions: usize,
    space: &str,
    at: usize,
    env: &Env<'_>,
) -> SpecError {
    let sizes = match view.size() as usize {
        n if n == positions => String::new(),
        n => format!("; the view has {n} positions, the {space} {positions}"),
    };
    let (what, detail) = match fault {
        Fault::Twice(offset) => (
            "visits an element twice",
            format!("offset {offset} is visited twice{sizes}; check the strides"),
        ),
        Fault::Missed(offset) => {
            let detail = format!("offset {offset} is missed{sizes}; check extents and strides");
            ("misses elements", detail)
        }
        Fault::Outside(offset) => {
            let hint = if space == "domain" {
                "a view starts at the domain's first offset"
            } else {
                "check extents and strides"
            };
            ("leaves its domain", format!("offset {offset} is outside the {space}{sizes}; {hint}"))
        }
        Fault::Differs => {
            ("differs from its domain", format!("their strides do not fit together{sizes}"))
        }
    };
    env.error(at, format!("the view {what}"), detail)
}
