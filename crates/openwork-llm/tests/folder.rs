//! Hugging Face folders: good ones open, each kind of bad one is refused in
//! its own words.

use openwork_llm::{Checkpoint, Dtype};
use safetensors::tensor::{Dtype as Stored, TensorView};
use std::path::Path;
use tempfile::TempDir;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#;

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("the folder is writable");
    }
    folder
}

/// A safetensors file with this header and `data` bytes of zeros.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// A safetensors file with one vector of F32 for each name.
fn vectors(names: &[&str]) -> Vec<u8> {
    let data: Vec<u8> = [1.0f32, 0.0, -2.0].iter().flat_map(|w| w.to_le_bytes()).collect();
    let views =
        names.iter().map(|&name| (name, TensorView::new(Stored::F32, vec![3], &data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// The words of the error, with the folder's own path left out.
fn refusal(files: &[(&str, &[u8])]) -> String {
    let folder = folder(files);
    let error = Checkpoint::open(folder.path()).expect_err("a bad folder was opened");
    without_place(&error.to_string(), folder.path())
}

fn without_place(words: &str, place: &Path) -> String {
    let place = place.display().to_string();
    words.replace(&format!("{place}/"), "").replace(&place, "FOLDER")
}

/// The refusal of a model in one file with this header.
fn header_refusal(header: &str, data: usize) -> String {
    refusal(&[("config.json", CONFIG.as_bytes()), ("model.safetensors", &file(header, data))])
}

fn entry(name: &str, dtype: &str, shape: &str, start: i64, end: i64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn one_file_opens_and_every_tensor_is_there() {
    let half: Vec<u8> = [0x00, 0x3c, 0x00, 0x00, 0x00, 0xc0, 0x00, 0x38].to_vec();
    let brain: Vec<u8> = [0x80, 0x3f, 0x00, 0xc0].to_vec();
    let data: Vec<u8> = [1.5f32, 0.0].iter().flat_map(|w| w.to_le_bytes()).collect();
    let views = [
        ("layers.10.w", TensorView::new(Stored::F16, vec![2, 2], &half).unwrap()),
        ("layers.2.w", TensorView::new(Stored::BF16, vec![2, 1], &brain).unwrap()),
        ("norm", TensorView::new(Stored::F32, vec![2], &data).unwrap()),
    ];
    let bytes = safetensors::serialize(views, None).unwrap();
    let folder = folder(&[("config.json", CONFIG.as_bytes()), ("model.safetensors", &bytes)]);
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.names().collect::<Vec<_>>(), ["layers.2.w", "layers.10.w", "norm"]);
    assert_eq!(model.config()["model_type"], "llama");
    let w = model.tensor("layers.10.w").unwrap();
    assert_eq!((w.shape(), w.dtype(), w.name()), (&[2, 2][..], Dtype::F16, "layers.10.w"));
    assert_eq!(w.to_f32(), [1.0, 0.0, -2.0, 0.5]);
    assert_eq!(w.bytes(), Some(&half[..]));
    assert_eq!(w.nonzeros(), 3);
    let mut row = [0.0; 2];
    w.rows_f32(1..2, &mut row);
    assert_eq!(row, [-2.0, 0.5]);
    assert_eq!(model.tensor("layers.2.w").unwrap().to_f32(), [1.0, -2.0]);
    assert!(model.has("norm") && !model.has("layers.1.w"));

    let words =
        |error: openwork_llm::CheckpointError| without_place(&error.to_string(), folder.path());
    assert_eq!(
        words(model.tensor("lm_head").unwrap_err()),
        "FOLDER: none of the 3 tensors is called \"lm_head\""
    );
    assert_eq!(
        words(model.tensor_with_shape("norm", &[3]).unwrap_err()),
        "FOLDER: tensor \"norm\" has shape [2], but the config implies [3]"
    );
    assert_eq!(
        words(model.tokenizer().unwrap_err()),
        "FOLDER: the folder has no tokenizer.json; a model needs config.json, tokenizer.json and \
         model.safetensors (or shards with model.safetensors.index.json)"
    );
}

#[test]
fn shards_open_as_one_model() {
    let index = r#"{"metadata": {"total_size": 24}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    let folder = folder(&[
        ("config.json", CONFIG.as_bytes()),
        ("1.safetensors", &vectors(&["a"])),
        ("2.safetensors", &vectors(&["b"])),
        ("model.safetensors.index.json", index.as_bytes()),
    ]);
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(model.tensor("b").unwrap().to_f32(), [1.0, 0.0, -2.0]);
    assert_eq!(model.files().count(), 2);
}

#[test]
fn a_folder_that_lacks_a_part_is_refused() {
    assert!(refusal(&[]).starts_with("FOLDER: the folder has no config.json; a model needs"));
    assert!(
        refusal(&[("config.json", b"{}")])
            .starts_with("FOLDER: the folder has no model.safetensors;")
    );
    assert!(refusal(&[("config.json", b"{")]).starts_with("config.json: not valid JSON: EOF"));
    assert_eq!(refusal(&[("config.json", b"3")]), "config.json: not a JSON object");
    let gone = Checkpoint::open(Path::new("no-such-model")).unwrap_err();
    assert_eq!(gone.to_string(), "no-such-model: no such file or folder");
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let refuse = |map: &str, shards: &[(&str, &[&str])]| {
        let index = format!(r#"{{"weight_map": {map}}}"#);
        let shards: Vec<(&str, Vec<u8>)> =
            shards.iter().map(|&(name, tensors)| (name, vectors(tensors))).collect();
        let mut files: Vec<(&str, &[u8])> = vec![
            ("config.json", CONFIG.as_bytes()),
            ("model.safetensors.index.json", index.as_bytes()),
        ];
        files.extend(shards.iter().map(|(name, bytes)| (*name, &bytes[..])));
        refusal(&files).replace("model.safetensors.index.json", "INDEX")
    };
    assert_eq!(
        refuse(r#"{"a": "1", "b": "2"}"#, &[("1", &["a"])]),
        "INDEX: the shard \"2\" of tensor \"b\" does not exist"
    );
    assert_eq!(
        refuse(r#"{"a": "1", "b": "1"}"#, &[("1", &["a"])]),
        "INDEX: lists tensor \"b\" in 1, which does not contain it"
    );
    assert_eq!(
        refuse(r#"{"a": "1"}"#, &[("1", &["a", "b"])]),
        "INDEX: does not list tensor \"b\" of 1"
    );
    assert_eq!(
        refuse(r#"{"a": "1", "b": "2"}"#, &[("1", &["a"]), ("2", &["a", "b"])]),
        "2: tensor \"a\" is also in 1; a name may appear in one shard only"
    );
    assert_eq!(
        refuse(r#"{"a": "1", "a": "1"}"#, &[("1", &["a"])]),
        "INDEX: tensor \"a\" is listed twice"
    );
    for name in ["../1", "/etc/passwd", "", ".."] {
        assert_eq!(
            refuse(&format!(r#"{{"a": "{name}"}}"#), &[]),
            format!(
                "INDEX: invalid shard name \"{name}\"; a shard must be a file in the same folder"
            )
        );
    }
    assert_eq!(refuse("{}", &[]), "INDEX: the weight_map is empty");
    assert!(
        refuse("3", &[]).starts_with("INDEX: not an index of shards: invalid type: integer `3`")
    );
}

#[test]
fn a_damaged_header_is_refused() {
    let refuse = |bytes: &[u8]| refusal(&[("config.json", b"{}"), ("model.safetensors", bytes)]);
    assert_eq!(
        refuse(&[]),
        "model.safetensors: the file ends after 0 bytes, inside the header's length, which needs 8 \
         bytes; it is truncated or damaged"
    );
    assert_eq!(
        refuse(&(1u64 << 60).to_le_bytes()),
        "model.safetensors: the header length of 1152921504606846976 bytes exceeds the limit of \
         100000000; the file is damaged or not safetensors"
    );
    assert_eq!(
        refuse(&vectors(&["a"])[..40]),
        "model.safetensors: the file ends after 40 bytes, inside the header, which needs 64 bytes; \
         it is truncated or damaged"
    );
    assert!(header_refusal("{", 0).starts_with("model.safetensors: invalid header: EOF"));
    assert!(header_refusal("[]", 0).contains("invalid header: invalid type: sequence"));
    let deep = "[".repeat(100_000);
    for (header, why) in [
        (format!(r#"{{"x":{deep}"#), "tensor \"x\": invalid type: sequence"),
        (r#"{"__metadata__":3}"#.to_string(), "invalid type: integer `3`, expected a map"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.to_string(), "duplicate field"),
    ] {
        let words = header_refusal(&header, 0);
        assert!(words.contains(&format!("invalid header: {why}")), "{words}");
    }
    let not_utf8 = [&20u64.to_le_bytes()[..], b"{\"__metadata__\":\"\xff\"}"].concat();
    assert!(refuse(&not_utf8).contains("invalid header: invalid utf-8"));
}

#[test]
fn a_bad_entry_is_refused_by_the_tensors_name() {
    let refuse = |entries: &[String], data| {
        let words = header_refusal(&format!("{{{}}}", entries.join(",")), data);
        words.strip_prefix("model.safetensors: ").expect("the file is named").to_string()
    };
    assert_eq!(
        refuse(&[entry("a", "F32", "[2]", 0, 8), entry("b", "F32", "[2]", 4, 12)], 12),
        "tensor \"b\" at bytes 4..12 overlaps tensor \"a\", which ends at byte 8"
    );
    assert_eq!(
        refuse(&[entry("a", "F32", "[2]", 0, 8), entry("a", "F32", "[2]", 8, 16)], 16),
        "tensor \"a\" is listed twice"
    );
    assert_eq!(
        refuse(&[entry("a", "F32", "[2]", 0, 8), entry("b", "F32", "[2]", 12, 20)], 20),
        "bytes 8..12 of the data belong to no tensor; the file is damaged"
    );
    assert_eq!(
        refuse(&[entry("a", "F32", "[2]", 0, 8)], 9),
        "bytes 8..9 of the data belong to no tensor; the file is damaged"
    );
    assert_eq!(
        refuse(&[entry("a", "F32", "[2]", 0, 8)], 7),
        "tensor \"a\" at bytes 0..8 exceeds the file's 7 bytes of data; \
         the file is truncated or damaged"
    );
    assert_eq!(
        refuse(&[entry("a", "F16", "[2, 3]", 0, 8)], 8),
        "tensor \"a\" of F16 with shape [2, 3] needs 12 bytes, but its offsets 0..8 hold 8"
    );
    assert_eq!(
        refuse(&[entry("a", "F16", "[2]", 8, 4)], 8),
        "tensor \"a\" of F16 with shape [2] needs 4 bytes, but its offsets 8..4 hold -4"
    );
    assert!(
        refuse(&[entry("a", "F32", "[2]", -8, 0)], 8)
            .starts_with("invalid header: tensor \"a\": invalid value: integer `-8`")
    );
    for shape in
        ["[4294967296, 4294967296]", "[0, 4294967296, 4294967296]", "[9223372036854775807]"]
    {
        let words = refuse(&[entry("a", "F32", shape, 0, 0)], 0);
        assert!(words.ends_with("too many elements for any file"), "{words}");
    }
    assert!(
        refuse(&[entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4)], 4).contains("more than 8 axes")
    );
    assert_eq!(
        refuse(&[entry("a", "F8_E4M3", "[2]", 0, 2)], 2),
        "tensor \"a\" has the unsupported type F8_E4M3 (supported: \
         F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL)"
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_is_refused_at_once() {
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::os::unix::fs::symlink;
    let good: &[(&str, &[u8])] = &[
        ("config.json", CONFIG.as_bytes()),
        ("model.safetensors", &vectors(&["a"])),
        ("tokenizer.json", b"{}"),
    ];
    for (i, (name, _)) in good.iter().enumerate() {
        let others: Vec<_> = good.iter().filter(|(other, _)| other != name).copied().collect();
        for device in [false, true] {
            let folder = folder(&others);
            let path = folder.path().join(name);
            match device {
                true => symlink("/dev/zero", &path).unwrap(),
                false => mkfifoat(CWD, &path, Mode::RWXU).unwrap(),
            }
            let found = Checkpoint::open(folder.path()).and_then(|model| model.tokenizer());
            let words = without_place(&found.unwrap_err().to_string(), folder.path());
            let why = match i {
                1 => {
                    "not a model; expected a folder with config.json and safetensors, or a .gguf file"
                }
                _ => "cannot be read: not a regular file",
            };
            assert_eq!(words, format!("{name}: {why}"));
        }
    }
}
