//! Export of a Hugging Face folder to GGUF: metadata from its config, the
//! tokenizer from its `tokenizer.json`.
//!
//! A model that GGUF cannot express, or that our reader would not read back as
//! the same model, is refused with the reason.

use super::metadata_writer::MetadataWriter;
use super::names::{ARCHITECTURES, Architecture, Layout};
use super::settings::settings;
use super::write::{ALIGNMENT, Job, file_type, job, write};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::error::{CheckpointError, Fault};
use crate::checkpoint::tensor::{Convention, RowOrder, TensorInfo};
use crate::checkpoint::write::WriteError;
use crate::disk::Written;
use crate::model::Config;
use crate::tokens::{GgufVocab, Tokenizer};
use std::collections::BTreeSet;
use std::path::Path;

/// Families that are not exported: a `tokenizer.json` does not contain the scores of the
/// SentencePiece tokens of Gemma 2 and 3.
const NOT_EXPORTED: &[&str] = &["gemma2", "gemma3"];

/// Writes the weights of `source` to `out`, matrices as F16, BF16 or Q8_0 and
/// vectors as F32. Zeros stay exact zeros.
pub(crate) fn export(
    source: &Checkpoint,
    config: &Config,
    out: &Path,
    dtype: Dtype,
) -> Result<Written, WriteError> {
    let wrong = |fault: Fault| CheckpointError::new(source.path(), fault);
    let refuse = |why: String| wrong(Fault::NoGguf(why));
    let family = config.family.name;
    let exported = |name: &str| !NOT_EXPORTED.contains(&name);
    let Some(architecture) = Architecture::of_family(family).filter(|_| exported(family)) else {
        let mut names: Vec<&str> = ARCHITECTURES.iter().map(|known| known.family).collect();
        names.retain(|name| exported(name));
        names.sort_unstable();
        names.dedup();
        let why = format!("the family {family} is not supported (supported: {})", names.join(", "));
        return Err(refuse(why).into());
    };
    let tokenizer = source.tokenizer()?;
    // Not the file itself: other files may add tokens.
    let vocab = GgufVocab::new(tokenizer.json().as_bytes(), config.vocab).map_err(refuse)?;

    let mut entries = MetadataWriter::default();
    entries.text("general.architecture", architecture.name);
    let title = source.path().file_name().unwrap_or_default().to_string_lossy();
    entries.text("general.name", &title);
    entries.number("general.alignment", ALIGNMENT as u32);
    entries.number("general.file_type", file_type(dtype));
    let vectors = settings(&mut entries, architecture, config, source.config()).map_err(refuse)?;
    tokenizer_metadata(&mut entries, source, &tokenizer, &vocab);

    let layout = Layout {
        architecture,
        family: config.family,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        experts: config.experts.as_ref().map_or(0, |experts| experts.count),
        layers: config.layers,
        // Tensors that are not used are not in the folder as it was opened.
        own_keys: config.layers,
        delta_net: config.delta_nets.as_ref().map(|nets| nets.sizes),
    };
    let mut jobs = Vec::new();
    let mut written = BTreeSet::new();
    for tensor in source.tensors() {
        // Some folders store a tied head too.
        if config.tied && tensor.name() == "lm_head.weight" {
            continue;
        }
        let foreign = || {
            let (tensor, architecture) = (tensor.name().to_string(), architecture.name.to_string());
            wrong(Fault::Foreign { tensor, architecture })
        };
        let name = layout.holder(tensor.name()).ok_or_else(foreign)?;
        // One tensor may hold several of the folder's.
        if !written.insert(name.clone()) {
            continue;
        }
        let mut shapes = Vec::new();
        for part in layout.names(&name).ok_or_else(foreign)? {
            shapes.push(source.tensor(&part)?.shape());
        }
        let shape = layout.shape(&name, &shapes).ok_or_else(foreign)?;
        let stored = TensorInfo { name, shape, ..empty() };
        jobs.push(job(source, &[], &layout, stored, dtype).map_err(|error| match error {
            Ok(fault) => wrong(fault),
            Err(error) => error,
        })?);
    }
    for (name, bytes) in &vectors {
        jobs.push(Job {
            name: name.to_string(),
            shape: vec![bytes.len() / 4],
            dtype: Dtype::F32,
            parts: Vec::new(),
            convention: Convention::Same,
            copied: bytes,
        });
    }
    write(out, &entries.bytes, entries.count, &jobs)
}

/// An empty tensor.
fn empty() -> TensorInfo {
    TensorInfo {
        name: String::new(),
        shape: Vec::new(),
        dtype: Dtype::F32,
        file: 0,
        range: 0..0,
        order: RowOrder::AsStored,
        convention: Convention::Same,
        packed: None,
    }
}

/// Writes the tokenizer.
fn tokenizer_metadata(
    entries: &mut MetadataWriter,
    source: &Checkpoint,
    tokenizer: &Tokenizer,
    vocab: &GgufVocab,
) {
    let key = |key: &str| format!("tokenizer.ggml.{key}");
    entries.text(&key("model"), "gpt2");
    entries.text(&key("pre"), vocab.pre);
    entries.texts(&key("tokens"), &vocab.tokens);
    entries.integers(&key("token_type"), &vocab.token_types);
    entries.texts(&key("merges"), &vocab.merges);
    if let Some(bos) = tokenizer.bos() {
        entries.number(&key("bos_token_id"), bos);
    }
    // The config's EOS comes first; GGUF has keys for two more.
    let config = source.config()["eos_token_id"].as_u64();
    let (own, others): (Vec<u32>, Vec<u32>) =
        tokenizer.eos().iter().partition(|&&id| Some(u64::from(id)) == config);
    let ends = ["eos_token_id", "eot_token_id", "eom_token_id"];
    for (name, id) in ends.into_iter().zip(own.into_iter().chain(others)) {
        entries.number(&key(name), id);
    }
    entries.flag(&key("add_bos_token"), tokenizer.adds_bos());
    if let Some(template) = source.chat_template() {
        entries.text("tokenizer.chat_template", &template);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use half::bf16;
    use serde_json::{Value, json};
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
    }

    /// A folder with another config.
    fn amended(name: &str, place: &Path) -> PathBuf {
        let out = place.join(name);
        std::fs::create_dir(&out).unwrap();
        for entry in std::fs::read_dir(folder(name)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, out.join(path.file_name().unwrap())).unwrap();
        }
        let path = out.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        match name {
            "llama" => {
                let rope = &mut config["rope_parameters"];
                rope["original_max_position_embeddings"] = 8192.into();
                rope["rope_theta"] = 500_000.into();
            }
            _ => {
                config["use_sliding_window"] = false.into();
                config.as_object_mut().unwrap().remove("layer_types");
            }
        }
        std::fs::write(&path, config.to_string()).unwrap();
        // A token that `tokenizer.json` does not have.
        let added = json!({"added_tokens_decoder": {"283": {"content": "<x>", "special": true}}});
        std::fs::write(out.join("tokenizer_config.json"), added.to_string()).unwrap();
        out
    }

    /// The file read back is the same model: config, every weight as rounded,
    /// and tokens of any text.
    #[test]
    fn a_folder_comes_back_from_gguf() {
        let place = tempfile::tempdir().unwrap();
        let mut models = vec![
            folder("llama-tied"),
            folder("mistral"),
            folder("mixtral"),
            folder("qwen3"),
            folder("phi3"),
            folder("glm4"),
            amended("qwen2", place.path()),
            amended("llama", place.path()),
        ];
        // Of the others, with what llama.cpp assumes.
        for name in [
            "gemma4",
            "gemma4-e2b",
            "gemma4-e2b-moe",
            "gemma4-moe",
            "gpt-oss",
            "granite",
            "mistral3",
            "mixtral-old",
            "olmo2",
            "olmo3",
            "olmoe",
            "qwen2moe",
            "qwen35",
            "qwen35moe",
            "qwen3moe",
            "smollm3",
        ] {
            models.push(folder(&format!("../gguf/{name}.gguf")));
        }
        for path in models {
            let name = path.display();
            let source = Checkpoint::open(&path).unwrap();
            let config = Config::new(source.config()).unwrap();
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q8_0] {
                let out = place.path().join("out.gguf");
                export(&source, &config, &out, dtype).unwrap();
                let read = Checkpoint::open(&out).unwrap();
                let again =
                    Config { notes: config.notes.clone(), ..Config::new(read.config()).unwrap() };
                assert_eq!(format!("{again:?}"), format!("{config:?}"), "{name}");
                Model::open(&read).unwrap();
                for tensor in read.tensors() {
                    // Logarithms are rounded to f32 twice.
                    let logs = tensor.name().ends_with("A_log");
                    let (a, b) = (source.tensor(tensor.name()).unwrap().to_f32(), tensor.to_f32());
                    let most = a.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                    for (&a, &b) in a.iter().zip(&b) {
                        match (dtype, tensor.shape().len()) {
                            (_, 1) if logs => assert!((a - b).abs() <= 1e-6 * most.max(1.0)),
                            (_, 1) => assert_eq!(a, b),
                            (Dtype::BF16, _) => assert_eq!(bf16::from_f32(a).to_f32(), b),
                            _ => assert!((a - b).abs() <= most / 120.0),
                        }
                        assert!(a != 0.0 || b == 0.0, "a zero became {b}");
                    }
                }
                let (a, b) = (source.tokenizer().unwrap(), read.tokenizer().unwrap());
                for text in [
                    "an assertion of 1234 words",
                    " a\n\n b\tc  d",
                    "<s>caf\u{e9} </s>",
                    "a<x>b",
                    "",
                ] {
                    assert_eq!(
                        a.encode(text).unwrap(),
                        b.encode(text).unwrap(),
                        "{name}: {text:?}"
                    );
                }
                assert_eq!((a.bos(), a.eos(), a.adds_bos()), (b.bos(), b.eos(), b.adds_bos()));
            }
        }
    }

    #[test]
    fn what_gguf_cannot_say_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        for (name, part) in [
            ("gemma3", "the family gemma3 is not supported"),
            ("llama", "rope_scaling"),
            ("qwen2", "its layers have different attention settings"),
            ("qwen3-moe", "layer 2 has no experts, but in GGUF all layers of qwen3moe do"),
            ("smollm3", "its layer 1 does not rotate its heads"),
            ("olmoe", "olmoe has no clip_qkv"),
            ("qwen3.5", "the keys and values of its delta nets have heads of 6 and 10"),
            ("gpt-oss", "the SwiGLU of gpt-oss has swiglu_alpha 1.702 and swiglu_limit 7"),
        ] {
            let source = Checkpoint::open(&folder(name)).unwrap();
            let config = Config::new(source.config()).unwrap();
            let out = place.path().join("out.gguf");
            let words =
                export(&source, &config, &out, Dtype::F16).expect_err("refused").to_string();
            assert!(words.contains(part) && words.contains("--like"), "{words}");
            assert!(!out.exists());
        }
    }
}
