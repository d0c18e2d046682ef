//! What to tell a reader about a spec: densities, storage order, memory access.

use crate::Mask;
use crate::example;
use crate::spec::{Coupling, Spec, Steps, Tensor};

/// The most elements for which a density is counted rather than computed.
const COUNTED: usize = 1 << 22;

/// `(16,2,8,2):(32,16,1,8)`: extents and strides of a view. An axis of one entry
/// has stride 0.
pub fn layout(steps: &Steps) -> String {
    let list = |values: &mut dyn Iterator<Item = usize>| {
        values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
    };
    let strides = steps.shape().iter().zip(steps.stride());
    format!(
        "({}):({})",
        list(&mut steps.shape().iter().copied()),
        list(&mut strides.map(|(&extent, &stride)| if extent > 1 { stride } else { 0 }))
    )
}

/// A share as percent with at most three decimals: `50%`, `33.333%`.
pub fn percent(share: f64) -> String {
    let text = format!("{:.3}", 100.0 * share);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The densities that other values of `keep` would give: every one if a scope
/// has at most `most` blocks, otherwise nothing.
pub fn densities(spec: &Spec, most: usize) -> Option<Vec<f64>> {
    let blocks = spec.blocks_per_scope();
    (blocks <= most).then(|| (0..=blocks).map(|keep| keep as f64 / blocks as f64).collect())
}

/// What the pattern says after `keep`, if that is not the plain count: `50%`.
pub fn asked(spec: &Spec) -> Option<&str> {
    let asked = spec.expanded().rsplit("keep ").next()?;
    (asked != spec.keep().to_string()).then_some(asked)
}

/// The share of all elements that stay, outside the domain too. Where padding
/// or blocks of several sizes make that depend on the mask, it is counted on the
/// example mask of seed 0, or for large tensors taken as if it did not.
pub fn tensor_density(spec: &Spec) -> f64 {
    let total: usize = spec.tensors().iter().map(Tensor::size).sum();
    let domain: usize = spec.tensors().iter().map(Tensor::domain_size).sum();
    let sizes = spec.facts().block_sizes;
    let uneven = spec.coupling() == Coupling::Scopes && sizes.iter().any(|&size| size != sizes[0]);
    if (uneven || spec.tensors().iter().any(Tensor::is_padded)) && total <= COUNTED {
        return Mask::select(spec, |scope, block| example::score(0, scope, block)).density();
    }
    ((total - domain) as f64 + domain as f64 * spec.density()) / total as f64
}

/// How a reader of memory meets the blocks and scopes of each tensor.
pub fn memory(spec: &Spec) -> Vec<String> {
    let facts = spec.facts();
    let many = spec.tensors().len() > 1;
    let mut notes = Vec::new();
    for (t, tensor) in spec.tensors().iter().enumerate() {
        let (size, run) = (facts.block_sizes[t], facts.runs[t]);
        let name = if many { format!("{}: ", tensor.name()) } else { String::new() };
        let scope = scope_run(spec, tensor);
        let note = match (size, run) {
            (1, _) => "blocks are single weights".to_string(),
            (_, 1) => format!("a block of {size} weights has no two side by side"),
            _ if size == run => format!("a block is one run of {run} weights"),
            _ => format!("a block is {} runs of {run} weights", size / run),
        };
        let axis = match (size, facts.contiguous[t]) {
            (1, _) => "",
            (_, true) => ", its innermost axis is contiguous",
            (_, false) => ", its innermost axis is not contiguous",
        };
        let bytes =
            if run > 1 { format!(" ({} bytes at 16 bits)", 2 * run) } else { String::new() };
        let scopes = match scope {
            _ if spec.scopes() == 1 => String::new(),
            1 => "; the blocks of a scope lie apart".to_string(),
            scope if scope > run => format!("; a scope covers runs of {scope}"),
            _ => String::new(),
        };
        notes.push(format!("{name}{note}{bytes}{axis}{scopes}"));
        if !tensor.is_direct() {
            let what = if tensor.is_padded() { "padded domain" } else { "domain" };
            notes.push(format!(
                "{name}runs are counted in the order of the {what}, storage may break them"
            ));
        }
    }
    notes
}

/// The longest run of neighbours in memory that the blocks of one scope hold
/// together.
fn scope_run(spec: &Spec, tensor: &Tensor) -> usize {
    let mut extents = tensor.blocks().tile().to_vec();
    for (axis, &blocks) in tensor.scope_tile().iter().enumerate() {
        let own = if spec.coupling() == Coupling::Blocks { tensor.perm()[axis] } else { axis };
        extents[own] *= blocks;
    }
    let mut modes: Vec<_> = tensor.view().stride().iter().copied().zip(extents).collect();
    modes.retain(|&(_, extent)| extent > 1);
    modes.sort_unstable();
    let mut run = 1;
    for (stride, extent) in modes {
        if stride != run {
            break;
        }
        run *= extent;
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    fn spec(text: &str, dims: &[usize]) -> Spec {
        text.parse::<Pattern>().unwrap().bind(dims).unwrap()
    }

    #[test]
    fn memory_is_told_in_words() {
        let told = |text: &str| memory(&spec(text, &[16, 32])).join("\n");
        assert_eq!(told("2:4"), "blocks are single weights; a scope covers runs of 4");
        assert_eq!(
            told("2:4@8"),
            "a block of 2 weights has no two side by side, its innermost axis is not contiguous; \
             a scope covers runs of 4"
        );
        assert_eq!(
            told("rows16"),
            "a block is one run of 16 weights (32 bytes at 16 bits), its innermost axis is contiguous"
        );
        assert_eq!(
            told("scope (4,1) keep 2"),
            "blocks are single weights; the blocks of a scope lie apart"
        );
    }

    #[test]
    fn what_lies_outside_the_domain_counts_as_kept() {
        assert_eq!(
            tensor_density(&spec("in (M/4,0)+(M*3/4,K) scope (1,4) keep 2", &[8, 8])),
            0.625
        );
        // Two of ten stay dense in each row: the last scope has two real blocks.
        assert_eq!(tensor_density(&spec("pad (1,4) scope (1,4) keep 2", &[5, 10])), 0.6);
    }

    #[test]
    fn a_percentage_is_remembered() {
        assert_eq!(asked(&spec("channel(75%)", &[8, 8])), Some("75%"));
        assert_eq!(asked(&spec("2:4", &[8, 8])), None);
        assert_eq!(percent(1.0 / 3.0), "33.333%");
    }
}
