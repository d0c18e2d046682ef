//! `openwork pack`, `unpack`, `bench`, `formats` and `show --fragment`, as a user
//! runs them: what they give, and what they say of each mistake.

mod common;

use common::Folder;
use openwork::sparse::FORMATS;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
    path.canonicalize().unwrap().display().to_string()
}

/// A folder with the model `pruned`, cut to `spec` by magnitude.
fn pruned(name: &str, spec: &str) -> Folder {
    let folder = Folder::new();
    folder.bytes("calib.txt", "the open work of a wall lets the light in ".repeat(40).as_bytes());
    let args = "--method magnitude --calib calib.txt --samples 1 --seq-len 16 --out pruned";
    folder.json(&format!("prune {} --spec {spec} {args}", model(name)));
    folder
}

/// Every tensor of a folder's shards: type, shape and bytes.
fn tensors(folder: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, tensor) in file.tensors() {
            let kind = format!("{:?}", tensor.dtype());
            found.insert(name, (kind, tensor.shape().to_vec(), tensor.data().to_vec()));
        }
    }
    found
}

/// The shard of a packed folder with its first layer, and where its data begins.
fn first_layer(folder: &Folder) -> (String, Vec<u8>, usize) {
    let name = "packed/model-00002-of-00003.safetensors".to_string();
    let bytes = std::fs::read(folder.path(&name)).unwrap();
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (name, bytes, 8 + head)
}

#[test]
fn what_was_pruned_is_packed_and_comes_back() {
    for (name, spec, share) in [
        ("models/llama", "2:4", 9.0 / 16.0),
        ("models/mistral", "1:4", 5.0 / 16.0),
        ("models/llama-tied", "rowwise(50%)", 0.6),
    ] {
        let folder = pruned(name, spec);
        let packed = folder.json("pack pruned --out packed");
        let summary = &packed["summary"];
        assert_eq!(summary["tensors"].as_array().unwrap().len(), 14, "{name}");
        let bytes = |key: &str| summary[key].as_f64().unwrap();
        // Values of 4 bytes make the index's part of a 2-byte format smaller still.
        assert!(bytes("bytes") <= share * bytes("dense_bytes"), "{name}: {summary}");
        assert_eq!(folder.json("unpack packed --out again")["out"], "again");
        assert_eq!(tensors(&folder.path("again")), tensors(&folder.path("pruned")), "{name}");
        let inspected = folder.json("inspect packed");
        let packings = inspected["tensors"].as_array().unwrap();
        let found = packings.iter().filter(|tensor| !tensor["packed"].is_null()).count();
        assert_eq!(found, 14, "{name}: {}", inspected["tensors"][3]);
        let generate = |model: &str| {
            folder.run_list(&["generate", model, "--prompt", "the wall", "--max-new-tokens", "8"])
        };
        let (a, b) = (generate("packed"), generate("pruned"));
        assert_eq!((a.code, a.out), (0, b.out), "{name}: {}", a.err);
    }
}

#[test]
fn packing_prints_a_table() {
    let folder = pruned("models/llama", "2:4");
    let said = folder.run("pack pruned --out packed");
    assert_eq!(said.code, 0, "{}", said.err);
    for part in ["spec", "ratio", "2:4", "nm", "14", "all tensors"] {
        assert!(said.out.contains(part), "{}", said.out);
    }
    let said = folder.run("unpack packed --out again");
    assert!(said.out.is_empty() && said.err.starts_with("wrote again ("), "{said:?}");
}

#[test]
fn a_tensor_that_does_not_conform_is_named_and_nothing_is_written() {
    let folder = pruned("models/llama", "2:4");
    let words = folder.refused("pack pruned --out packed --spec 1:4");
    assert!(words.contains("model.layers.0.self_attn.") && words.contains("1:4"), "{words}");
    let words = folder.refused(&format!("pack {} --out packed --spec 2:4", model("models/qwen3")));
    assert!(words.starts_with("model.layers.0."), "{words}");
}

#[test]
fn packing_refuses_what_it_cannot_do() {
    let folder = pruned("models/llama", "1:4");
    let dense = model("models/llama");
    for (args, parts) in [
        ("pack pruned --out x --format zip".to_string(), &["--format zip", "cutlass"][..]),
        ("pack pruned --out x --format nm".to_string(), &["--format nm", "openwork"]),
        (
            "pack pruned --out pruned".to_string(),
            &["pruned: the output would overwrite the input pruned"],
        ),
        ("pack no-such --out x".to_string(), &["no-such: no such file"]),
        ("pack pruned --out x --spec 2:".to_string(), &["2:"]),
        (format!("pack {dense} --out x"), &["record.json", "--spec"]),
        ("pack pruned --out x --format cutlass".to_string(), &["2:4", "1:4", "model.layers.0."]),
        ("pack pruned --out x --format compressed-tensors".to_string(), &["2:4", "1:4"]),
        (format!("unpack {dense} --out x"), &["no tensor is packed"]),
    ] {
        let words = folder.refused(&args);
        parts.iter().for_each(|part| assert!(words.contains(part), "{args}: {words}"));
    }
    folder.json("pack pruned --out packed");
    let words = folder.refused("pack packed --out x");
    assert!(words.contains("packed already; unpack the model first"), "{words}");
    let words = folder.refused("bench packed --spec 2:4");
    assert!(words.contains("packed already"), "{words}");
}

/// The file of a folder that holds a tensor, and where the tensor's bytes begin.
fn tensor_at(folder: &Path, name: &str) -> (PathBuf, usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        if let Some(start) = header[name]["data_offsets"][0].as_u64() {
            return (path, 8 + length + start as usize);
        }
    }
    panic!("{name} is in no file of {}", folder.display());
}

/// Overwrites bytes at the beginning of a tensor.
fn damage(folder: &Path, name: &str, with: &[u8]) {
    let (path, at) = tensor_at(folder, name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn weights_that_are_not_finite_are_refused_before_anything_is_written() {
    let folder = pruned("models/mistral", "2:4");
    folder.json("pack pruned --out packed");
    let name = "model.layers.1.mlp.up_proj.weight";
    damage(&folder.path("packed"), &format!("{name}.packed.values"), &0x7fc0u16.to_le_bytes());
    let words = folder.refused("unpack packed -o again");
    assert!(words.contains(name) && words.contains("NaN"), "{words}");
    damage(&folder.path("pruned"), "model.norm.weight", &0x7f80u16.to_le_bytes());
    for format in ["openwork", "compressed-tensors", "gguf-bf16"] {
        let words = folder.refused(&format!("pack pruned -o again --format {format}"));
        assert!(words.contains("model.norm.weight") && words.contains("infinity"), "{words}");
    }
}

#[test]
fn compressed_tensors_lists_dense_linears_and_counts_zeros() {
    let folder = Folder::new();
    folder.bytes("calib.txt", "the open work of a wall lets the light in ".repeat(40).as_bytes());
    folder.bytes(
        "recipe.toml",
        br#"spec = "2:4"
method = "magnitude"
[[rule]]
match = "layers.0.*(q_proj|down_proj)"
dense = true
"#,
    );
    let args = "--recipe recipe.toml --calib calib.txt --samples 1 --seq-len 16 --out pruned";
    folder.json(&format!("prune {} {args}", model("models/mistral")));
    folder.json("pack pruned --out exported --format compressed-tensors");
    let config = std::fs::read_to_string(folder.path("exported/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let (mut zeros, mut weights) = (0, 0);
    for (kind, _, bytes) in tensors(&folder.path("pruned")).into_values() {
        assert_eq!(kind, "BF16");
        zeros += bytes.chunks(2).filter(|w| w[0] == 0 && w[1] & 0x7f == 0).count();
        weights += bytes.len() / 2;
    }
    let expected = serde_json::json!({
        "quant_method": "compressed-tensors",
        "sparsity_config": {
            "format": "sparse-24-bitmask",
            "global_sparsity": zeros as f64 / weights as f64,
            "ignore": ["lm_head", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"],
            "registry_requires_subclass": false,
            "sparsity_structure": "2:4",
            "targets": ["Linear"],
        },
    });
    assert_eq!(config["quantization_config"], expected);
    let stored = tensors(&folder.path("exported"));
    assert!(stored.contains_key("model.layers.0.self_attn.q_proj.weight"));
    assert!(stored.contains_key("model.layers.1.self_attn.q_proj.bitmask"));
}

#[test]
fn an_export_that_is_read_back_says_what_it_is() {
    let folder = pruned("models/mistral", "2:4");
    folder.json("pack pruned --out compressed --format compressed-tensors");
    for command in [
        "generate compressed --prompt a",
        "unpack compressed --out x",
        "bench compressed",
        "prune compressed --spec 2:4 --calib demo --out x",
    ] {
        let words = folder.refused(command);
        let expected = "compressed: the weights are stored for compressed-tensors, which openwork exports but does not read";
        assert!(words.starts_with(expected), "{words}");
    }
    let page = folder.run("inspect compressed").out;
    assert!(page.contains("safetensors, stored for compressed-tensors\n"), "{page}");
    assert_eq!(folder.json("inspect compressed")["stored_for"], "compressed-tensors");
}

#[test]
fn remains_of_a_killed_pack_do_not_stop_the_next() {
    let folder = pruned("models/llama", "2:4");
    std::fs::create_dir(folder.path("packed.unfinished")).unwrap();
    std::fs::create_dir(folder.path("other.unfinished")).unwrap();
    folder.bytes("packed.unfinished/.openwork-lock", b"");
    folder.bytes("packed.unfinished/model-00001-of-00003.safetensors", b"half");
    folder.json("pack pruned --out packed");
    assert!(!folder.path("packed.unfinished").exists());
    assert!(!folder.path("packed/.openwork-lock").exists());
    folder.bytes("other.unfinished/mine.txt", b"mine");
    let words = folder.refused("pack pruned --out other");
    assert!(words.contains("`other` is written under this name until it is complete"), "{words}");
    assert_eq!(std::fs::read(folder.path("other.unfinished/mine.txt")).unwrap(), b"mine");
}

#[test]
fn a_damaged_packed_file_is_refused_by_every_command() {
    let folder = pruned("models/llama", "2:4");
    folder.json("pack pruned --out packed");
    let (name, whole, _) = first_layer(&folder);
    let text = |bytes: &[u8], from: &str, to: &str| {
        assert_eq!(from.len(), to.len(), "the header keeps its length");
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("{from} is in the header"));
        [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
    };
    // An index whose places do not rise, wherever it lies.
    let mut places = whole.clone();
    let file = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let index = file.names().into_iter().find(|name| name.ends_with(".packed.index")).unwrap();
    let data = file.tensor(index).unwrap().data();
    let at = data.as_ptr() as usize - whole.as_ptr() as usize;
    places[at..at + data.len()].fill(0);
    for (bytes, part) in [
        (places, "do not ascend"),
        (whole[..whole.len() - 7].to_vec(), "model-00002"),
        (text(&whole, r#"\"spec\":\"2:4\""#, r#"\"spec\":\"1:4\""#), "model-00002"),
        (text(&whole, r#"\"format\":\"nm\""#, r#"\"format\":\"zz\""#), "zz"),
        (text(&whole, ".packed.values", ".packed.valuez"), "model-00002"),
    ] {
        folder.bytes(&name, &bytes);
        for command in [
            "unpack packed --out x",
            "bench packed --tokens 2 --turns 1",
            "generate packed --prompt a --max-new-tokens 1",
            "inspect packed",
        ] {
            let words = folder.refused(command);
            assert!(words.contains(part), "{command}: {words}");
        }
    }
    folder.bytes(&name, &whole);
    assert_eq!(folder.run("unpack packed --out x").code, 0);
}

#[test]
fn a_folder_becomes_a_gguf_file_by_itself_or_is_refused_by_name() {
    let folder = pruned("models/llama-tied", "2:4");
    let count = |found: &Value| found["tensors"].as_array().unwrap().len();
    for kind in ["f16", "bf16", "q8_0"] {
        let name = format!("{kind}.gguf");
        folder.json(&format!("pack pruned --out {name} --format gguf-{kind}"));
        // And that file by itself, or like itself.
        folder.json(&format!("pack {name} --out again-{name} --format gguf-{kind}"));
        folder.json(&format!("pack pruned --out like-{name} --format gguf-{kind} --like {name}"));
        let bytes = |name: &str| std::fs::read(folder.path(name)).unwrap();
        assert!(bytes(&format!("like-{name}")) == bytes(&name), "{kind}");
        let found = folder.json(&format!("inspect {name} --spec 2:4"));
        assert_eq!(count(&found), count(&folder.json("inspect pruned")), "{kind}");
    }
    let generate = |model: &str| {
        folder.run_list(&["generate", model, "--prompt", "the wall", "--max-new-tokens", "8"])
    };
    let (a, b) = (generate("bf16.gguf"), generate("pruned"));
    assert_eq!((a.code, a.out), (0, b.out), "{}", a.err);
    let words = folder.refused("pack pruned --out f16.gguf --format gguf-f16");
    assert!(words.contains("f16.gguf: the file exists; give --force"), "{words}");
    for (name, part) in
        [("gemma3", "the family gemma3 is not supported"), ("llama", "its rope_scaling")]
    {
        let model = model(&format!("models/{name}"));
        let words = folder.refused(&format!("pack {model} --out x.gguf --format gguf-f16"));
        assert!(words.contains(part) && words.contains("--like FILE"), "{words}");
    }
    // A weight that F16 cannot hold.
    let large = half::bf16::from_f32(1e6).to_le_bytes();
    damage(&folder.path("pruned"), "model.embed_tokens.weight", &large);
    let words = folder.refused("pack pruned --out x.gguf --format gguf-f16");
    assert!(words.ends_with("write it as bf16 or f32: --format gguf-bf16"), "{words}");
}

#[test]
fn bench_compares_dense_and_packed() {
    let folder = pruned("models/llama", "2:4");
    folder.json("pack pruned --out packed");
    let dense = model("gguf/llama-bpe.gguf");
    for args in [
        "bench packed".to_string(),
        "bench pruned".to_string(),
        "bench pruned --spec 2:4".to_string(),
        format!("bench {dense} --spec 1:4"),
    ] {
        let speed = folder.json(&format!("{args} --tokens 4 --turns 1"));
        for key in ["dense_tokens_per_second", "packed_tokens_per_second", "speedup"] {
            assert!(speed[key].as_f64().unwrap() > 0.0, "{args}: {speed}");
        }
        let bytes = |key: &str| speed[key].as_u64().unwrap();
        assert!(bytes("packed_bytes_per_token") < bytes("dense_bytes_per_token"), "{args}");
        assert!(speed["share"].as_f64().unwrap() < 0.6, "{args}: {speed}");
    }
    let said = folder.run("bench packed --tokens 4 --turns 1");
    assert!(said.out.contains("tokens/s") && said.out.contains("speedup"), "{}", said.out);
    let words = folder.refused(&format!("bench {dense}"));
    assert!(words.contains("--spec"), "{words}");
    for flag in ["--turns 0", "--tokens 0"] {
        let words = folder.refused(&format!("bench packed {flag}"));
        assert!(words.contains("give a whole number of at least 1"), "{flag}: {words}");
    }
    let words = folder.refused("bench pruned --spec no-such-pattern");
    assert!(words.contains("no-such"), "{words}");
}

#[test]
fn formats_lists_the_table() {
    let folder = Folder::new();
    let found = folder.json("formats");
    let names: Vec<&str> =
        found["formats"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, FORMATS.iter().map(|f| f.name).collect::<Vec<_>>());
    let said = folder.run("formats");
    for format in FORMATS {
        assert!(said.out.contains(format.summary) && said.out.contains(format.example));
    }
}

#[test]
fn a_fragment_is_mapped_or_refused_by_name() {
    let folder = Folder::new();
    let show = |spec: &str| -> Value {
        folder.json(&format!("show {spec} --shape 32,32 --fragment m16n8k16"))["fragment"].clone()
    };
    let found = show("rows16");
    assert_eq!(found["name"], "m16n8k16");
    // The paper: half of the 256 weights, and both halves of a pair of rows are
    // of one thread group.
    let fragments = &found["fragments"]["structure"];
    assert_eq!((&fragments["min"], &fragments["max"]), (&128.into(), &128.into()), "{found}");
    let said = folder.run("show 2:4 --shape 16,16 --fragment m16n8k16");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("lane"), "{}", said.out);
    assert_eq!(folder.run("show 2:4 --shape 16,16 --fragment m16n8k16 --svg f.svg").code, 0);
    assert!(std::fs::read_to_string(folder.path("f.svg")).unwrap().contains("</svg>"));
    for (args, part) in [
        ("show 2:4 --shape 16,16 --fragment m8n8k4", "m16n8k16"),
        ("show 2:4 --shape 16,16 --fragment ", "--fragment"),
        ("show 2:4 --shape 8,8 --fragment m16n8k16", "16"),
        ("show 2:4 --shape 16,20 --fragment m16n8k16", "16"),
    ] {
        let words = folder.refused(args);
        assert!(words.contains(part), "{args}: {words}");
    }
}

#[test]
fn values_become_codes_and_come_back_as_what_they_stand_for() {
    let folder = pruned("models/llama", "2:4");
    for (values, head, most) in [("int8", "int8", 0.36), ("int4", "int8", 0.25)] {
        let out = format!("packed-{values}");
        let args = format!("pack pruned --out {out} --values {values} --head {head}");
        let summary = folder.json(&args)["summary"].clone();
        let tensors = summary["tensors"].as_array().unwrap();
        let of = |name: &str| {
            let found = tensors.iter().find(|tensor| tensor["name"] == name);
            found.unwrap_or_else(|| panic!("{name} in {summary}")).clone()
        };
        let embedding = of("model.embed_tokens.weight");
        assert_eq!((&embedding["format"], &embedding["values"]), (&"dense".into(), &head.into()));
        let linear = of("model.layers.0.mlp.up_proj.weight");
        assert_eq!((&linear["format"], &linear["values"]), (&"nm".into(), &values.into()));
        let share = linear["bytes"].as_f64().unwrap() / linear["dense_bytes"].as_f64().unwrap();
        assert!(share <= most, "{values}: {share}");
        let inspected = folder.json(&format!("inspect {out}"));
        let found = inspected["tensors"].as_array().unwrap().iter();
        let dtypes: Vec<&str> = found
            .filter(|tensor| !tensor["packed"].is_null())
            .map(|tensor| tensor["packed"]["values"].as_str().unwrap())
            .collect();
        assert!(dtypes.contains(&values) && dtypes.contains(&head), "{dtypes:?}");
        let text = "the wall lets the light in and the open work of a wall holds";
        folder.bytes("text.txt", text.repeat(8).as_bytes());
        let perplexity = |model: &str| {
            let found = folder.json(&format!("eval {model} --text text.txt --seq-len 16"));
            found["token_perplexity"].as_f64().unwrap()
        };
        let again = format!("again-{values}");
        folder.json(&format!("unpack {out} --out {again}"));
        let (packed, dense) = (perplexity(&out), perplexity(&again));
        assert!((packed / dense - 1.0).abs() < 1e-4, "{values}: {packed} and {dense}");
        let said = folder.run_list(&["generate", &out, "--prompt", "the", "--max-new-tokens", "4"]);
        assert_eq!(said.code, 0, "{}", said.err);
    }
}

#[test]
fn a_model_that_is_not_pruned_may_have_codes() {
    let folder = Folder::new();
    let args = format!("pack {} --out small --values int8", model("models/qwen2"));
    let summary = folder.json(&args)["summary"].clone();
    let formats: Vec<&str> = summary["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["format"].as_str().unwrap())
        .collect();
    assert_eq!(formats, vec!["dense"; 14]);
    let bench = folder.json("bench small --tokens 2 --turns 1");
    assert!(bench["share"].as_f64().unwrap() < 0.6, "{bench}");
}

#[test]
fn wrong_value_types_are_refused() {
    let folder = pruned("models/llama", "2:4");
    for (args, part) in [
        ("--values int5", "value type `int5` is unknown; choose one of f32, f16, bf16, int8, int4"),
        ("--values int4 --group 48", "a group has 32, 64 or 128 values, not 48"),
        ("--head q8_0", "--head q8_0: value type `q8_0` is unknown"),
        ("--values int8 --format cutlass", "--values and --head apply to --format openwork"),
    ] {
        let words = folder.refused(&format!("pack pruned --out packed {args}"));
        assert!(words.contains(part), "{args}: {words}");
    }
}
