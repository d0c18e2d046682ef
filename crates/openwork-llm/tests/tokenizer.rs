//! The tokenizer of a Hugging Face folder.

use openwork_llm::{Checkpoint, Tokenizer};
use serde_json::{Value, json};

/// A BPE of five tokens whose template puts `<s>` first, with a truncation
/// left over from its training.
fn tokenizer_json() -> Value {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [special(3, "<s>"), special(4, "</s>")],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4}, "merges": [["a", "b"]]
        }
    })
}

/// The tokenizer of a folder with these files.
fn tokenizer(files: &[(&str, Value)]) -> Result<Tokenizer, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, content: &[u8]| {
        std::fs::write(folder.path().join(name), content).expect("the folder is writable");
    };
    write("config.json", br#"{"bos_token_id": 3, "eos_token_id": 4}"#);
    write("model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    for (name, content) in files {
        write(name, content.to_string().as_bytes());
    }
    let model = Checkpoint::open(folder.path()).expect("the folder is a model");
    let place = format!("{}/", folder.path().display());
    model.tokenizer().map_err(|error| error.to_string().replace(&place, ""))
}

#[test]
fn text_is_encoded_whole_and_without_special_tokens() {
    let tokenizer = tokenizer(&[("tokenizer.json", tokenizer_json())]).unwrap();
    assert_eq!(tokenizer.encode("abbab").unwrap(), [2, 1, 2]);
    assert_eq!(tokenizer.encode("ab</s>").unwrap(), [2, 4]);
    assert_eq!(tokenizer.encode("").unwrap(), [0; 0]);
    assert_eq!(tokenizer.decode(&[3, 2, 1]).unwrap(), "<s>abb");
    assert_eq!(
        tokenizer.decode(&[5]).unwrap_err().to_string(),
        "token id 5 is beyond the tokenizer's 5 tokens"
    );
}

#[test]
fn special_tokens_come_from_all_configs() {
    let plain = tokenizer(&[("tokenizer.json", tokenizer_json())]).unwrap();
    assert_eq!((plain.bos(), plain.eos(), plain.adds_bos()), (Some(3), &[4][..], true));
    let told = tokenizer(&[
        ("tokenizer.json", tokenizer_json()),
        ("tokenizer_config.json", json!({"bos_token": {"content": "a"}, "add_bos_token": false})),
        ("generation_config.json", json!({"eos_token_id": [2, 4, 1]})),
    ])
    .unwrap();
    assert_eq!((told.bos(), told.eos(), told.adds_bos()), (Some(0), &[1, 2, 4][..], false));
}

#[test]
fn a_bad_tokenizer_is_refused() {
    let refuse = |change: &dyn Fn(&mut Value)| {
        let mut file = tokenizer_json();
        change(&mut file);
        tokenizer(&[("tokenizer.json", file)]).unwrap_err()
    };
    assert_eq!(
        refuse(&|file| file["model"]["merges"] = json!([["ab", "ab"]])),
        "tokenizer.json: the tokenizer cannot be built: \
         merge 0, \"ab\" and \"ab\", does not make a token"
    );
    assert!(refuse(&|file| *file = json!(3)).contains("not valid JSON for a tokenizer"));
    assert!(refuse(&|file| file["model"]["type"] = json!("Other")).contains("cannot be built"));
    assert!(refuse(&|file| file["model"]["merges"] = json!(["x"])).contains("merge 0, \"x\""));
}

#[test]
fn a_file_that_the_library_cannot_take_is_refused_in_words() {
    let refused = |key: &str, value: Value| {
        let mut json = tokenizer_json();
        json[key] = value;
        let text = "tokens of a text";
        let found = tokenizer(&[("tokenizer.json", json)]);
        match found.and_then(|found| found.encode(text).map_err(|error| error.to_string())) {
            Ok(ids) => panic!("{key}: {ids:?}"),
            Err(words) => words,
        }
    };
    let template = json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                          "single": [{"SpecialToken": {"id": "ZZ", "type_id": 0}}]});
    let gave_up = "the tokenizers library gave up: ";
    assert!(refused("post_processor", template).contains(gave_up));
    let length = json!({"type": "FixedLength", "length": 0});
    assert!(refused("pre_tokenizer", length).contains(gave_up));

    // These would ask for memory until the program is ended.
    let map = json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
    assert!(refused("normalizer", map).ends_with("it is shorter than it says"));
    let grow = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "e".repeat(200)});
    let chain = json!({"type": "Sequence", "normalizers": vec![grow; 9]});
    assert!(refused("normalizer", chain).contains("more than the 64 that are believed"));
}

#[test]
fn what_training_left_in_the_file_changes_no_tokens() {
    let mut json = tokenizer_json();
    json["padding"] = json!({"strategy": {"Fixed": 1_000_000_000_000u64}, "direction": "Right",
                             "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
                             "pad_token": "x"});
    json["model"]["dropout"] = json!(0.5);
    let tokenizer = tokenizer(&[("tokenizer.json", json)]).unwrap();
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode(&"ab".repeat(64)).unwrap(), [2; 64]);
}

#[test]
fn ends_of_text_that_are_no_tokens_are_refused() {
    for wrong in [json!("4"), json!(-1), json!([4, "x"]), json!(4.5)] {
        let words = tokenizer(&[
            ("tokenizer.json", tokenizer_json()),
            ("generation_config.json", json!({"eos_token_id": wrong})),
        ]);
        assert_eq!(
            words.expect_err("a refusal"),
            format!(
                "generation_config.json: eos_token_id is {wrong}, not a token's number or a list of them"
            )
        );
    }
}
