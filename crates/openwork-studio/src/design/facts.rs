//! The facts of a design: those that `show --json` prints, and what the page draws.

use super::{Design, Panel, matrix};
use openwork::hardware::SparseTensorCores;
use openwork::spec::{Coupling, Side, Spec, Tensor, level_name};
use openwork_llm::spec_json;
use serde_json::{Value, json};

/// Everything that the page shows of a design besides its picture.
pub(crate) fn facts(design: &Design) -> Value {
    let spec = &design.spec;
    let panels = (0..design.panels.len()).filter_map(|number| {
        let (shown, level, tensor) = design.panel(number)?;
        Some(panel(design, shown, level, tensor))
    });
    let cores = SparseTensorCores::check(spec);
    json!({
        "facts": spec_json(spec),
        "sheet": openwork::viz::sheet(spec),
        "panels": panels.collect::<Vec<_>>(),
        "index": index(spec),
        "tensor_cores": {
            "accepted": match cores {
                SparseTensorCores::Accepted => json!(true),
                SparseTensorCores::Refused { .. } => json!(false),
                SparseTensorCores::NotAMatrix(_) => Value::Null,
            },
            "why": cores.describe(),
        },
        "dims": dim_names(design),
    })
}

/// The index of kept blocks, and why it has the size that it has, level by level.
fn index(spec: &Spec) -> Value {
    let facts = spec.facts();
    let why = |(path, level): (Vec<Side>, &Spec)| match spec.has_levels() {
        true => format!("{}: {}", level_name(&path), why(level)),
        false => why(level),
    };
    let why: Vec<String> = spec.levels().into_iter().map(why).collect();
    json!({
        "bits_per_scope": facts.index_bits,
        "bits_per_kept": facts.index_bits_per_kept,
        "least_bits": facts.least_index_bits,
        "why": why.join("; "),
    })
}

/// Why the index of one level has the size that it has.
fn why(spec: &Spec) -> String {
    let facts = spec.facts();
    let sizes = &facts.block_sizes;
    let size: usize = match spec.coupling() {
        Coupling::Blocks => sizes.iter().sum(),
        Coupling::Scopes => sizes[0],
    };
    let (keep, blocks, bits) = (spec.keep(), spec.blocks_per_scope(), facts.index_bits);
    let alone = bits as f64 / keep.max(1) as f64;
    let mut why = match keep {
        0 => "no block is kept, so there is no index".to_string(),
        _ if keep == blocks => "every block is kept, so there is no index".to_string(),
        _ => format!(
            "{} {keep} of {blocks} blocks",
            if bits == 1 { "1 bit chooses".to_string() } else { format!("{bits} bits choose") }
        ),
    };
    if keep > 0 && keep < blocks {
        why += &match size {
            1 => format!(": {} per kept weight", number(alone)),
            _ => format!(
                "; the {size} weights of a block share them: {} per kept weight instead of {}",
                number(alone / size as f64),
                number(alone)
            ),
        };
    }
    why
}

/// `1 bit`, `0.25 bits`.
fn number(bits: f64) -> String {
    let text = format!("{bits:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} bit{}", if text == "1" { "" } else { "s" })
}

/// One picture: its size, and the axes of its view with the extents of blocks and scopes.
fn panel(design: &Design, panel: &Panel, spec: &Spec, tensor: &Tensor) -> Value {
    let (rows, cols) = matrix(tensor);
    // Offsets are those of the tensor without padding.
    let own_cols: usize = tensor.dims()[usize::from(tensor.dims().len() > 1)..].iter().product();
    let (tile, counts) = (tensor.blocks().tile(), tensor.blocks().counts());
    let axes: Vec<Value> = tensor
        .axes()
        .iter()
        .enumerate()
        .map(|(axis, name)| {
            // Scopes count blocks of the common grid, whose axes may be permuted.
            let common = match spec.coupling() {
                Coupling::Blocks => tensor.perm().iter().position(|&own| own == axis),
                Coupling::Scopes => Some(axis),
            };
            let common = common.unwrap_or(axis);
            let steps = steps(tensor, axis, tile[axis] * counts[axis]);
            json!({
                "name": name,
                "along": steps.map(|(along, _)| along),
                "step": steps.map(|(_, step)| step),
                "extent": tile[axis] * counts[axis],
                "stride": tensor.view().flat().get(axis).map(|(_, stride)| stride),
                "block": tile[axis],
                "scope": tensor.scope_tile()[common],
                "scope_axis": common,
            })
        })
        .collect();
    json!({
        "title": design.title(panel, tensor),
        "path": panel.path.iter().map(|side| side.word()).collect::<Vec<_>>(),
        "tensor": panel.tensor,
        "name": tensor.name(),
        "dims": tensor.dims(),
        "rows": rows,
        "cols": cols,
        "spec": spec.level_text(),
        "view": openwork::viz::layout(tensor),
        "axes": axes,
        "origin": tensor.first_offset().map(|first| [first / own_cols, first % own_cols]),
        "blocks_per_scope": spec.blocks_per_scope(),
        "keep": spec.keep(),
        "density": spec.block_density(),
        "padded": tensor.padded_dims().is_some(),
    })
}

/// Whether an axis runs along the rows or the columns of the picture, and how many of them a
/// step along it passes; `None` if it does neither.
fn steps(tensor: &Tensor, axis: usize, extent: usize) -> Option<(&'static str, usize)> {
    if !tensor.is_direct() && tensor.padded_dims().is_none() {
        return None;
    }
    let (rows, cols) = matrix(tensor);
    let stride = usize::try_from(tensor.view().flat().get(axis)?.1).ok()?;
    if extent == 1 || stride == 0 {
        return None;
    }
    match stride.is_multiple_of(cols) {
        true => Some(("rows", stride / cols)).filter(|(_, step)| (extent - 1) * step < rows),
        false => Some(("cols", stride)).filter(|(_, step)| (extent - 1) * step < cols),
    }
}

/// The symbols that expressions may use, for completion.
fn dim_names(design: &Design) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for tensor in design.spec.tensors() {
        let usual: &[&str] = match tensor.dims().len() {
            1 => &["K"],
            2 => &["M", "K"],
            3 => &["O", "I", "W"],
            4 => &["O", "I", "H", "W"],
            _ => &[],
        };
        let all = usual.iter().map(|name| name.to_string()).chain(tensor.axes().iter().cloned());
        for name in all {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}
