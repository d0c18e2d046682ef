//! Describes a spec: densities, storage order, memory access.

use crate::Mask;
use crate::spec::{Coupling, Spec, Tensor};

/// Most elements for which a density is counted rather than computed.
const MAX_COUNTED: usize = 1 << 22;

/// `(16,2,8,2):(32,16,1,8)`: extents and strides of a view. An axis of one entry
/// has stride 0. A composition is printed as the algebra nests it.
pub fn layout(tensor: &Tensor) -> String {
    match tensor.composition() {
        Some(_) => tensor.view().to_string(),
        None => tensor.view().flatten().to_string(),
    }
}

/// A fraction as a percentage with at most three decimals: `50%`, `33.333%`.
pub fn percent(fraction: f64) -> String {
    let text = format!("{:.3}", 100.0 * fraction);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The densities that all values of `keep` give; `None` if a scope has more than
/// `most` blocks.
pub fn densities(spec: &Spec, most: usize) -> Option<Vec<f64>> {
    let blocks = spec.blocks_per_scope();
    (blocks <= most).then(|| (0..=blocks).map(|keep| keep as f64 / blocks as f64).collect())
}

/// The `keep` clause as written, if it is not the plain count: `50%`.
pub fn written_keep(spec: &Spec) -> Option<&str> {
    let keep = spec.level_text().rsplit("keep ").next()?;
    (keep != spec.keep().to_string()).then_some(keep)
}

/// The fraction of all elements that is kept, including those outside the domain.
/// If padding or blocks of several sizes make it depend on the mask, it is counted
/// on the example mask of seed 0; for large tensors it is the fraction without
/// padding.
pub fn tensor_density(spec: &Spec) -> f64 {
    let total: usize = spec.tensors().iter().map(Tensor::size).sum();
    let domain: usize = spec.tensors().iter().map(Tensor::domain_size).sum();
    let sizes = spec.facts().block_sizes;
    let uneven = spec.coupling() == Coupling::Scopes && sizes.iter().any(|&size| size != sizes[0]);
    let padded = |spec: &Spec| spec.tensors().iter().any(Tensor::is_padded);
    let padded = spec.levels().iter().any(|(_, level)| padded(level));
    if (uneven || padded) && total <= MAX_COUNTED {
        return Mask::example(spec, 0).density();
    }
    ((total - domain) as f64 + domain as f64 * spec.density()) / total as f64
}

/// How the blocks and scopes of each tensor lie in memory.
pub fn memory(spec: &Spec) -> Vec<String> {
    let facts = spec.facts();
    let many = spec.tensors().len() > 1;
    let mut notes = Vec::new();
    for (t, tensor) in spec.tensors().iter().enumerate() {
        let (size, run) = (facts.block_sizes[t], facts.runs[t]);
        let name = if many { format!("{}: ", tensor.name()) } else { String::new() };
        let scope = scope_run(tensor);
        let note = match (size, run) {
            (1, _) => "blocks are single weights".to_string(),
            (_, 1) => format!("no two of a block's {size} weights are adjacent"),
            _ if size == run => format!("a block is {run} adjacent weights"),
            _ => format!("a block is {} runs of {run} adjacent weights", size / run),
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
            1 => "; the blocks of a scope are not adjacent".to_string(),
            scope if scope > run => format!("; a scope covers {scope} adjacent weights"),
            _ => String::new(),
        };
        notes.push(format!("{name}{note}{bytes}{axis}{scopes}"));
        if !tensor.is_direct() {
            let what = if tensor.is_padded() { "padded domain" } else { "domain" };
            notes.push(format!(
                "{name}adjacency is in the order of the {what}; in memory, runs may be shorter"
            ));
        }
    }
    notes
}

/// The longest run of adjacent weights that the blocks of one scope cover
/// together.
fn scope_run(tensor: &Tensor) -> usize {
    tensor.scope_layout().run() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    fn spec(text: &str, dims: &[usize]) -> Spec {
        text.parse::<Pattern>().unwrap().bind(dims).unwrap()
    }

    #[test]
    fn memory_access_is_described() {
        let told = |text: &str| memory(&spec(text, &[16, 32])).join("\n");
        assert_eq!(told("2:4"), "blocks are single weights; a scope covers 4 adjacent weights");
        assert_eq!(
            told("2:4@8"),
            "no two of a block's 2 weights are adjacent, its innermost axis is not contiguous; \
             a scope covers 4 adjacent weights"
        );
        assert_eq!(
            told("rows16"),
            "a block is 16 adjacent weights (32 bytes at 16 bits), its innermost axis is contiguous"
        );
        assert_eq!(
            told("scope (4,1) keep 2"),
            "blocks are single weights; the blocks of a scope are not adjacent"
        );
    }

    #[test]
    fn weights_outside_the_domain_count_as_kept() {
        assert_eq!(
            tensor_density(&spec("in (M/4,0)+(M*3/4,K) scope (1,4) keep 2", &[8, 8])),
            0.625
        );
        // Two of ten stay dense in each row: the last scope has two real blocks.
        assert_eq!(tensor_density(&spec("pad (1,4) scope (1,4) keep 2", &[5, 10])), 0.6);
    }

    #[test]
    fn a_percentage_is_remembered() {
        assert_eq!(written_keep(&spec("channel(75%)", &[8, 8])), Some("75%"));
        assert_eq!(written_keep(&spec("2:4", &[8, 8])), None);
        assert_eq!(percent(1.0 / 3.0), "33.333%");
    }
}
