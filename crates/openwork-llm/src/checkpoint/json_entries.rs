//! A JSON object as the list of its entries, twins included: a map would keep
//! the last of two tensors with one name and say nothing.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// The entry of a safetensors header that is no tensor.
const METADATA: &str = "__metadata__";

/// Entries in the order written, and safetensors' `__metadata__` beside them. An
/// error in a value names the entry.
pub(super) struct JsonEntries<V>(pub Vec<(String, V)>, pub HashMap<String, String>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for JsonEntries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Read(PhantomData))
    }
}

struct Read<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Read<V> {
    type Value = JsonEntries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonEntries<V>, A::Error> {
        let mut entries = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if metadata.is_some() {
                    return Err(Error::duplicate_field(METADATA));
                }
                metadata = Some(map.next_value::<HashMap<String, String>>()?);
                continue;
            }
            let value =
                map.next_value().map_err(|why| Error::custom(format!("tensor {name:?}: {why}")))?;
            entries.push((name, value));
        }
        Ok(JsonEntries(entries, metadata.unwrap_or_default()))
    }
}
