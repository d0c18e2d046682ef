//! A JSON object as the list of its entries, duplicates included: a map would
//! silently keep the last of two tensors with the same name.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// The entry of a safetensors header that is not a tensor.
const METADATA: &str = "__metadata__";

/// The entries in file order, and safetensors' `__metadata__`. An error in a
/// value names its entry.
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
        f.write_str("an object with one entry per tensor")
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
