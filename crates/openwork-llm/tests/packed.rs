//! Packed folders: the same weights, the same text, and no damage unseen.

use openwork::{Mask, Pattern};
use openwork_llm::checkpoint::write::{self, Data, Listed, Part};
use openwork_llm::evaluate::{Options, evaluate};
use openwork_llm::generate::{Sampling, generate};
use openwork_llm::model::{Decoder, Model, Storage, Weight};
use openwork_llm::pack::{Patterns, ValueChoice, compare, pack, unpack};
use openwork_llm::{Checkpoint, Dtype};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();
const TEXT: &str = "the open work of a wall lets the light in and the wind out, \
    and light is not heavy where the wall is open work";
const COUPLED: &str = "blocks gate: block (1,_) & up: block (1,_) & down perm (1,0): block (_,1) scope (_,_) keep 50%";

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// A copy of a model with its linears cut to a spec by magnitude, as `dtype`.
fn pruned(name: &str, spec: &str, dtype: Dtype, folder: &Path) {
    let source = Checkpoint::open(&model(name)).expect("a checkpoint");
    let opened = Model::open(&source).expect("a model");
    let mut weights: BTreeMap<String, Vec<f32>> =
        source.tensors().map(|tensor| (tensor.name().to_string(), tensor.to_f32())).collect();
    let patterns = Patterns::all(spec).expect("a pattern");
    for group in patterns.groups(&opened).expect("groups") {
        let old: Vec<Vec<f32>> = group.names.iter().map(|name| weights[name].clone()).collect();
        let mask = Mask::select(&group.spec, |scope, block| {
            let elements = group.spec.elements(scope, block);
            elements.map(|e| f64::from(old[e.tensor][e.offset]).powi(2)).sum()
        });
        for (t, name) in group.names.iter().enumerate() {
            mask.apply(t, weights.get_mut(name).expect("a tensor"));
        }
    }
    std::fs::create_dir_all(folder).expect("a folder");
    let parts: Vec<Part<'_>> = source
        .tensors()
        .map(|t| Part::new(t.name(), dtype, t.shape(), Data::F32(&weights[t.name()])))
        .collect();
    let shard = write::shard_name(1, 1);
    write::shard(&folder.join(&shard), &parts, &[]).expect("a shard");
    let tensors = parts.iter().map(|part| part.name.clone()).collect();
    let bytes = parts.iter().map(Part::bytes).sum();
    write::index(folder, &[Listed { shard, tensors, bytes }]).expect("an index");
    write::companions(&source, folder, dtype, |_| {}).expect("companions");
}

fn text_of(folder: &Path) -> (String, f64) {
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    let model = Model::open(&checkpoint).expect("a model");
    let tokenizer = checkpoint.tokenizer().expect("a tokenizer");
    let mut decoder = Decoder::load(&model, Storage::Half).expect("a decoder");
    let watch = &mut |_: &str| ControlFlow::Continue(());
    let text = generate(&mut decoder, &tokenizer, "the open", 12, Sampling::Greedy, watch)
        .expect("a text")
        .text;
    let options = Options { seq_len: Some(12), ..Options::default() };
    let nats = evaluate(&model, TEXT, &options, &mut |_| {}).expect("an evaluation").nats;
    (text, nats)
}

#[test]
fn packing_keeps_every_bit_and_the_text() {
    for (spec, dtype) in [
        ("2:4", Dtype::BF16),
        ("2:4", Dtype::F32),
        ("1:4", Dtype::F16),
        ("2:4@4", Dtype::BF16),
        ("rowwise(40%)", Dtype::BF16),
        (COUPLED, Dtype::BF16),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        pruned("llama", spec, dtype, &at("pruned"));
        let source = Checkpoint::open(&at("pruned")).expect("a checkpoint");
        let opened = Model::open(&source).expect("a model");
        let patterns = Patterns::all(spec).expect("a pattern");
        let summary = pack(&opened, &patterns, ValueChoice::default(), &at("packed"), &mut |_| {})
            .expect("packed");
        let layers = opened.config().layers;
        assert_eq!(summary.tensors.len(), layers * if spec == COUPLED { 3 } else { 7 });
        assert!(summary.bytes < summary.dense_bytes * 5 / 8, "{spec}");

        let packed = Checkpoint::open(&at("packed")).expect("a packed checkpoint");
        assert!(packed.names().eq(source.names()), "{spec}");
        for (a, b) in source.tensors().zip(packed.tensors()) {
            assert_eq!((a.shape(), a.nonzeros()), (b.shape(), b.nonzeros()), "{spec} {}", a.name());
            let bits = |w: Vec<f32>| w.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(a.to_f32()), bits(b.to_f32()), "{spec} {}", a.name());
        }
        let held = Model::open(&packed).expect("a model").layer(1, Storage::Half).expect("a layer");
        assert!(matches!(held.linears()[4].weight(), Weight::Packed(_)), "{spec}");

        let (dense_text, dense_nats) = text_of(&at("pruned"));
        let (packed_text, packed_nats) = text_of(&at("packed"));
        assert_eq!(dense_text, packed_text, "{spec}");
        assert!((dense_nats - packed_nats).abs() < 1e-4 * dense_nats, "{spec}");

        let opened = Model::open(&packed).expect("a model");
        unpack(&opened, &at("again"), &mut |_| {}).expect("unpacked");
        let again = Checkpoint::open(&at("again")).expect("a checkpoint");
        for (a, b) in source.tensors().zip(again.tensors()) {
            assert_eq!((a.name(), a.bytes()), (b.name(), b.bytes()), "{spec}");
        }
        let speed = compare(&opened, None, ValueChoice::default(), TWO, NonZeroUsize::MIN)
            .expect("a comparison");
        assert!(speed.packed_bytes_per_token < speed.dense_bytes_per_token);
        assert!((0.0..0.7).contains(&speed.share), "{spec} {}", speed.share);
    }
}

#[test]
fn what_does_not_conform_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let source = Checkpoint::open(&model("llama")).expect("a checkpoint");
    let opened = Model::open(&source).expect("a model");
    let refuse = |spec: &str| {
        let patterns = Patterns::all(spec).expect("a pattern");
        pack(&opened, &patterns, ValueChoice::default(), &at("out"), &mut |_| {})
            .expect_err("a refusal")
            .to_string()
    };
    let words = refuse("2:4");
    assert!(words.contains("model.layers.0.self_attn.q_proj.weight: the weights do not conform to `2:4`: scope 0 keeps 4 blocks, expected 2"), "{words}");
    let words = refuse("rows16");
    assert!(words.starts_with("model.layers.0.self_attn.k_proj.weight: "), "{words}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    let words = Patterns::from_record(&source).expect_err("no record").to_string();
    assert!(words.contains("give the pattern of all linear layers"), "{words}");
    // In memory the weights may be cut to the pattern.
    let speed = compare(
        &opened,
        Some(&Patterns::all("2:4").expect("a pattern")),
        ValueChoice::default(),
        TWO,
        NonZeroUsize::MIN,
    );
    assert_eq!(speed.expect("a comparison").pruned_by_magnitude, 2 * 7);
}

/// One packed tensor of a file, with parts and metadata that a test may damage.
fn damaged(
    folder: &Path,
    metadata: &str,
    values: (Dtype, usize),
    index: (Dtype, Vec<u8>),
    names: [&str; 2],
) -> String {
    let name = "model.layers.0.self_attn.q_proj.weight".to_string();
    let zeros = vec![0; values.0.bytes_for(values.1 as u64).expect("bytes") as usize];
    let parts = [
        Part::new(&format!("{name}{}", names[0]), values.0, &[values.1], Data::Bytes(&zeros)),
        Part::new(&format!("{name}{}", names[1]), index.0, &[index.1.len()], Data::Bytes(&index.1)),
    ];
    std::fs::write(folder.join("config.json"), "{}").expect("a config");
    let key = format!("openwork.packed.{name}");
    write::shard(&folder.join("model.safetensors"), &parts, &[(&key, metadata)]).expect("a shard");
    match Checkpoint::open(folder) {
        Ok(_) => "ok".to_string(),
        Err(error) => error.fault().to_string(),
    }
}

#[test]
fn damaged_parts_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = r#"{"format":"nm","spec":"2:4","shape":[2,16]}"#;
    let index = || (Dtype::U8, vec![0x44; 4]);
    let names = [".packed.values", ".packed.index"];
    let open = |metadata: &str, values, index, names| {
        damaged(folder.path(), metadata, values, index, names)
    };
    let bf16 = |n: usize| (Dtype::BF16, n);
    assert_eq!(open(good, bf16(16), index(), names), "ok");
    for (words, found) in [
        ("metadata: EOF", open("{", bf16(16), index(), names)),
        (
            "unknown field",
            open(r#"{"format":"nm","spec":"2:4","shape":[2,16],"x":1}"#, bf16(16), index(), names),
        ),
        ("17 bf16 values are stored; the pattern needs 16", open(good, bf16(17), index(), names)),
        ("the index has 5 bytes", open(good, bf16(16), (Dtype::U8, vec![0x44; 5]), names)),
        (
            "the positions of row 0 in columns 0 to 3 do not ascend",
            open(good, bf16(16), (Dtype::U8, vec![0; 4]), names),
        ),
        ("its values are I8", open(good, (Dtype::I8, 16), index(), names)),
        ("its index is I8", open(good, bf16(16), (Dtype::I8, vec![0x44; 4]), names)),
        (
            "its file has no tensor",
            open(good, bf16(16), index(), [".packed.value", ".packed.index"]),
        ),
        (
            "the format of `2:4` is `nm`, not `block`",
            open(r#"{"format":"block","spec":"2:4","shape":[2,16]}"#, bf16(16), index(), names),
        ),
        (
            "there is no preset",
            open(r#"{"format":"nm","spec":"walls","shape":[2,16]}"#, bf16(16), index(), names),
        ),
        (
            "not a multiple",
            open(r#"{"format":"nm","spec":"2:4","shape":[2,17]}"#, bf16(16), index(), names),
        ),
        (
            "too few for a pruned tensor",
            open(
                r#"{"format":"general","spec":"scope (1,4) keep 0","shape":[4194304,4194304]}"#,
                bf16(0),
                (Dtype::U8, vec![]),
                names,
            ),
        ),
        (
            "does not match its spec",
            open(
                r#"{"format":"nm","spec":"2:4","shape":[2,16],"members":[["w",[4,4]]],"member":0}"#,
                bf16(16),
                index(),
                names,
            ),
        ),
    ] {
        assert!(found.contains(words), "{found} for {words}");
        assert!(
            found.contains("packed tensor \"model.layers.0.self_attn.q_proj.weight\""),
            "{found}"
        );
    }
}

#[test]
fn patterns_are_read_from_the_record_of_a_run() {
    // A coupling's members are found by their short names.
    let source = Checkpoint::open(&model("llama")).expect("a checkpoint");
    let opened = Model::open(&source).expect("a model");
    let groups = Patterns::all(COUPLED).expect("a pattern").groups(&opened).expect("groups");
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[1].linears, [4, 5, 6]);
    assert!(COUPLED.parse::<Pattern>().is_ok());
}
