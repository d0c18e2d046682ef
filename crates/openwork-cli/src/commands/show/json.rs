//! What a spec means, as JSON.

use crate::failure::Failure;
use openwork::Spec;
use openwork::fragment::{self, Fragment, KeptRange};
use openwork::spec::{Coupling, Tensor};
use openwork::viz;
use serde_json::{Map, Value, json};

/// The most weights that are listed one by one.
const MAX_LISTED: usize = 1 << 22;
/// The most densities that are listed one by one.
const MAX_DENSITIES: usize = 64;

/// Grids, scopes, densities and facts.
pub fn spec(spec: &Spec) -> Value {
    let coupled = spec.coupling() == Coupling::Scopes;
    let facts = spec.facts();
    let sizes = &facts.block_sizes;
    let scope = match coupled {
        false => json!(spec.tensors()[0].scope_tile()),
        true => spec.tensors().iter().map(|tensor| json!(tensor.scope_tile())).collect(),
    };
    let block_size = match coupled {
        false => json!(sizes.iter().sum::<usize>()),
        true if sizes.iter().all(|size| size == &sizes[0]) => json!(sizes[0]),
        true => json!(sizes),
    };
    let total = |of: fn(&Tensor) -> usize| spec.tensors().iter().map(of).sum::<usize>();
    let coupling = match (spec.tensors().len(), spec.coupling()) {
        (1, Coupling::Blocks) => Value::Null,
        (_, coupling) => json!(coupling.to_string()),
    };
    json!({
        "spec": spec.text(),
        "expanded": spec.expanded(),
        "coupling": coupling,
        "tensors": spec.tensors().iter().map(|t| tensor(t, coupled)).collect::<Vec<_>>(),
        "scope": scope,
        "scope_grid": spec.scope_grid(),
        "num_blocks": spec.blocks(),
        "block_size": block_size,
        "num_scopes": spec.scopes(),
        "blocks_per_scope": spec.blocks_per_scope(),
        "scope_size": total(|tensor| tensor.view().len()) / spec.scopes(),
        "keep": spec.keep(),
        "density": spec.density(),
        "sparsity": 1.0 - spec.density(),
        "domain_size": total(Tensor::domain_size),
        "tensor_density": viz::tensor_density(spec),
        "facts": {
            "densities": densities(spec),
            "index_bits": facts.index_bits,
            "least_index_bits": facts.least_index_bits,
            "index_bits_per_kept": facts.index_bits_per_kept,
            "storage": facts.storage.map(|storage| json!({
                "value_bits": storage.value_bits,
                "bits_per_weight": storage.bits_per_weight,
                "ratio": storage.ratio,
            })),
            "memory": viz::memory(spec),
        },
    })
}

fn tensor(tensor: &Tensor, coupled: bool) -> Value {
    let mut object = json!({
        "name": tensor.name(),
        "shape": tensor.dims(),
        "view": viz::layout(tensor.view()),
        "block": tensor.blocks().tile(),
        "block_grid": tensor.blocks().counts(),
        "perm": tensor.perm(),
        "domain_size": tensor.domain_size(),
        "padding": tensor.view().len() - tensor.domain_size(),
    });
    if coupled {
        object["scope"] = json!(tensor.scope_tile());
    }
    object
}

/// A spec on a tensor core's fragment.
pub fn fragment(found: &Fragment) -> Value {
    let held = |held: &KeptRange| {
        json!({
            "owned": held.owned,
            "structure": {"min": held.structure.0, "max": held.structure.1},
            "example": {"min": held.example.0, "max": held.example.1},
            "balanced": held.is_balanced(),
        })
    };
    let owners = |cols: usize, lane: fn(usize, usize) -> usize| {
        let row = |row: usize| (0..cols).map(|col| lane(row, col)).collect::<Vec<_>>();
        json!((0..fragment::SIDE).map(row).collect::<Vec<_>>())
    };
    json!({
        "name": fragment::NAME,
        "grid": [found.grid.0, found.grid.1],
        "counted": found.counted,
        "lanes": held(&found.lanes),
        "groups": held(&found.groups),
        "fragments": held(&found.fragments),
        "example_lanes": found.first,
        "block_within": found.block.name(),
        "scope_within": found.scope.name(),
        "pairs": {"whole": found.pairs[0], "gone": found.pairs[1], "split": found.pairs[2]},
        "metadata_bits": found.index_bits,
        "metadata_words": found.index_words,
        "owners": {
            "a": owners(fragment::SIDE, fragment::lane_of_a),
            "b": owners(fragment::NARROW, fragment::lane_of_b),
            "c": owners(fragment::NARROW, fragment::lane_of_c),
        },
    })
}

fn densities(spec: &Spec) -> Value {
    match viz::densities(spec, MAX_DENSITIES) {
        Some(all) => json!(all),
        None => json!(format!("k/{0} for k = 0 to {0}", spec.blocks_per_scope())),
    }
}

/// The weights of every block and the blocks of every scope. Blocks are in
/// row-major order over their grid; where blocks are coupled each lists its
/// tensors, where scopes are coupled each tensor lists its blocks.
pub fn elements(spec: &Spec) -> Result<Map<String, Value>, Failure> {
    let positions: usize = spec.tensors().iter().map(|tensor| tensor.view().len()).sum();
    if positions > MAX_LISTED {
        return Err(Failure::Input(format!(
            "--elements lists at most {MAX_LISTED} weights, these tensors have {positions}; \
             give a smaller --shape"
        )));
    }
    let members = spec.tensors().len();
    let coupled = spec.coupling() == Coupling::Scopes;
    // One list for coupled blocks, one for each tensor otherwise.
    let mut blocks: Vec<Vec<Value>> = match coupled {
        false => vec![vec![Value::Null; spec.blocks()]],
        true => spec.tensors().iter().map(|t| vec![Value::Null; t.blocks().tiles()]).collect(),
    };
    let mut scopes = Vec::with_capacity(spec.scopes());
    for scope in 0..spec.scopes() {
        let mut listed = Vec::with_capacity(spec.blocks_per_scope());
        for block in 0..spec.blocks_per_scope() {
            let (tensor, index) = spec.block_index(scope, block);
            let mut offsets = vec![Vec::new(); members];
            for element in spec.elements(scope, block) {
                offsets[element.tensor].push(element.offset);
            }
            blocks[tensor.unwrap_or(0)][index] = match tensor {
                Some(tensor) => json!(offsets[tensor]),
                None if members == 1 => json!(offsets[0]),
                None => json!(offsets),
            };
            listed.push((tensor, index));
        }
        listed.sort_unstable();
        let shown = |(tensor, index): (Option<usize>, usize)| match tensor {
            Some(tensor) => json!([tensor, index]),
            None => json!(index),
        };
        scopes.push(Value::from(listed.into_iter().map(shown).collect::<Vec<_>>()));
    }
    let elements = if coupled { json!(blocks) } else { Value::from(blocks.remove(0)) };
    let mut out = Map::new();
    out.insert("elements".to_string(), elements);
    out.insert("scopes".to_string(), Value::from(scopes));
    Ok(out)
}
