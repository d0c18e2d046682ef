//! Checkpoints from any bytes.

use openwork::Matrix;
use openwork::sparse::Packed;
use openwork_llm::Checkpoint;
use std::path::Path;
use tempfile::TempDir;

/// Numbers in a tensor up to which it is decoded whole.
const SMALL: usize = 1 << 20;

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().expect("a temporary folder");
}

/// Opens `data` as a GGUF file and uses everything in it.
pub fn gguf_file(data: &[u8]) {
    FOLDER.with(|folder| {
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, data).expect("the folder is writable");
        let Some(model) = open(&path) else { return };
        if let Ok(tokenizer) = model.tokenizer() {
            let text = "Hello  w\u{f6}rld 123\n\n\t\u{1f389} <s> a b ab";
            if let Ok(ids) = tokenizer.encode(text) {
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.count()));
                let mut stream = tokenizer.stream();
                for &id in &ids {
                    stream.push(id).expect("an id of the tokenizer");
                }
                stream.finish().expect("ids of the tokenizer");
                tokenizer.decode(&ids).expect("ids of the tokenizer");
            }
        }
    });
}

/// Opens a folder with an index of as many bytes as the first two of `data`
/// say, and the rest as its shard `a`; without an index, as its only file.
/// What is accepted there, the `safetensors` crate accepts too.
pub fn safetensors_folder(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (index, file) = rest.split_at(length);
    FOLDER.with(|folder| {
        let place = folder.path().join("model");
        let _ = std::fs::remove_dir_all(&place);
        let write = |name: &str, content: &[u8]| {
            std::fs::write(place.join(name), content).expect("the folder is writable");
        };
        std::fs::create_dir(&place).expect("the folder is writable");
        write("config.json", b"{}");
        if index.is_empty() {
            write("model.safetensors", file);
        } else {
            write("model.safetensors.index.json", index);
            write("a", file);
        }
        if open(&place).is_some() {
            safetensors::SafeTensors::deserialize(file).expect("we are the stricter reader");
        }
    });
}

/// Opens `data` as the only file of a folder; what is packed in it multiplies
/// like what it unpacks to.
pub fn packed_file(data: &[u8]) {
    FOLDER.with(|folder| {
        let place = folder.path().join("packed");
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).expect("the folder is writable");
        std::fs::write(place.join("config.json"), b"{}").expect("the folder is writable");
        std::fs::write(place.join("model.safetensors"), data).expect("the folder is writable");
        let Some(model) = open(&place) else { return };
        for tensor in model.tensors().filter(|tensor| tensor.len() <= SMALL) {
            let packed = tensor.packed().expect("the parts were checked when it was opened");
            let Some(packed) = packed else { continue };
            let x = vec![1.0; packed.cols()];
            let mut y = vec![0.0; packed.rows()];
            packed.matvec(&x, &mut y);
            let rows = Matrix::from_fn(9, packed.cols(), |_, _| 1.0);
            let mut product = Matrix::zeros(9, packed.rows());
            packed.matmul(0.0, rows.view(), product.view_mut());
            let dense = tensor.to_f32();
            for (row, w) in dense.chunks(packed.cols().max(1)).enumerate() {
                let size: f64 = w.iter().map(|&w| f64::from(w).abs()).sum();
                let want: f64 = w.iter().map(|&w| f64::from(w)).sum();
                let close = |found: f32| (f64::from(found) - want).abs() <= 5e-5 * size;
                if size < f64::from(f32::MAX) {
                    assert!(close(y[row]), "row {row}: {} for {want}", y[row]);
                    assert!(close(product.row(8)[row]), "row {row} of many");
                }
            }
            let index = packed.index();
            let again = Packed::from_parts(
                packed.spec(),
                packed.tensor(),
                packed.format().name,
                index,
                packed.values().clone(),
            );
            assert!(again.is_ok(), "its own parts");
        }
    });
}

/// Well-formed inputs of [`packed_file`].
pub fn packed_seeds() -> Vec<Vec<u8>> {
    // Parts with their names, types and bytes, after a header with `extra` in the entry.
    let file = |format: &str, spec: &str, shape: &str, extra: &str, parts: &[(&str, &str, Vec<u8>)]| {
        let mut header = format!(
            r#"{{"__metadata__":{{"openwork.packed.w":"{{\"format\":\"{format}\",\"spec\":\"{spec}\",\"shape\":{shape}{extra}}}"}}"#
        );
        let (mut at, mut data) = (0, Vec::new());
        for (name, dtype, bytes) in parts {
            let count = bytes.len() / if *dtype == "U8" { 1 } else { 2 };
            let end = at + bytes.len();
            header += &format!(
                r#","w.packed.{name}":{{"dtype":"{dtype}","shape":[{count}],"data_offsets":[{at},{end}]}}"#
            );
            at = end;
            data.extend(bytes);
        }
        header += "}";
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    };
    let seed = |format: &str, spec: &str, shape: &str, values: usize, index: &[u8]| {
        let values = (0..2 * values).map(|i| (i * 3 + 1) as u8 & 0x3f).collect();
        let parts = [("values", "BF16", values), ("index", "U8", index.to_vec())];
        file(format, spec, shape, "", &parts)
    };
    // Codes without padding: whole groups of 32.
    let codes = |format: &str, spec: &str, shape: &str, kind: &str, groups: usize, index: &[u8]| {
        let bytes = if kind == "int8" { 32 } else { 16 };
        let values = (0..bytes * groups).map(|i| (i * 37 + 1) as u8 & 0x7f).collect();
        let scales = (0..2 * groups).map(|i| 0x3c + (i % 2) as u8).collect();
        let extra = format!(r#",\"values\":\"{kind}\",\"group\":32"#);
        let parts =
            [("values", "U8", values), ("index", "U8", index.to_vec()), ("scales", "BF16", scales)];
        file(format, spec, shape, &extra, &parts)
    };
    vec![
        seed("nm", "2:4", "[2,16]", 16, &[0x44; 4]),
        seed("nm", "1:4", "[3,8]", 6, &[0, 0, 0, 0]),
        seed("coupled", "2:4@8", "[2,32]", 32, &[0x44; 4]),
        seed("rows16", "rows16", "[16,32]", 256, &[0x5a, 0xff]),
        seed("block", "block(8,2)", "[8,8]", 32, &[0b0101]),
        seed("general", "2:4x2", "[2,8]", 8, &[0b001010]),
        seed("bitmask", "rowwise(50%)", "[2,8]", 8, &[0b0011_0110, 0b1010_0101]),
        seed("bitmask", "6:8", "[3,16]", 36, &[0x7e, 0xe7, 0xdb, 0x3f, 0xbd, 0xf5]),
        seed("bitmask", "16:32", "[2,32]", 32, &[0x0f, 0xf0, 0x33, 0xcc, 0x5a, 0xa5, 0xff, 0]),
        seed("bitmask", "unstructured(50%)", "[3,5]", 8, &[0b11111, 0b00110, 0b01000]),
        seed("general", "1:8", "[2,16]", 4, &[0b1010, 0b0111]),
        seed("dense", "keep 100%", "[3,5]", 15, &[]),
        codes("nm", "2:4", "[2,32]", "int8", 1, &[0x44; 8]),
        codes("coupled", "2:4@8", "[2,32]", "int4", 1, &[0x44; 4]),
        codes("rows16", "rows16", "[16,16]", "int4", 4, &[0x5a]),
        codes("block", "block(8,2)", "[8,16]", "int8", 2, &[0b0101_0101]),
        codes("bitmask", "16:32", "[2,64]", "int4", 2, &[0x0f, 0xf0, 0x33, 0xcc, 0x5a, 0xa5, 0xff, 0, 0x0f, 0xf0, 0x33, 0xcc, 0x5a, 0xa5, 0xff, 0]),
        codes("dense", "keep 100%", "[3,64]", "int4", 6, &[]),
        codes("dense", "keep 100%", "[2,32]", "int8", 2, &[]),
    ]
}

/// Opens a model and reads all of it.
fn open(path: &Path) -> Option<Checkpoint> {
    let model = Checkpoint::open(path).ok()?;
    for name in model.names() {
        assert!(model.has(name));
    }
    for tensor in model.tensors() {
        let count = tensor.nonzeros();
        assert!(count <= tensor.len() as u64);
        if tensor.len() <= SMALL {
            let whole = tensor.to_f32();
            assert_eq!(count, whole.iter().filter(|&&w| w != 0.0).count() as u64);
            if tensor.rows() > 0 {
                let last = tensor.rows() - 1;
                let mut row = vec![0.0; if whole.is_empty() { 0 } else { tensor.row_len() }];
                if row.len() == tensor.row_len() {
                    tensor.rows_f32(last..last + 1, &mut row);
                }
            }
        }
    }
    Some(model)
}

/// Well-formed inputs of [`gguf_file`].
pub fn gguf_seeds() -> Vec<Vec<u8>> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let texts = |list: &[&str]| -> Vec<u8> {
        let strings: Vec<u8> = list.iter().flat_map(|entry| text(entry)).collect();
        [&8u32.to_le_bytes()[..], &(list.len() as u64).to_le_bytes(), &strings].concat()
    };
    let numbers = |kind: u32, list: &[[u8; 4]]| -> Vec<u8> {
        [&kind.to_le_bytes()[..], &(list.len() as u64).to_le_bytes(), &list.concat()].concat()
    };
    let mut seeds = Vec::new();
    for (architecture, kind, dtype) in [
        ("llama", "llama", 0u32),
        ("llama", "gpt2", 8),
        ("qwen2", "gpt2", 2),
        ("qwen3", "gpt2", 6),
        ("gemma3", "llama", 12),
        ("llama", "gpt2", 14),
    ] {
        let mut keys: Vec<(String, u32, Vec<u8>)> = vec![
            ("general.architecture".into(), 8, text(architecture)),
            ("tokenizer.ggml.model".into(), 8, text(kind)),
            ("tokenizer.ggml.add_bos_token".into(), 7, vec![1]),
            ("tokenizer.ggml.bos_token_id".into(), 4, vec![1, 0, 0, 0]),
        ];
        for (key, value) in [
            ("block_count", 1u32),
            ("embedding_length", 256),
            ("context_length", 16),
            ("feed_forward_length", 8),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.sliding_window", 8),
        ] {
            keys.push((format!("{architecture}.{key}"), 4, value.to_le_bytes().to_vec()));
        }
        let eps = format!("{architecture}.attention.layer_norm_rms_epsilon");
        keys.push((eps, 6, 1e-5f32.to_le_bytes().to_vec()));
        let tokens = ["<unk>", "<s>", "a", "b", "ab", "\u{2581}", "<0x0A>", "  "];
        let scores: Vec<[u8; 4]> = (0..8).map(|i| (-(i as f32)).to_le_bytes()).collect();
        let marks: Vec<[u8; 4]> = [2i32, 3, 1, 1, 1, 1, 6, 4].map(i32::to_le_bytes).to_vec();
        keys.push(("tokenizer.ggml.tokens".into(), 9, texts(&tokens)));
        keys.push(("tokenizer.ggml.token_type".into(), 9, numbers(5, &marks)));
        if kind == "llama" {
            keys.push(("tokenizer.ggml.scores".into(), 9, numbers(6, &scores)));
        } else {
            keys.push(("tokenizer.ggml.pre".into(), 8, text("qwen2")));
            keys.push(("tokenizer.ggml.merges".into(), 9, texts(&["a b"])));
        }
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(2u64.to_le_bytes());
        bytes.extend((keys.len() as u64).to_le_bytes());
        for (key, kind, value) in keys {
            bytes.extend(text(&key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        for (name, rows, offset) in
            [("token_embd.weight", 1u64, 0u64), ("blk.0.attn_q.weight", 4, 1024)]
        {
            bytes.extend(text(name));
            bytes.extend(2u32.to_le_bytes());
            bytes.extend(256u64.to_le_bytes());
            bytes.extend(rows.to_le_bytes());
            bytes.extend(dtype.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend((0..1024 + 4096).map(|i| (i * 37) as u8));
        seeds.push(bytes);
    }
    seeds
}

/// Well-formed inputs of [`safetensors_folder`].
pub fn safetensors_seeds() -> Vec<Vec<u8>> {
    let header = r#"{"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"y.0":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(0..32);
    let index = r#"{"metadata":{"total_size":32},"weight_map":{"x":"a","y.0":"a"}}"#;
    let single = [&[0, 0][..], &file].concat();
    let sharded = [&(index.len() as u16).to_le_bytes()[..], index.as_bytes(), &file].concat();
    vec![single, sharded]
}
