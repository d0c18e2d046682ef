//! Serialization of GGUF metadata.

/// GGUF's value types.
const INT32: u32 = 5;
const UINT32: u32 = 4;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Serialized key-value pairs, and their number.
#[derive(Default)]
pub(super) struct MetadataWriter {
    pub bytes: Vec<u8>,
    pub count: usize,
}

/// Appends a string: its length, then its bytes.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl MetadataWriter {
    fn key(&mut self, key: &str, kind: u32) {
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self.count += 1;
    }

    /// The header of an array; its values follow.
    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.key(key, ARRAY);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    pub fn text(&mut self, key: &str, value: &str) {
        self.key(key, STRING);
        text(&mut self.bytes, value);
    }

    pub fn number(&mut self, key: &str, value: u32) {
        self.key(key, UINT32);
        self.bytes.extend(value.to_le_bytes());
    }

    pub fn float(&mut self, key: &str, value: f32) {
        self.key(key, FLOAT32);
        self.bytes.extend(value.to_le_bytes());
    }

    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key, BOOL);
        self.bytes.push(u8::from(value));
    }

    pub fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, STRING, values.len());
        values.iter().for_each(|value| text(&mut self.bytes, value));
    }

    pub fn flags(&mut self, key: &str, values: &[bool]) {
        self.array(key, BOOL, values.len());
        self.bytes.extend(values.iter().map(|&flag| u8::from(flag)));
    }

    pub fn integers(&mut self, key: &str, values: &[i32]) {
        self.array(key, INT32, values.len());
        values.iter().for_each(|value| self.bytes.extend(value.to_le_bytes()));
    }
}
