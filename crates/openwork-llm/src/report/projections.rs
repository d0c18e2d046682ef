//! Projections: the linears that layers have in common, `q`, `k`, .. `down`.

use super::record::{LinearRecord, Record};
use std::collections::HashMap;

/// The projections of one or more runs, in order of first occurrence.
pub(super) struct Projections {
    keys: Vec<String>,
    /// Short names, `q`; longer ones where the short name is ambiguous.
    pub names: Vec<String>,
}

/// The linears of a run by layer (its position in the record) and projection.
pub(super) struct LinearGrid<'a> {
    pub layers: usize,
    cells: HashMap<(usize, usize), &'a LinearRecord>,
}

impl Projections {
    /// The projections of all layers of all runs.
    pub fn new<'a>(runs: impl Iterator<Item = &'a Record>) -> Self {
        let mut keys: Vec<String> = Vec::new();
        for linear in runs.flat_map(Record::linears) {
            let key = key(&linear.name);
            if !keys.iter().any(|known| known == key) {
                keys.push(key.to_string());
            }
        }
        let short: Vec<&str> = keys.iter().map(|key| short(key)).collect();
        let names = (keys.iter().zip(&short))
            .map(|(key, name)| {
                let alone = short.iter().filter(|other| *other == name).count() == 1;
                if alone { name.to_string() } else { key.clone() }
            })
            .collect();
        Self { keys, names }
    }

    /// Number of projections.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The linears of one run.
    pub fn cells<'a>(&self, record: &'a Record) -> LinearGrid<'a> {
        let places: HashMap<&str, usize> =
            self.keys.iter().enumerate().map(|(i, key)| (key.as_str(), i)).collect();
        let mut cells = HashMap::new();
        for (layer, one) in record.layers.iter().enumerate() {
            for linear in &one.linears {
                if let Some(&projection) = places.get(key(&linear.name)) {
                    cells.insert((layer, projection), linear);
                }
            }
        }
        LinearGrid { layers: record.layers.len(), cells }
    }
}

impl<'a> LinearGrid<'a> {
    /// The linear, if the run has it.
    pub fn get(&self, layer: usize, projection: usize) -> Option<&'a LinearRecord> {
        self.cells.get(&(layer, projection)).copied()
    }

    /// The error of the linear, if it was pruned.
    pub fn error(&self, layer: usize, projection: usize) -> Option<f64> {
        self.get(layer, projection)
            .filter(|linear| linear.method.is_some())
            .map(|linear| linear.error)
    }
}

/// A tensor name without its layer: `self_attn.q_proj`.
fn key(name: &str) -> &str {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    // After the first part of the name that is a number.
    let mut start = 0;
    for part in name.split('.') {
        start += part.len() + 1;
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && start < name.len() {
            return &name[start..];
        }
    }
    name
}

fn short(key: &str) -> &str {
    let last = key.rsplit('.').next().unwrap_or(key);
    let name = last.strip_suffix("_proj").unwrap_or(last);
    if name.is_empty() { key } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_name_without_the_layer() {
        assert_eq!(key("model.layers.12.self_attn.q_proj.weight"), "self_attn.q_proj");
        assert_eq!(key("lm_head.weight"), "lm_head");
        assert_eq!(key("model.layers.3"), "model.layers.3");
        assert_eq!(key(""), "");
        assert_eq!(short("self_attn.q_proj"), "q");
        assert_eq!(short("mlp._proj"), "mlp._proj");
    }
}
