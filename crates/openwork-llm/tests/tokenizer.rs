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
        "token id 5 is out of range: the tokenizer has 5 tokens"
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
         merge 0, \"ab\" and \"ab\", does not form a token"
    );
    assert!(refuse(&|file| *file = json!(3)).contains("not valid JSON for a tokenizer"));
    assert!(refuse(&|file| file["model"]["type"] = json!("Other")).contains("cannot be built"));
    assert!(refuse(&|file| file["model"]["merges"] = json!(["x"])).contains("merge 0, \"x\""));
}

/// What a folder's tokenizer begins texts with: the token, whether it does, and
/// what it notes. Its config.json names no token, unless given.
fn begins(tokenizer_json: &Value, others: &[(&str, Value)]) -> (Option<u32>, bool, Vec<String>) {
    let mut files = vec![("tokenizer.json", tokenizer_json.clone()), ("config.json", json!({}))];
    files.extend_from_slice(others);
    let found = tokenizer(&files).unwrap();
    (found.bos(), found.adds_bos(), found.notes().to_vec())
}

#[test]
fn what_begins_a_text_is_what_the_template_puts_there() {
    let map = ("special_tokens_map.json", json!({"bos_token": "<s>"}));
    for others in [
        &[][..],
        &[("config.json", json!({"bos_token_id": 4}))],
        &[("tokenizer_config.json", json!({"bos_token": null}))],
        std::slice::from_ref(&map),
    ] {
        assert_eq!(begins(&tokenizer_json(), others), (Some(3), true, vec![]), "{others:?}");
    }
    // A template that ends texts begins none, nor does padding on the left.
    let mut ends = tokenizer_json();
    ends["post_processor"]["single"].as_array_mut().unwrap().reverse();
    assert_eq!(begins(&ends, &[]), (None, false, vec![]));
    let mut bare = tokenizer_json();
    bare["post_processor"] = Value::Null;
    bare["padding"] = json!({
        "strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": null,
        "pad_id": 4, "pad_type_id": 0, "pad_token": "</s>",
    });
    assert_eq!(begins(&bare, &[]), (None, false, vec![]));
    assert_eq!(begins(&bare, std::slice::from_ref(&map)), (Some(3), false, vec![]));

    // What tokenizer_config.json says is followed; that the template says otherwise is noted.
    let say = |adds: bool| ("tokenizer_config.json", json!({"add_bos_token": adds}));
    assert_eq!(begins(&tokenizer_json(), &[say(true)]), (Some(3), true, vec![]));
    assert_eq!(begins(&bare, &[say(false)]), (None, false, vec![]));
    let nothing = "tokenizer_config.json sets add_bos_token = true, but no file names a BOS \
                   token of the vocabulary; none is added";
    assert_eq!(begins(&bare, &[say(true)]), (None, false, vec![nothing.to_string()]));
    let note = "tokenizer_config.json sets add_bos_token = true, which openwork follows, but \
                the template in tokenizer.json adds none, which transformers 5 follows; make \
                them agree";
    assert_eq!(begins(&bare, &[map, say(true)]), (Some(3), true, vec![note.to_string()]));
    let note = note.replace("true", "false").replace("adds none", "adds one");
    assert_eq!(begins(&tokenizer_json(), &[say(false)]), (Some(3), false, vec![note]));
}

#[test]
fn tokens_that_only_other_files_add_are_cut_out_of_texts() {
    let with = |name: &'static str, content: Value| {
        tokenizer(&[("tokenizer.json", tokenizer_json()), (name, content)])
    };
    let decoder =
        |id: &str| json!({"added_tokens_decoder": {id: {"content": "<x>", "special": true}}});
    for (name, content) in
        [("tokenizer_config.json", decoder("5")), ("added_tokens.json", json!({"<x>": 5}))]
    {
        let found = with(name, content).unwrap();
        assert_eq!(found.encode("a<x>b").unwrap(), [0, 5, 1], "{name}");
        assert_eq!((found.decode(&[0, 5]).unwrap().as_str(), found.count()), ("a<x>", 6));
    }
    // A special token of the vocabulary that is only named; one that is in no vocabulary.
    let found =
        with("tokenizer_config.json", json!({"pad_token": "b", "unk_token": "<y>"})).unwrap();
    assert_eq!((found.encode("ab").unwrap(), found.count()), (vec![0, 1], 5));

    for (name, content, words) in [
        (
            "tokenizer_config.json",
            decoder("7"),
            "token \"<x>\" has id 7 in tokenizer_config.json, but 5 in this vocabulary; \
             make the two files agree",
        ),
        (
            "added_tokens.json",
            json!({"ab": 1}),
            "token \"ab\" has id 1 in added_tokens.json, but 2",
        ),
        (
            "added_tokens.json",
            json!({"ab": "x"}),
            "added_tokens.json: \"x\" is not a valid added token",
        ),
        (
            "tokenizer_config.json",
            decoder("x"),
            "tokenizer_config.json: x is not a valid added token",
        ),
    ] {
        let refused = with(name, content).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
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
    let panicked = "the tokenizers library panicked: ";
    assert!(refused("post_processor", template).contains(panicked));
    let length = json!({"type": "FixedLength", "length": 0});
    assert!(refused("pre_tokenizer", length).contains(panicked));

    // These would ask for memory until the program is ended.
    let map = json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
    assert!(refused("normalizer", map).contains("shorter than its header says"));
    let grow = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "e".repeat(200)});
    let chain = json!({"type": "Sequence", "normalizers": vec![grow; 9]});
    assert!(refused("normalizer", chain).contains("exceeds the limit of 64"));
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
                "generation_config.json: eos_token_id is {wrong}, not a token id or a list of token ids"
            )
        );
    }
}
