//! The JSON description of a bound spec: what `openwork show --json` prints and
//! Python's `BoundSpec.show` returns.

use openwork::Spec;
use openwork::fragment::{self, Fragment, KeptRange};
use openwork::sparse::{Encoding, Packed, VALUE_KINDS};
use openwork::spec::{Coupling, Side, Tensor};
use openwork::viz;
use serde_json::{Value, json};

/// Up to this many densities are listed individually.
const MAX_DENSITIES: usize = 64;

/// Grids, scopes, densities, storage and memory-access facts of a spec.
pub fn spec_json(spec: &Spec) -> Value {
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
    let mut object = json!({
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
        "scope_size": total(|tensor| tensor.positions()) / spec.scopes(),
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
            "values": VALUE_KINDS.iter().map(|kind| {
                let bits = kind.bits_with_scale(Encoding::DEFAULT_GROUP);
                json!({"name": kind.name, "bits_per_weight": facts.bits_per_weight(bits)})
            }).collect::<Vec<_>>(),
            "packed": (0..spec.tensors().len()).map(|t| packed(spec, t)).collect::<Vec<_>>(),
        },
    });
    if spec.has_levels() {
        object["density_exact"] = json!(spec.density_ratio().map(|ratio| ratio.to_string()));
        object["levels"] = spec.levels().iter().map(|(path, spec)| level(path, spec)).collect();
    }
    object
}

/// One level of several; its tensor is the one that the level around it leaves.
fn level(path: &[Side], spec: &Spec) -> Value {
    let mut object = tensor(&spec.tensors()[0], false);
    let facts = spec.facts();
    object["level"] = json!(path.len() + 1);
    object["path"] = path.iter().map(|side| side.word()).collect();
    object["spec"] = json!(spec.level_text());
    object["scope"] = json!(spec.tensors()[0].scope_tile());
    object["scope_grid"] = json!(spec.scope_grid());
    object["num_blocks"] = json!(spec.blocks());
    object["block_size"] = json!(facts.block_sizes[0]);
    object["num_scopes"] = json!(spec.scopes());
    object["blocks_per_scope"] = json!(spec.blocks_per_scope());
    object["keep"] = json!(spec.keep());
    object["block_density"] = json!(spec.block_density());
    object["density"] = json!(spec.density());
    object["index_bits"] = json!(facts.index_bits);
    object["least_index_bits"] = json!(facts.least_index_bits);
    object
}

fn tensor(tensor: &Tensor, coupled: bool) -> Value {
    let mut object = json!({
        "name": tensor.name(),
        "shape": tensor.dims(),
        "view": viz::layout(tensor),
        "block": tensor.blocks().tile(),
        "block_grid": tensor.blocks().counts(),
        "perm": tensor.perm(),
        "domain_size": tensor.domain_size(),
        "padding": tensor.positions() - tensor.domain_size(),
    });
    if let Some(written) = tensor.composition() {
        object["composition"] = json!(written);
    }
    if coupled {
        object["scope"] = json!(tensor.scope_tile());
    }
    object
}

/// The packed format of a tensor, null for specs with levels; `slow` says why its kernels do not reach what its
/// bytes allow.
fn packed(spec: &Spec, tensor: usize) -> Value {
    if spec.has_levels() {
        return Value::Null;
    }
    let format = Packed::format_of(spec, tensor);
    json!({
        "format": format.name,
        "kernels": format.kernels,
        "slow": Packed::slow_because(spec, tensor),
    })
}

fn densities(spec: &Spec) -> Value {
    match viz::densities(spec, MAX_DENSITIES) {
        Some(all) => json!(all),
        None => json!(format!("k/{0} for k = 0 to {0}", spec.blocks_per_scope())),
    }
}

/// A spec mapped onto a tensor core fragment.
pub fn fragment_json(found: &Fragment) -> Value {
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
