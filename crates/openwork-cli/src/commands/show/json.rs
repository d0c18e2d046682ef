//! The weights of a spec's blocks as JSON.

use crate::failure::Failure;
use openwork::Spec;
use openwork::spec::Coupling;
use serde_json::{Map, Value, json};

/// Most weights that are listed one by one.
const MAX_LISTED: usize = 1 << 22;

/// The weights of every block and the blocks of every scope. Blocks are in
/// row-major order over their grid; coupled blocks list their tensors, and for
/// coupled scopes each tensor lists its blocks.
pub fn elements(spec: &Spec) -> Result<Map<String, Value>, Failure> {
    let positions: usize = spec.tensors().iter().map(|tensor| tensor.positions()).sum();
    if positions > MAX_LISTED {
        return Err(Failure::Input(format!(
            "--elements lists at most {MAX_LISTED} weights, and these tensors have {positions}; \
             use a smaller --shape"
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
