//! Views by composition: `A o B` is `A(B(c))`.
//!
//! The right operand indexes the left one's positions in the algebra's order, the first axis
//! fastest. A pattern (`->`) as right operand reorders the axes of the operand before it.

use super::axes::{axes_view, layout};
use super::env::{Bound, Env, default_names};
use super::pattern::{Operand, View};
use super::profile::whole;
use crate::layout::Layout;

/// A view and the names of its axes.
pub(crate) struct Composed {
    pub view: Layout,
    pub names: Vec<String>,
}

/// Evaluates a view over the axes `own` of a domain of a tensor with these dims, and names
/// its axes in `env`.
pub(crate) fn composed(
    view: &View,
    own: &Layout,
    dims: &[usize],
    env: &mut Env<'_>,
) -> Bound<Composed> {
    let evaluate = |operand: &Operand, own: &Layout, env: &Env<'_>| match operand {
        Operand::Layout(written) => layout(written, dims, env),
        Operand::Axes(axes) => axes_view(axes, own, env),
    };
    env.composed = !view.rest.is_empty();
    let mut last = &view.first;
    let mut right = evaluate(last, own, env)?;
    let mut result = right.clone();
    for (operand, at) in &view.rest {
        let axes = Layout::column_major(right.shape().flatten());
        right = evaluate(operand, &axes.expect("the positions of a layout"), env)?;
        result = result.composition(&right).map_err(|error| {
            env.error(at.0, format!("{last} o {operand} is not a layout"), error.to_string())
        })?;
        last = operand;
    }
    let names = match last {
        Operand::Axes(axes) => axes.right.iter().map(|(name, _)| name.clone()).collect(),
        Operand::Layout(_) => default_names(result.flat().len()),
    };
    if let Operand::Axes(_) = last {
        // Blocks and scopes may refer to the view's axes by name; dims take precedence.
        for (name, size) in names.iter().zip(whole(&right.shape().flatten())) {
            if !env.names.iter().any(|(known, _)| known == name) {
                env.names.push((name.clone(), size));
            }
        }
    }
    // An axis that composition has split has no name of its own.
    let names =
        if names.len() == result.flat().len() { names } else { default_names(result.flat().len()) };
    Ok(Composed { view: result, names })
}
