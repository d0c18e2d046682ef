//! `openwork tensor`, `hessian` and `methods`, run as users run them.

mod common;

use common::{Folder, bf16s, f16s, f32s, f64s, hessian, noise, safetensors};
use serde_json::Value;

/// A folder with weights `w` (8 x 16), a Hessian `h` and inputs `x`.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.file("w.safetensors", &[f32s("w", &[8, 16], &noise(128, 1))]);
    folder.file("h.safetensors", &[f32s("h", &[16, 16], &hessian(16, 400, 2))]);
    folder.file("x.safetensors", &[f32s("x", &[600, 16], &noise(9600, 2))]);
    folder
}

#[test]
fn magnitude_keeps_the_two_largest_of_four() {
    let folder = folder();
    let said = folder
        .run("tensor w.safetensors --spec 2:4 --method magnitude --out o.safetensors --force");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("magnitude"), "{}", said.out);
    assert!(said.err.contains("note: without --hessian or --inputs the error"), "{}", said.err);
    let (new, shape, dtype) = folder.read("o.safetensors", "w");
    assert_eq!((shape.as_slice(), dtype.as_str()), (&[8, 16][..], "F32"));
    for (old, new) in noise(128, 1).chunks(4).zip(new.chunks(4)) {
        let mut sorted: Vec<f32> = old.iter().map(|w| w.abs()).collect();
        sorted.sort_by(f32::total_cmp);
        for (o, n) in old.iter().zip(new) {
            assert_eq!(*n, if o.abs() >= sorted[2] { *o } else { 0.0 });
        }
    }
    // Nothing but the result is left behind.
    let names = ["h.safetensors", "o.safetensors", "w.safetensors", "x.safetensors"];
    assert_eq!(folder.names(), names);
}

#[test]
fn json_is_one_object_with_a_row_for_each_method() {
    let folder = folder();
    let json = folder.json(
        "tensor w.safetensors --spec 2:4 --method magnitude,wanda,s-obs[damping=diag:0.01,panel=8] --hessian h.safetensors",
    );
    assert_eq!(json["spec"], "2:4");
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([8, 16]));
    let rows = json["results"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["magnitude", "wanda", "s-obs[damping=diag:0.01,panel=8]"]);
    for row in rows {
        assert_eq!(row["conforms"], true);
        assert_eq!((row["density"].as_f64(), row["sparsity"].as_f64()), (Some(0.5), Some(0.5)));
        assert!(row["seconds"].as_f64().unwrap() >= 0.0);
        assert!(row["notes"].is_array());
    }
    let error = |i: usize| rows[i]["error"].as_f64().unwrap();
    assert!(0.0 < error(2) && error(2) < error(1) && error(1) < 1.0, "{rows:?}");
    assert_eq!(rows[0]["damping"], Value::Null);
    assert_eq!(rows[2]["damping"], "diag:0.01");
    let said = folder.run("tensor w.safetensors --spec 2:4 --method magnitude --quiet");
    assert_eq!((said.code, said.err.as_str()), (0, ""));
}

#[test]
fn weights_are_written_back_in_their_own_type() {
    let folder = Folder::new();
    let w = noise(64, 3);
    let files = [
        ("f64", f64s("w", &[4, 16], &w.iter().map(|&x| f64::from(x) / 3.0).collect::<Vec<_>>())),
        ("f16", f16s("w", &[4, 16], &w)),
        ("bf16", bf16s("w", &[4, 16], &w)),
        ("f32", f32s("w", &[4, 2, 2, 4], &w)),
    ];
    folder.file(
        "h.safetensors",
        &[f64s("h", &[16, 16], &hessian(16, 99, 1).iter().map(|&x| x.into()).collect::<Vec<_>>())],
    );
    for (dtype, tensor) in files {
        let bytes = tensor.3.clone();
        folder.file("w.safetensors", &[tensor]);
        let json = folder.json("tensor w.safetensors --spec 2:4 --method s-obs --hessian h.safetensors --out o.safetensors --force");
        assert_eq!(json["tensors"][0]["dtype"], dtype);
        let (new, _, found) = folder.read("o.safetensors", "w");
        assert_eq!(found.to_lowercase(), dtype);
        for four in new.chunks(4) {
            assert!(four.iter().filter(|w| **w == 0.0).count() >= 2, "{dtype}: {four:?}");
        }
        // A method that mends nothing leaves every kept weight's bytes alone.
        folder
            .run("tensor w.safetensors --spec 2:4 --method magnitude --out o.safetensors --force");
        let written = std::fs::read(folder.path("o.safetensors")).unwrap();
        let data = &written[written.len() - bytes.len()..];
        let size = bytes.len() / 64;
        let kept = data.chunks(size).zip(bytes.chunks(size));
        let kept = kept.filter(|(new, _)| new.iter().any(|b| *b != 0));
        assert_eq!(kept.clone().count(), 32, "{dtype}");
        assert!(kept.clone().all(|(new, old)| new == old), "{dtype}");
    }
}

#[test]
fn the_same_run_writes_the_same_bytes() {
    let folder = folder();
    let run = |threads: &str| {
        let said = folder.run(&format!(
            "tensor w.safetensors --spec 2:4 --method s-obs --inputs x.safetensors --out o.safetensors --force --threads {threads}"
        ));
        assert_eq!(said.code, 0, "{}", said.err);
        std::fs::read(folder.path("o.safetensors")).unwrap()
    };
    let one = run("1");
    assert!(one == run("2") && one == run("3"));
}

#[test]
fn inputs_and_the_hessian_made_of_them_prune_alike() {
    let folder = folder();
    let x = noise(9600, 2);
    folder.file("x3.safetensors", &[f32s("x", &[3, 200, 16], &x), f16s("other", &[1], &[0.0])]);
    let said = folder.run("hessian in=x.safetensors --out hx.safetensors");
    assert_eq!(said.code, 0, "{}", said.err);
    let tensor = "tensor w.safetensors --spec 2:4 --method s-obs";
    let [a, b, c] =
        ["--inputs x.safetensors", "--hessian hx.safetensors", "--inputs x3.safetensors:x"]
            .map(|from| folder.json(&format!("{tensor} {from}"))["results"][0].clone());
    for other in [&b, &c] {
        assert_eq!(a["error"], other["error"]);
        assert_eq!(a["damping"], other["damping"]);
        assert_eq!(a["notes"], other["notes"]);
    }
    let json = folder.json("hessian x3.safetensors:x --out hy.safetensors");
    assert_eq!(json["hessians"][0]["samples"], 600);
    assert_eq!(json["hessians"][0]["held_out_samples"], 256);
    assert_eq!(json["hessians"][0]["name"], "hessian");
}

#[test]
fn coupled_tensors_have_a_hessian_each() {
    let folder = Folder::new();
    folder.file(
        "f.safetensors",
        &[
            f32s("q", &[8, 16], &noise(128, 1)),
            f32s("k", &[8, 16], &noise(128, 2)),
            f32s("o", &[16, 8], &noise(128, 3)),
        ],
    );
    folder.file(
        "h.safetensors",
        &[f32s("qkv", &[16, 16], &hessian(16, 400, 4)), f32s("o", &[8, 8], &hessian(8, 400, 5))],
    );
    let spec = "blocks q: view (h d) k -> h d k, h=4 block (1,_,_) & k: view (h d) k -> h d k, h=4 block (1,_,_) \
                & o perm (1,0,2): view k (h d) -> k h d, h=4 block (_,1,_) scope (_,1,1) keep 2";
    let run = |method: &str, extra: &[&str]| {
        let mut args =
            vec!["tensor", "o=f.safetensors:o", "q=f.safetensors:q", "k=f.safetensors:k"];
        args.extend([
            "--spec",
            spec,
            "--method",
            method,
            "--out",
            "out.safetensors",
            "--force",
            "--json",
        ]);
        args.extend(["--hessian", "h.safetensors:qkv", "--hessian", "o=h.safetensors:o"]);
        args.extend(extra);
        folder.run_list(&args)
    };
    let said = run("s-obs[damping=diag:0.01]", &[]);
    assert_eq!(said.code, 0, "{}", said.err);
    let json: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["results"][0]["conforms"], true);
    assert_eq!(json["results"][0]["density"], 0.5);
    let names: Vec<_> = json["tensors"].as_array().unwrap().iter().map(|t| &t["name"]).collect();
    assert_eq!(names, ["q", "k", "o"]);
    // Heads go together: two rows of q and k with two columns of o.
    let [q, k, o] = ["q", "k", "o"].map(|name| folder.read("out.safetensors", name).0);
    let mut gone = 0;
    for head in 0..4 {
        let rows = |w: &[f32]| w[head * 32..][..32].iter().all(|w| *w == 0.0);
        let columns = (0..16).all(|r| o[r * 8 + head * 2..][..2].iter().all(|w| *w == 0.0));
        assert_eq!((rows(&q), rows(&k)), (columns, columns), "head {head}");
        gone += usize::from(columns);
    }
    assert_eq!(gone, 2);

    let said = run("s-obs", &["--hessian", "o=h.safetensors:o"]);
    assert!(said.err.contains("`o` has more than one --hessian or --inputs"), "{}", said.err);
    let said = run("s-obs", &["--inputs", "v=h.safetensors:o"]);
    assert!(
        said.err
            .contains("there is no tensor `v` for --hessian or --inputs; the tensors are q, k, o"),
        "{}",
        said.err
    );
    assert_eq!(said.code, 2);
}

#[test]
fn weak_statistics_work_with_a_note() {
    let folder = folder();
    let note = |statistics: &str| {
        let json = folder.json(&format!(
            "tensor w.safetensors --spec 2:4 --method s-obs --out o.safetensors --force {statistics}"
        ));
        let result = &json["results"][0];
        assert_eq!(result["conforms"], true, "{statistics}");
        assert!(result["error"].is_f64(), "{statistics}");
        let (new, ..) = folder.read("o.safetensors", "w");
        assert!(new.iter().all(|w| w.is_finite()));
        result["notes"].to_string()
    };
    folder.file("few.safetensors", &[f32s("x", &[5, 16], &noise(80, 2))]);
    assert!(note("--inputs few.safetensors").contains("5 samples for 16 columns"));
    let mut x = noise(9600, 2);
    x.iter_mut().skip(3).step_by(16).for_each(|x| *x = 0.0);
    folder.file("dead.safetensors", &[f32s("x", &[600, 16], &x)]);
    let dead = "1 of 16 columns has only zero inputs (the first is 3)";
    assert!(note("--inputs dead.safetensors").contains(dead));
    let wanda = "tensor w.safetensors --spec 2:4 --method wanda --inputs dead.safetensors";
    assert!(folder.json(wanda)["results"][0]["notes"].to_string().contains(dead));
    folder.file("zero.safetensors", &[f32s("h", &[16, 16], &[0.0; 256])]);
    assert!(note("--hessian zero.safetensors").contains("16 of 16 columns have only zero inputs"));
    // Every pair but the diagonal at -0.2: one eigenvalue is 1 - 15 * 0.2 = -2.
    let h: Vec<f32> = (0..256).map(|e| if e % 17 == 0 { 1.0 } else { -0.2 }).collect();
    folder.file("indefinite.safetensors", &[f32s("h", &[16, 16], &h)]);
    assert!(note("--hessian indefinite.safetensors").contains("damping was raised to diag:10"));
}

#[test]
fn bad_numbers_are_refused_by_name() {
    let folder = folder();
    let run = |w: &str, statistics: &str| {
        folder.refused(&format!(
            "tensor {w}.safetensors --spec 2:4 --method s-obs {statistics} --out o.safetensors --force"
        ))
    };
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let (mut w, mut h, mut x) = (noise(128, 1), hessian(16, 400, 2), noise(9600, 2));
        (w[17], h[18], x[35]) = (bad, bad, bad);
        folder.file("bw.safetensors", &[f32s("w", &[8, 16], &w)]);
        folder.file("bh.safetensors", &[f32s("h", &[16, 16], &h)]);
        folder.file("bx.safetensors", &[f32s("x", &[600, 16], &x)]);
        let message = run("bw", "--hessian h.safetensors");
        assert!(message.contains(&format!("`w` has {shown} in row 1, column 1")), "{message}");
        let message = run("w", "--hessian bh.safetensors");
        assert!(message.starts_with("bh.safetensors: tensor `h`: H[1, 2] is "), "{message}");
        let message = run("w", "--inputs bx.safetensors");
        assert!(message.contains(&format!("sample 2, column 3 is {shown}")), "{message}");
    }
    let mut h = hessian(16, 400, 2);
    h[1] += 0.1;
    folder.file("bh.safetensors", &[f32s("h", &[16, 16], &h)]);
    assert!(run("w", "--hessian bh.safetensors").contains("H is not symmetric: H[0, 1] is "));
    // One eigenvalue is 1 - 15: no damping up to ten times the diagonal helps.
    let h: Vec<f32> = (0..256).map(|e| if e % 17 == 0 { 1.0 } else { -1.0 }).collect();
    folder.file("bh.safetensors", &[f32s("h", &[16, 16], &h)]);
    let message = run("w", "--hessian bh.safetensors");
    assert!(message.contains("not positive definite even with diag:10"), "{message}");
    let large: Vec<f32> = hessian(16, 400, 2).iter().map(|x| x * 1e6).collect();
    folder.file("bh.safetensors", &[f16s("h", &[16, 16], &large)]);
    let message = run("w", "--hessian bh.safetensors");
    assert!(message.ends_with("the largest f16 is 65504; store H as f32 or f64"), "{message}");
    folder.file("bx.safetensors", &[f16s("x", &[1, 16], &[1e5; 16])]);
    let message = run("w", "--inputs bx.safetensors");
    assert!(message.contains("the largest f16 is 65504; store these inputs"), "{message}");
    folder.file("bw.safetensors", &[f64s("w", &[8, 16], &[1e300; 128])]);
    let message = run("bw", "--hessian h.safetensors");
    assert_eq!(message, "bw.safetensors: tensor `w` has 1e300 at offset 0, which f32 cannot hold");
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let folder = folder();
    let run = |spec: &str, statistics: &str| {
        folder.refused(&format!("tensor w.safetensors --spec {spec} --method s-obs {statistics}"))
    };
    folder.file("b.safetensors", &[f32s("h", &[8, 8], &hessian(8, 99, 1))]);
    let message = run("2:4", "--hessian b.safetensors");
    assert_eq!(message, "tensor `w`: H is 8 x 8, but the weights have 16 columns");
    folder.file("b.safetensors", &[f32s("h", &[8, 16], &noise(128, 1))]);
    let message = run("2:4", "--hessian b.safetensors");
    assert_eq!(message, "b.safetensors: tensor `h` has shape [8, 16]; H must be a square matrix");
}

#[test]
fn inputs_must_have_the_columns_of_the_weights() {
    let folder = folder();
    folder.file(
        "b.safetensors",
        &[f32s("x", &[16, 8], &noise(128, 1)), f32s("v", &[16], &noise(16, 1))],
    );
    let run = |place: &str| {
        folder.refused(&format!("tensor w.safetensors --spec 2:4 --method s-obs --inputs {place}"))
    };
    let message = run("b.safetensors:x");
    assert!(
        message.ends_with("the weights have 16 columns, so the last axis must have as many"),
        "{message}"
    );
    let message = run("b.safetensors:v");
    assert!(
        message.contains("tensor `v` has shape [16]; inputs are [samples, columns]"),
        "{message}"
    );
    folder.file("b.safetensors", &[f32s("x", &[0, 16], &[])]);
    assert!(run("b.safetensors").contains("H has no samples"), "no rows");
    // A few bytes must not ask for terabytes.
    folder.file("b.safetensors", &[bf16s("x", &[1, 1 << 20], &vec![1.0; 1 << 20])]);
    let message = folder.refused("hessian b.safetensors --out h2.safetensors");
    assert!(message.ends_with("H would have 1048576 columns, more than 65536"), "{message}");
}

#[test]
fn a_spec_that_does_not_fit_is_refused() {
    let folder = folder();
    let run = |file: &str, spec: &str| {
        folder.refused(&format!(
            "tensor {file}.safetensors --spec {spec} --method magnitude --out o.safetensors --force"
        ))
    };
    assert!(run("w", "2:5").contains("16 entries, not a multiple of 5"));
    assert!(run("w", "5:4").contains('^'));
    folder.file("empty.safetensors", &[f32s("w", &[0, 16], &[])]);
    assert!(run("empty", "2:4").contains("has no elements: there is nothing to prune"));
    let message =
        folder.refused("tensor w.safetensors w.safetensors --spec 2:4 --method magnitude");
    assert!(message.contains("several tensors need a name each"), "{message}");
    let message =
        folder.refused("tensor a=w.safetensors b=w.safetensors --spec 2:4 --method magnitude");
    assert!(message.contains("for one tensor; 2 were given"), "{message}");
}

#[test]
fn keep_nothing_gives_zeros() {
    let folder = folder();
    let args = ["tensor", "w.safetensors", "--method", "s-obs", "--hessian", "h.safetensors"];
    let args =
        [&args[..], &["--spec", "scope (1,4) keep 0", "--out", "o.safetensors", "--json"]].concat();
    let said = folder.run_list(&args);
    assert_eq!(said.code, 0, "{}", said.err);
    let json: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["results"][0]["density"], 0.0);
    assert_eq!(json["results"][0]["conforms"], true);
    assert!((json["results"][0]["error"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    assert!(folder.read("o.safetensors", "w").0.iter().all(|w| *w == 0.0));
}

#[test]
fn files_that_are_damaged_or_something_else_are_refused() {
    let folder = folder();
    let run = || {
        folder.refused(
            "tensor b.safetensors --spec 2:4 --method magnitude --out o.safetensors --force",
        )
    };
    assert_eq!(run(), "b.safetensors: no such file or folder");
    folder.bytes("b.safetensors", b"");
    assert!(run().contains("ends after 0 bytes, inside the header's length"));
    folder.bytes("b.safetensors", b"this is a text, not a file of tensors");
    assert!(run().contains("the file is damaged or not safetensors"));
    folder.bytes("b.safetensors", &[&2u64.to_le_bytes()[..], b"[]"].concat());
    assert!(run().contains("invalid header"));
    folder.bytes("b.safetensors", &[&2u64.to_le_bytes()[..], b"{}"].concat());
    assert_eq!(run(), "b.safetensors: has no tensors");
    folder.bytes("b.safetensors", &u64::MAX.to_le_bytes());
    assert!(run().contains("the header length of 18446744073709551615 bytes exceeds"));
    let whole = safetensors(&[f32s("w", &[8, 16], &noise(128, 1))], &[]);
    for length in (0..whole.len()).step_by(7) {
        folder.bytes("b.safetensors", &whole[..length]);
        assert!(!run().is_empty());
    }
    folder.bytes("b.safetensors", &whole[..whole.len() - 1]);
    assert!(run().contains("exceeds the file's 511 bytes of data"));
    folder.bytes("b.safetensors", &[&whole[..], b"x"].concat());
    assert!(run().contains("bytes 512..513 of the data belong to no tensor"));
    folder.file("b.safetensors", &[("w", "I32", vec![8, 16], vec![0; 512])]);
    let message = run();
    let expected = "b.safetensors: tensor `w` is i32; weights must be f64, f32, f16 or bf16";
    assert_eq!(message, expected);
    folder.file("b.safetensors", &[("w", "F32", vec![usize::MAX, 16], vec![0; 512])]);
    assert!(run().contains("too many elements for any file"));
    folder.file("b.safetensors", &[("w", "F32", vec![8, 17], vec![0; 512])]);
    assert!(run().contains("needs 544 bytes, but its offsets 0..512 hold 512"));
    let entry = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let header = format!(r#"{{"w":{entry},"w":{entry}}}"#);
    let length = (header.len() as u64).to_le_bytes();
    folder.bytes("b.safetensors", &[&length[..], header.as_bytes()].concat());
    assert_eq!(run(), "b.safetensors: tensor \"w\" is listed twice");
    std::fs::remove_file(folder.path("b.safetensors")).unwrap();
    std::fs::create_dir(folder.path("b.safetensors")).unwrap();
    assert_eq!(run(), "b.safetensors: not a regular file");
}

#[test]
fn a_tensor_that_is_not_there_is_answered_with_names() {
    let folder = folder();
    let two = [f32s("left", &[4, 4], &noise(16, 1)), f32s("right", &[4, 4], &noise(16, 1))];
    folder.file("b.safetensors", &two);
    let run = |w: &str, more: &str| {
        folder.refused(&format!("tensor {w} --spec 2:4 --method magnitude {more}"))
    };
    let message = run("b.safetensors", "");
    assert_eq!(message, "b.safetensors: has 2 tensors; name one as FILE:NAME: left, right");
    let message = run("b.safetensors:rihgt", "");
    let expected = "b.safetensors: has no tensor `rihgt`; did you mean `right`? it has left, right";
    assert_eq!(message, expected);
    let message = run("b.safetensors:left", "--hessian b.safetensors");
    assert!(message.contains("has 2 square matrices among its 2 tensors"), "{message}");
}

#[test]
fn methods_that_do_not_exist_are_answered_with_the_nearest() {
    let folder = folder();
    let run = |method: &str| {
        let args =
            format!("tensor w.safetensors --spec 2:4 --hessian h.safetensors --method {method}");
        folder.refused(&args)
    };
    assert!(run("s-obss").contains("did you mean `s-obs`?"));
    assert!(run("s-obs+swop").contains("there is no modifier `swop`; did you mean `swap`?"));
    assert!(run("magnitud").contains("did you mean `magnitude`?"));
    assert!(run("s-obs[pannel=3]").contains("did you mean `panel`?"));
    assert!(run("s-obs[damping=1]").contains("a colon is missing"));
    assert!(run("s-obs[panel=3").contains("unclosed bracket"));
    assert!(run("magnitude,,wanda").contains("there is no method ``"));
    assert!(
        run("wanda,s-obs --out o.safetensors --force").starts_with("--out needs a single method")
    );
    let message = folder.refused("tensor w.safetensors --spec 2:4 --method magnitude,wanda");
    assert!(message.starts_with("wanda needs statistics of the inputs of `w`"), "{message}");
    let message = folder.refused("tensor w.safetensors --spec 2:4");
    assert!(message.contains("--method"), "{message}");
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_work() {
    let folder = folder();
    let run = |out: &str| {
        folder.refused(&format!("tensor w.safetensors --spec 2:4 --method magnitude --out {out}"))
    };
    assert_eq!(
        run("no/o.safetensors"),
        "no/o.safetensors: the folder no does not exist; create it first"
    );
    assert_eq!(run("."), ".: is a folder; give the name of a file");
}

#[test]
fn weights_that_outgrow_their_type_are_not_written() {
    let folder = Folder::new();
    // Two inputs that nearly cancel: losing one doubles the other.
    folder.file("w.safetensors", &[f16s("w", &[1, 2], &[60000.0, 59000.0])]);
    folder.file("h.safetensors", &[f64s("h", &[2, 2], &[1.0, 0.999, 0.999, 1.0])]);
    let said = folder.run(
        "tensor w.safetensors --spec 1:2 --method s-obs[damping=diag:0] --hessian h.safetensors --out o.safetensors --force",
    );
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(
        said.err.contains("of `w` is outside the range of f16; nothing was written"),
        "{}",
        said.err
    );
    assert_eq!(folder.names(), ["h.safetensors", "w.safetensors"]);
}

#[test]
fn hessian_files_with_wrong_counts_are_refused() {
    let folder = folder();
    let h = || f32s("h", &[16, 16], &hessian(16, 400, 2));
    let held = || f32s("h.held_out", &[16, 16], &hessian(16, 100, 3));
    let run = |tensors: &[common::Raw<'_>], metadata: &[(&str, &str)]| {
        folder.bytes("b.safetensors", &safetensors(tensors, metadata));
        folder.refused("tensor w.safetensors --spec 2:4 --method s-obs --hessian b.safetensors")
    };
    let message = run(&[h()], &[("h.samples", "many")]);
    assert_eq!(
        message,
        "b.safetensors: metadata `h.samples` is `many`; it must be a whole number above zero"
    );
    let message = run(&[h(), held()], &[("h.samples", "400")]);
    assert!(message.contains("metadata `h.held_out_samples` is missing"), "{message}");
    let message = run(&[h(), held()], &[("h.samples", "400"), ("h.held_out_samples", "400")]);
    assert!(message.contains("400 of 400 samples are held out"), "{message}");
}

#[test]
fn methods_lists_every_method_with_its_options() {
    let folder = Folder::new();
    let json = folder.json("methods");
    let text = folder.run("methods").out;
    for method in openwork::prune::METHODS {
        assert!(text.contains(&format!("\n  {}", method.name)), "{text}");
        let rows = json["methods"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == method.name).unwrap();
        assert_eq!(row["options"].as_array().unwrap().len(), method.options.len());
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(method.options.iter().all(|option| flat.contains(option.help)), "{text}");
    }
    assert!(text.contains("damping=diag:L | mean:L | abs:A | auto   (default auto)"), "{text}");
}
