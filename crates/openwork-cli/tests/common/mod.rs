//! Small safetensors files and a way to run the command on them.

#![allow(dead_code)] // each test program uses a part

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of its own for one test.
pub struct Folder(tempfile::TempDir);

/// The output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A tensor for a test file: name, type, shape, bytes.
pub type Raw<'a> = (&'a str, &'a str, Vec<usize>, Vec<u8>);

/// An f32 tensor.
pub fn f32s<'a>(name: &'a str, shape: &[usize], values: &[f32]) -> Raw<'a> {
    assert_eq!(shape.iter().product::<usize>(), values.len());
    (name, "F32", shape.to_vec(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// An f64 tensor.
pub fn f64s<'a>(name: &'a str, shape: &[usize], values: &[f64]) -> Raw<'a> {
    (name, "F64", shape.to_vec(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// An f16 tensor.
pub fn f16s<'a>(name: &'a str, shape: &[usize], values: &[f32]) -> Raw<'a> {
    let bytes = values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
    (name, "F16", shape.to_vec(), bytes)
}

/// A bf16 tensor.
pub fn bf16s<'a>(name: &'a str, shape: &[usize], values: &[f32]) -> Raw<'a> {
    let bytes = values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
    (name, "BF16", shape.to_vec(), bytes)
}

/// Reproducible numbers between -1 and 1.
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    (0..count)
        .map(|_| {
            // Knuth's MMIX generator.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// X'X / n of `n` random samples, and its f32 entries.
pub fn hessian(k: usize, n: usize, seed: u64) -> Vec<f32> {
    let x = noise(n * k, seed);
    let entry = |i: usize, j: usize| -> f64 {
        (0..n).map(|s| f64::from(x[s * k + i]) * f64::from(x[s * k + j])).sum::<f64>() / n as f64
    };
    (0..k * k).map(|e| entry(e / k, e % k) as f32).collect()
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[Raw<'_>], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = Map::new();
    let metadata: Map<String, Value> =
        metadata.iter().map(|(key, value)| (key.to_string(), json!(value))).collect();
    fields.insert("__metadata__".to_string(), Value::Object(metadata));
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        fields.insert(
            name.to_string(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
        );
        data.extend(bytes);
    }
    let header = Value::Object(fields).to_string().into_bytes();
    [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat()
}

impl Folder {
    /// An empty folder.
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a safetensors file.
    pub fn file(&self, name: &str, tensors: &[Raw<'_>]) {
        self.bytes(name, &safetensors(tensors, &[]));
    }

    /// Writes any file.
    pub fn bytes(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// The names of all files.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs the command in the folder, with arguments separated by spaces.
    pub fn run(&self, args: &str) -> CommandOutput {
        self.run_list(&args.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs the command in the folder.
    pub fn run_list(&self, args: &[&str]) -> CommandOutput {
        let output = Command::new(env!("CARGO_BIN_EXE_openwork"))
            .args(args)
            .current_dir(self.0.path())
            .output()
            .unwrap();
        let said = CommandOutput {
            code: output.status.code().expect("it ended by itself"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!said.err.contains("panicked"), "{args:?}: {}", said.err);
        said
    }

    /// Runs with `--json` and reads the one object that is printed.
    pub fn json(&self, args: &str) -> Value {
        let said = self.run(&format!("{args} --json"));
        assert_eq!(said.code, 0, "{args}: {}", said.err);
        serde_json::from_str(&said.out).expect("one JSON object and nothing else")
    }

    /// Runs a command that must be refused, writing nothing; its message.
    pub fn refused(&self, args: &str) -> String {
        let before = self.names();
        let said = self.run(args);
        assert_eq!(said.code, 2, "{args}: {}{}", said.out, said.err);
        assert_eq!(said.out, "", "{args}");
        assert_eq!(self.names(), before, "{args}");
        let message = said.err.strip_prefix("error: ");
        message.unwrap_or_else(|| panic!("{args}: {}", said.err)).trim_end().to_string()
    }

    /// The f32 values, shape, type and metadata of a tensor of a written file.
    pub fn read(&self, file: &str, name: &str) -> (Vec<f32>, Vec<usize>, String) {
        read(&self.path(file), name)
    }
}

fn read(path: &Path, name: &str) -> (Vec<f32>, Vec<usize>, String) {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    let dtype = format!("{:?}", tensor.dtype());
    let data = tensor.data();
    let pairs = || data.chunks(2).map(|b| [b[0], b[1]]);
    let values = match dtype.as_str() {
        "F64" => data.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()) as f32).collect(),
        "F32" => data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        "F16" => pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        "BF16" => pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        _ => panic!("unexpected type {dtype}"),
    };
    (values, tensor.shape().to_vec(), dtype)
}
