//! GGUF files that are good: weights, config and tokens are what transformers
//! makes of the same file. The cases are made by `testdata/make_gguf.py`.

use openwork_llm::Checkpoint;
use serde_json::Value;
use std::path::PathBuf;

const CASES: &[&str] = &["llama-spm", "llama-bpe", "qwen2", "qwen3", "gemma3"];

fn place(name: &str, extension: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/gguf");
    PathBuf::from(folder).join(format!("{name}.{extension}"))
}

fn case(name: &str) -> (Checkpoint, Value) {
    let model = Checkpoint::open(&place(name, "gguf")).unwrap();
    let expected = std::fs::read(place(name, "json")).unwrap();
    (model, serde_json::from_slice(&expected).unwrap())
}

/// The CRC-32 of zlib.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
    })
}

#[test]
fn every_weight_is_transformers_bit_for_bit() {
    for name in CASES {
        let (model, expected) = case(name);
        let weights = expected["weights"].as_object().unwrap();
        assert_eq!(model.names().count(), weights.len(), "{name}");
        for tensor in model.tensors() {
            let found = serde_json::json!([
                tensor.shape(),
                crc32(tensor.to_f32().iter().flat_map(|w| w.to_le_bytes()))
            ]);
            assert_eq!(found, weights[tensor.name()], "{name}: {}", tensor.name());
        }
    }
}

#[test]
fn the_config_is_transformers() {
    const SAME: &[&str] = &[
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "max_position_embeddings",
        "vocab_size",
        "tie_word_embeddings",
        "eos_token_id",
    ];
    for name in CASES {
        let (model, expected) = case(name);
        let config = model.config();
        assert_eq!(model.notes(), [""; 0], "{name}");
        for &key in SAME {
            assert_eq!(config[key], expected["config"][key], "{name}: {key}");
        }
        assert_eq!(config["head_dim"], 8, "{name}");
        assert_eq!(config["rms_norm_eps"], 1e-6, "{name}");
        assert_eq!(config["rope_theta"], 10000.0, "{name}");
        assert!(config["rope_scaling"].is_null(), "{name}");
    }
    assert_eq!(case("gemma3").0.config()["sliding_window"], 32);
}

#[test]
fn every_token_is_transformers() {
    for name in CASES {
        let (model, expected) = case(name);
        let tokenizer = model.tokenizer().unwrap();
        let texts = expected["texts"].as_array().unwrap();
        for (text, expected) in texts.iter().zip(expected["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let found = tokenizer.encode(text).unwrap();
            assert_eq!(serde_json::json!(found), *expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn decoding_gives_the_text_back_whole_and_in_pieces() {
    for name in CASES {
        let (model, expected) = case(name);
        let tokenizer = model.tokenizer().unwrap();
        for text in expected["texts"].as_array().unwrap() {
            let text = text.as_str().unwrap();
            // Llama's SentencePiece cannot tell one leading space from none.
            let lossy = *name == "llama-spm" && text.starts_with(' ');
            let ids = tokenizer.encode(text).unwrap();
            let whole = tokenizer.decode(&ids).unwrap();
            assert_eq!(whole, if lossy { &text[1..] } else { text }, "{name}");
            let mut stream = tokenizer.stream();
            let mut pieces = String::new();
            for id in ids {
                pieces += &stream.push(id).unwrap();
            }
            pieces += &stream.finish().unwrap();
            assert_eq!(pieces, whole, "{name}");
        }
    }
}

/// Qwen's own `tokenizer.json` does this; transformers leaves it out when it
/// reads GGUF, so it is not among the golden texts.
#[test]
fn qwen_composes_characters_first() {
    let tokens = |name: &str, text| case(name).0.tokenizer().unwrap().encode(text).unwrap();
    assert_eq!(tokens("qwen2", "cafe\u{301}"), tokens("qwen2", "caf\u{e9}"));
    assert_ne!(tokens("llama-bpe", "cafe\u{301}"), tokens("llama-bpe", "caf\u{e9}"));
}

#[test]
fn special_tokens_are_those_of_the_file() {
    let special = |name: &str| {
        let tokenizer = case(name).0.tokenizer().unwrap();
        (tokenizer.bos(), tokenizer.eos().to_vec(), tokenizer.adds_bos(), tokenizer.count())
    };
    assert_eq!(special("llama-spm"), (Some(1), vec![2], true, 400));
    assert_eq!(special("gemma3"), (Some(2), vec![1], true, 420));
    assert_eq!(special("qwen2"), (None, vec![0], false, 420));
    let tokenizer = case("qwen2").0.tokenizer().unwrap();
    assert_eq!(
        tokenizer.decode(&[3, 420]).unwrap_err().to_string(),
        "token id 420 is out of range: the tokenizer has 420 tokens"
    );
    assert_eq!(tokenizer.id("<|end|>"), Some(0));
}

/// The folder that is made of a GGUF file begins texts as the file does, by
/// its template and by what its config says.
#[test]
fn the_files_of_a_tokenizer_begin_texts_as_it_does() {
    for name in CASES {
        let tokenizer = case(name).0.tokenizer().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("config.json", "{}");
        write("model.safetensors", "\x02\0\0\0\0\0\0\0{}");
        for (name, text) in tokenizer.files(None) {
            write(name, &text);
        }
        let read = || Checkpoint::open(folder.path()).unwrap().tokenizer().unwrap();
        let same = |found: openwork_llm::tokens::Tokenizer| {
            assert_eq!(
                (found.bos(), found.adds_bos()),
                (tokenizer.bos(), tokenizer.adds_bos()),
                "{name}"
            );
            assert_eq!(found.notes(), [""; 0], "{name}");
        };
        same(read());
        std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
        same(read());
    }
}

/// Bytes that are no character hide nothing that comes after them.
#[test]
fn a_stream_goes_on_after_bytes_that_are_no_character() {
    let tokenizer = case("llama-spm").0.tokenizer().unwrap();
    let byte = |name: &str| tokenizer.id(name).unwrap();
    let mut ids = vec![byte("<0x0A>"), byte("<0xFF>")];
    ids.extend(tokenizer.encode("and then more").unwrap());
    let mut stream = tokenizer.stream();
    let mut shown = String::new();
    for &id in &ids {
        shown += &stream.push(id).unwrap();
    }
    let whole = tokenizer.decode(&ids).unwrap();
    assert_eq!(stream.decode_all().unwrap(), whole);
    assert!(whole.ends_with(" and then more"), "{whole:?}");
    // The line's end was shown before the byte after it made it invalid.
    assert_eq!(shown + &stream.finish().unwrap(), format!("\n{whole}"));
}
