//! Projections: what the linears of different layers have in common.

use super::record::{LinearRecord, Record};
use std::collections::HashMap;

/// The projections of one or more runs, in the order in which they are first met.
pub(super) struct Kinds {
    keys: Vec<String>,
    /// Names for people: `q`, or more of the tensor's name where that is not enough.
    pub names: Vec<String>,
}

/// A run's linears by layer (its place in the record) and projection.
pub(super) struct Cells<'a> {
    pub layers: usize,
    cells: HashMap<(usize, usize), &'a LinearRecord>,
}

impl Kinds {
    /// Of all layers of all runs.
    pub fn of<'a>(runs: impl Iterator<Item = &'a Record>) -> Self {
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The linears of one run.
    pub fn cells<'a>(&self, record: &'a Record) -> Cells<'a> {
        let places: HashMap<&str, usize> =
            self.keys.iter().enumerate().map(|(i, key)| (key.as_str(), i)).collect();
        let mut cells = HashMap::new();
        for (layer, one) in record.layers.iter().enumerate() {
            for linear in &one.linears {
                if let Some(&kind) = places.get(key(&linear.name)) {
                    cells.insert((layer, kind), linear);
                }
            }
        }
        Cells { layers: record.layers.len(), cells }
    }
}

impl<'a> Cells<'a> {
    /// A linear that the run has.
    pub fn get(&self, layer: usize, kind: usize) -> Option<&'a LinearRecord> {
        self.cells.get(&(layer, kind)).copied()
    }

    /// The error of a linear that was pruned.
    pub fn error(&self, layer: usize, kind: usize) -> Option<f64> {
        self.get(layer, kind).filter(|linear| linear.method.is_some()).map(|linear| linear.error)
    }
}

/// A tensor's name without its layer: `self_attn.q_proj`.
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
    fn a_key_is_what_layers_share() {
        assert_eq!(key("model.layers.12.self_attn.q_proj.weight"), "self_attn.q_proj");
        assert_eq!(key("lm_head.weight"), "lm_head");
        assert_eq!(key("model.layers.3"), "model.layers.3");
        assert_eq!(key(""), "");
        assert_eq!(short("self_attn.q_proj"), "q");
        assert_eq!(short("mlp._proj"), "mlp._proj");
    }
}
