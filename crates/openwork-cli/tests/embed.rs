//! `openwork embed`, and the other commands on encoders.

mod common;

use common::Folder;
use serde_json::Value;
use std::path::Path;

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata");

fn encoder(name: &str) -> String {
    format!("{TESTDATA}/encoders/{name}")
}

fn texts() -> String {
    format!("{TESTDATA}/encoders/texts.txt")
}

#[test]
fn vectors_are_printed_as_lines_as_an_object_and_as_a_tensor() {
    let folder = Folder::new();
    let args = format!("embed {} --text {}", encoder("mpnet"), texts());
    let said = folder.run(&args);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("5 vectors of 32 numbers, "), "{}", said.err);
    let lines: Vec<Vec<f32>> =
        said.out.lines().map(|line| serde_json::from_str(line).expect("a list")).collect();
    assert!(lines.len() == 5 && lines.iter().all(|line| line.len() == 32));
    for line in &lines {
        assert!((line.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    }

    let found = folder.json(&args);
    assert_eq!((&found["texts"], &found["width"]), (&5.into(), &32.into()));
    assert_eq!((&found["pooling"], &found["normalized"]), (&"mean".into(), &true.into()));
    let vectors: Vec<Vec<f32>> = serde_json::from_value(found["vectors"].clone()).expect("lists");
    assert_eq!(vectors, lines);

    let found = folder.json(&format!("{args} --out v.safetensors --batch-size 2"));
    assert_eq!(found["vectors"], Value::Null);
    let (values, shape, dtype) = folder.read("v.safetensors", "vectors");
    assert_eq!((shape, dtype.as_str()), (vec![5, 32], "F32"));
    assert!(values.iter().zip(lines.iter().flatten()).all(|(x, y)| (x - y).abs() < 1e-5));
    assert!(folder.refused(&format!("{args} --out v.safetensors")).contains("the file exists"));
}

#[test]
fn a_pruned_encoder_is_packed_compared_and_embedded() {
    let folder = Folder::new();
    let line = "the open work of a wall lets the light in and the wind out of it\n";
    folder.bytes("text.txt", line.repeat(30).as_bytes());
    let (dense, texts) = (encoder("bert"), texts());
    let said = folder.run(&format!(
        "prune {dense} --spec 2:4 --calib text.txt --samples 9 --seq-len 12 --eval {texts} --out pruned"
    ));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("mean cosine to the dense vectors of 5 texts"), "{}", said.out);
    let record: Value =
        serde_json::from_slice(&std::fs::read(folder.path("pruned/openwork/record.json")).unwrap())
            .unwrap();
    let found = folder.json(&format!("eval pruned --text {texts} --reference {dense}"));
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-6;
    assert!(close(&found["mean_cosine"], &record["similarity"]["mean"]), "{found}");
    assert!(close(&found["least_cosine"], &record["similarity"]["least"]), "{found}");
    let card = std::fs::read_to_string(folder.path("pruned/README.md")).unwrap();
    assert!(
        card.contains("AutoModel.from_pretrained") && card.contains("| intermediate.dense |"),
        "{card}"
    );
    assert_eq!(folder.run("report pruned --out page.html").code, 0);
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.contains("Similarity, mean") && !page.contains("Perplexity, dense"));

    let checked = folder.json("inspect pruned --spec 2:4");
    assert_eq!(checked["conforms"], true);
    assert_eq!(folder.run("pack pruned --out packed").code, 0);
    assert_eq!(folder.run("pack pruned --out coded --values int8").code, 0);
    let vectors =
        |model: &str| folder.json(&format!("embed {model} --text {texts}"))["vectors"].clone();
    let (a, b, c) = (vectors("pruned"), vectors("packed"), vectors("coded"));
    for i in 0..5 {
        for j in 0..32 {
            let [a, b, c] = [&a, &b, &c].map(|v| v[i][j].as_f64().unwrap());
            assert!((a - b).abs() < 1e-5 && (a - c).abs() < 0.05, "{a} {b} {c}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let folder = Folder::new();
    let (bert, texts) = (encoder("bert"), texts());
    let llama = format!("{TESTDATA}/models/llama");
    for (args, words) in [
        (format!("embed {llama} --text {texts}"), "llama models are decoders"),
        (
            format!("embed {bert} --text {texts} --max-tokens 65"),
            "65 tokens exceed the model's limit of 64",
        ),
        (format!("embed {bert} --text none.txt"), "no such file"),
        (format!("generate {bert} wall"), "bert models are encoders"),
        (
            format!("eval {bert} --text {texts}"),
            "bert models are encoders: they give vectors, not the next token; use `openwork embed`",
        ),
        (format!("eval {llama} --text {texts} --reference {bert}"), "llama models are decoders"),
        (format!("eval {bert} --text {texts} --reference {llama}"), "llama models are decoders"),
        (format!("bench {bert} --spec 2:4"), "bert models are encoders"),
        (format!("shrink {bert} --out small"), "bert models are encoders"),
        (format!("pack {bert} --format gguf-f16 --out x.gguf"), "bert"),
        (format!("frontier {bert} --text {texts} --calib {texts}"), "bert models are encoders"),
    ] {
        let message = folder.refused(&args);
        assert!(message.contains(words), "{args}: {message}");
        assert!(!Path::new(&folder.path("x.gguf")).exists());
    }
}
