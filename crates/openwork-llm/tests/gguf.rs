//! GGUF files that are good: weights, config and tokens are what transformers
//! makes of the same file. The cases are made by `testdata/make_gguf.py`.

use openwork_llm::model::{Model, NoTap, Storage};
use openwork_llm::{Checkpoint, Dtype};
use safetensors::SafeTensors;
use serde_json::{Value, json};
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

/// Families with golden logits, made by `testdata/make_gguf_models.py`: the architecture and
/// the family of each file.
const FAMILIES: &[(&str, &str)] = &[
    ("gemma2", "gemma2"),
    ("gemma4", "gemma4"),
    ("gemma4-e2b", "gemma4"),
    ("gemma4-e2b-moe", "gemma4"),
    ("gemma4-moe", "gemma4"),
    ("glm4", "glm4"),
    ("gpt-oss", "gpt-oss"),
    ("granite", "granite"),
    ("mistral3", "ministral3"),
    ("mixtral", "mixtral"),
    ("mixtral-old", "mixtral"),
    ("olmo2", "olmo2"),
    ("olmo3", "olmo3"),
    ("olmoe", "olmoe"),
    ("phi3", "phi3"),
    ("qwen2moe", "qwen2-moe"),
    ("qwen35", "qwen3.5"),
    ("qwen35moe", "qwen3.5-moe"),
    ("qwen3moe", "qwen3-moe"),
    ("qwen3moe-quants", "qwen3-moe"),
    ("smollm3", "smollm3"),
];

/// Largest difference to transformers, as a share of the largest logit.
const TOLERANCE: f32 = 1e-4;

#[test]
fn logits_of_every_family_are_transformers() {
    for (name, family) in FAMILIES {
        let checkpoint = Checkpoint::open(&place(name, "gguf")).unwrap();
        assert_eq!(checkpoint.notes(), [""; 0], "{name}");
        let model = Model::open(&checkpoint).unwrap();
        assert_eq!(model.config().family.name, *family);
        assert_eq!(model.config().notes, [""; 0], "{name}");
        let bytes = std::fs::read(place(name, "safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let words = |key: &str| golden.tensor(key).unwrap().data().as_chunks::<4>().0.to_vec();
        let ids: Vec<u32> = words("ids").into_iter().map(u32::from_le_bytes).collect();
        let want: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
        let mut hidden = model.embed(&[ids]).unwrap();
        for index in 0..model.config().layers {
            model.layer(index, Storage::F32).unwrap().forward(&mut hidden, &mut NoTap);
        }
        let logits = model.head().unwrap().logits(hidden.states().view());
        let found = &logits.data()[logits.data().len() - want.len()..];
        let most = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (i, (x, y)) in found.iter().zip(&want).enumerate() {
            assert!((x - y).abs() <= TOLERANCE * most, "{name}: logit {i} is {x}, not {y}");
        }
    }
}

/// Experts of one tensor keep its type, and rows of blocks are cut between experts.
#[test]
fn merged_experts_are_read_in_every_type() {
    let checkpoint = Checkpoint::open(&place("qwen3moe-quants", "gguf")).unwrap();
    let expert = |part: &str| {
        let name = format!("model.layers.0.mlp.experts.2.{part}.weight");
        let tensor = checkpoint.tensor(&name).unwrap();
        (tensor.shape().to_vec(), tensor.dtype())
    };
    assert_eq!(expert("gate_proj"), (vec![32, 256], Dtype::Q8_0));
    assert_eq!(expert("up_proj"), (vec![32, 256], Dtype::Q4K));
    assert_eq!(expert("down_proj"), (vec![256, 32], Dtype::Q4_0));
    let router = checkpoint.tensor("model.layers.0.mlp.gate.weight").unwrap();
    assert_eq!((router.shape(), router.dtype()), (&[3, 256][..], Dtype::F32));
}

/// Blocks of MXFP4 have their scales in them, and merged experts merged biases.
#[test]
fn experts_of_gpt_oss_are_read_in_mxfp4() {
    let checkpoint = Checkpoint::open(&place("gpt-oss", "gguf")).unwrap();
    let tensor = |name: &str| checkpoint.tensor(&format!("model.layers.1.mlp.{name}")).unwrap();
    let down = tensor("experts.4.down_proj.weight");
    assert_eq!((down.shape(), down.dtype()), (&[32, 64][..], Dtype::MXFP4));
    let bias = tensor("experts.4.down_proj.bias");
    assert_eq!((bias.shape(), bias.dtype()), (&[32][..], Dtype::F32));
    assert_eq!(tensor("router.bias").shape(), [5]);
}

/// What llama.cpp has no key for is written out, so that transformers reads the same model.
#[test]
fn configs_say_what_llama_cpp_assumes() {
    let config = |name: &str| Checkpoint::open(&place(name, "gguf")).unwrap().config().clone();
    assert_eq!(config("qwen3moe")["norm_topk_prob"], true);
    assert_eq!(config("olmoe")["norm_topk_prob"], false);
    assert_eq!(config("qwen2moe")["qkv_bias"], true);
    assert_eq!(config("mixtral")["sliding_window"], Value::Null);
    assert_eq!(config("smollm3")["no_rope_layer_interval"], 4);
    assert_eq!(config("phi3")["partial_rotary_factor"], 0.75);
    assert_eq!(config("phi3")["rope_scaling"]["short_factor"], json!([1.0, 1.1, 1.3]));
    assert!(config("phi3")["rope_scaling"]["attention_factor"].is_null());
    assert_eq!(config("granite")["logits_scaling"], 2.5);
    assert_eq!(config("gemma2")["query_pre_attn_scalar"], 10);
    assert_eq!(config("gemma2")["layer_types"], json!(["sliding_attention", "full_attention"]));
    let olmo3 = &config("olmo3")["rope_parameters"];
    assert_eq!(olmo3["full_attention"]["rope_type"], "yarn");
    assert_eq!(olmo3["sliding_attention"]["rope_type"], "default");
    assert_eq!(config("mistral3")["rope_scaling"]["llama_4_scaling_beta"], 0.3);
    assert_eq!(config("gpt-oss")["rope_scaling"]["truncate"], false);
    let kinds = json!(["sliding_attention", "full_attention"]);
    assert_eq!(config("gpt-oss")["layer_types"], kinds);
    let gemma4 = config("gemma4");
    assert_eq!((&gemma4["head_dim"], &gemma4["global_head_dim"]), (&json!(10), &json!(16)));
    assert_eq!(gemma4["num_global_key_value_heads"], 1);
    assert_eq!(gemma4["attention_k_eq_v"], true);
    let full =
        json!({"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 50000.0});
    assert_eq!(gemma4["rope_parameters"]["full_attention"], full);
    let e2b = config("gemma4-e2b");
    assert_eq!(
        (&e2b["num_kv_shared_layers"], &e2b["use_double_wide_mlp"]),
        (&json!(3), &json!(true))
    );
    assert_eq!(e2b["vocab_size_per_layer_input"], 288);
    assert_eq!(config("gemma4-moe")["final_logit_softcapping"], Value::Null);
    let qwen35 = config("qwen35moe");
    assert_eq!(qwen35["layer_types"], json!(["linear_attention", "full_attention"]));
    assert_eq!(qwen35["linear_num_value_heads"], 6);
    let rope = json!({
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1], "mrope_interleaved": true,
    });
    assert_eq!(qwen35["rope_parameters"], rope);
}
