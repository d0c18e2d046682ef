//! The contract of the API: every route, with right and wrong requests, without sockets.

use openwork::{Element, Pattern};
use openwork_studio::{Access, Options, ROUTES, Request, Response, Studio};
use proptest::strategy::Strategy;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const HOST: &str = "127.0.0.1:8000";

fn studio() -> Studio {
    studio_with(&[], Path::new("."))
}

fn studio_with(sources: &[&Path], runs: &Path) -> Studio {
    let options = Options {
        sources: sources.iter().map(|path| path.to_path_buf()).collect(),
        calibration: "demo".into(),
        runs: runs.to_path_buf(),
    };
    Studio::new(&options, Access::loopback(8000)).unwrap()
}

fn ask(studio: &Studio, method: &str, target: &str, body: &[u8]) -> Response {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let content_type = Some("application/json");
    studio.answer(&Request {
        method,
        path,
        query,
        host: Some(HOST),
        content_type,
        body,
        ..Request::default()
    })
}

fn value(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or(Value::Null)
}

fn get(studio: &Studio, target: &str) -> Value {
    let response = ask(studio, "GET", target, b"");
    assert_eq!(response.status, 200, "{target}: {}", String::from_utf8_lossy(&response.body));
    value(&response)
}

fn post(studio: &Studio, path: &str, body: &Value) -> Value {
    let response = ask(studio, "POST", path, body.to_string().as_bytes());
    assert_eq!(response.status, 200, "{path}: {}", String::from_utf8_lossy(&response.body));
    value(&response)
}

fn spec(text: &str, shapes: &[&str]) -> Value {
    json!({"spec": text, "shapes": shapes, "seed": 1})
}

fn with(mut base: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

#[test]
fn the_facts_are_those_of_show() {
    let studio = studio();
    for (text, dims) in [("2:4", [8, 16]), ("2:4@8", [8, 32]), ("rows16", [16, 32])] {
        let shape = format!("{},{}", dims[0], dims[1]);
        let found = post(&studio, "/api/show", &spec(text, &[&shape]));
        let bound = text.parse::<Pattern>().unwrap().bind(&dims).unwrap();
        assert_eq!(found["facts"], openwork_llm::spec_json(&bound), "{text}");
        assert_eq!(found["panels"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn an_error_while_typing_points_at_its_character() {
    let studio = studio();
    let found = post(&studio, "/api/show", &spec("scope (1,4) keep two", &["8,16"]));
    assert_eq!(found["error"]["at"], 17, "{found}");
    assert_eq!(found["error"]["what"], "unknown symbol `two`");
    // Positions count as the browser does.
    let wide = post(&studio, "/api/show", &spec("# 𝕏\nkeep two", &["8,16"]));
    assert_eq!(wide["error"]["at"], 10, "{wide}");
    let shape = post(&studio, "/api/show", &spec("2:4", &["8,a"]));
    assert_eq!(shape["error"]["what"], "shape 8,a: `a` is not a number; write 16,32 or q=16,32");
}

/// A tile says of every cell what the spec says, at full resolution and reduced.
#[test]
fn tiles_agree_with_the_spec() {
    let studio = studio();
    for (text, shapes) in [
        ("2:4@8", &["8,32"][..]),
        ("in (2,4)+(4,8) scope (1,4) keep 2", &["8,16"]),
        ("block (4,1) scope (1,8) keep 4 then 2:4", &["8,32"]),
        ("unstructured(30%)", &["40,40"]),
        ("blocks a: block (1,_) & b perm (1,0): block (_,1) keep 50%", &["a=8,4", "b=4,8"]),
        ("scopes a: block (1,2) scope (1,_) & b: scope (1,_) keep 50%", &["a=6,12", "b=6,16"]),
    ] {
        let shown = post(&studio, "/api/show", &spec(text, shapes));
        let pattern: Pattern = text.parse().unwrap();
        let named: Vec<(String, Vec<usize>)> = shapes
            .iter()
            .map(|shape| {
                let (name, dims) = shape.split_once('=').unwrap_or(("tensor", shape));
                (name.to_string(), dims.split(',').map(|n| n.parse().unwrap()).collect())
            })
            .collect();
        let tensors: Vec<(&str, &[usize])> =
            named.iter().map(|(name, dims)| (name.as_str(), dims.as_slice())).collect();
        let bound = pattern.bind_all(&tensors).unwrap();
        for (number, panel) in shown["panels"].as_array().unwrap().iter().enumerate() {
            let size = |key: &str| panel[key].as_u64().unwrap() as usize;
            let (rows, cols) = (size("rows"), size("cols"));
            let body = with(
                spec(text, shapes),
                &json!({"panel": number, "row": 0, "col": 0, "rows": rows, "cols": cols, "step": 1, "numbers": true, "mask": true}),
            );
            let bytes = ask(&studio, "POST", "/api/tile", body.to_string().as_bytes()).body;
            assert_eq!(bytes.len(), 9 * rows * cols, "{text}");
            let word = |at: usize| u32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap());
            if !panel["path"].as_array().unwrap().is_empty() {
                continue;
            }
            let mut kept = 0;
            for cell in 0..rows * cols {
                let found = bound.locate(Element { tensor: size("tensor"), offset: cell });
                let numbers = (word(cell), word(rows * cols + cell));
                let expected = found.map_or((u32::MAX, u32::MAX), |(s, b)| (s as u32, b as u32));
                assert_eq!(numbers, expected, "{text} at {cell}");
                kept += usize::from(found.is_some() && bytes[8 * rows * cols + cell] >> 5 == 0);
            }
            if shapes.len() == 1 {
                let share = kept as f64 / bound.tensors()[0].domain_size() as f64;
                assert!((share - bound.density()).abs() < 1e-9, "{text}: {share}");
            }
            let reduced = with(
                body,
                &json!({"step": 4, "numbers": false, "rows": rows.div_ceil(4), "cols": cols.div_ceil(4)}),
            );
            let bytes = ask(&studio, "POST", "/api/tile", reduced.to_string().as_bytes()).body;
            assert_eq!(bytes.len(), 2 * rows.div_ceil(4) * cols.div_ceil(4), "{text}");
        }
    }
}

/// One answer has the facts of `/api/show` and the bytes of `/api/tile`.
#[test]
fn a_drawing_is_the_facts_and_the_tiles() {
    let studio = studio();
    let tile = |more: Value| {
        let plain = json!({"panel": 0, "row": 0, "col": 0, "rows": 8, "cols": 16, "step": 1, "numbers": false, "mask": true});
        with(plain, &more)
    };
    let tiles = [
        tile(json!({})),
        tile(json!({"numbers": true, "rows": 5, "cols": 7})),
        tile(json!({"step": 2, "rows": 4, "cols": 8})),
        tile(json!({"panel": 1})),
    ];
    let design = spec("2:4@8", &["8,32"]);
    let draw = |tiles: &[Value]| {
        let body = with(design.clone(), &json!({"tiles": tiles})).to_string();
        ask(&studio, "POST", "/api/draw", body.as_bytes())
    };
    let drawing = draw(&tiles);
    assert_eq!((drawing.status, drawing.content_type), (200, "application/octet-stream"));
    let length = u32::from_le_bytes(drawing.body[..4].try_into().unwrap()) as usize;
    let mut head: Value = serde_json::from_slice(&drawing.body[4..4 + length]).unwrap();
    assert_eq!(head["tiles"], json!([128, 9 * 35, 64, null]));
    head.as_object_mut().unwrap().remove("tiles");
    assert_eq!(head, post(&studio, "/api/show", &design));
    let mut at = (4 + length).next_multiple_of(4);
    for tile in &tiles[..3] {
        let body = with(design.clone(), tile).to_string();
        let alone = ask(&studio, "POST", "/api/tile", body.as_bytes()).body;
        assert_eq!(drawing.body[at..at + alone.len()], alone[..], "{tile}");
        at += alone.len().next_multiple_of(4);
    }
    assert_eq!(drawing.body.len(), at);

    let wrong = with(spec("keep two", &["8,32"]), &json!({"tiles": tiles}));
    assert_eq!(post(&studio, "/api/draw", &wrong)["error"]["at"], 5);
    for many in [vec![tile(json!({})); 65], vec![tile(json!({"rows": 512, "cols": 512})); 3]] {
        let refused = draw(&many);
        assert_eq!(refused.status, 400);
        let why = value(&refused)["error"].as_str().unwrap().to_string();
        assert!(why.starts_with("a drawing has at most 64 tiles and 524288 cells"), "{why}");
    }
}

/// Handles are drawn where the axes of the view are in the picture.
#[test]
fn axes_say_how_they_run_through_the_picture() {
    let studio = studio();
    for (text, shape, origin, expected) in [
        ("2:4@8", "8,32", json!([0, 0]), "m rows 1, g cols 16, i cols 1, j cols 8"),
        ("rows16", "32,64", json!([0, 0]), "t rows 16, p rows 1, r rows 8, k cols 1"),
        ("in (2,4)+(4,8) scope (1,4) keep 2", "8,16", json!([2, 4]), "M rows 1, K cols 1"),
        ("2:4 pad (1,4)", "4,10", json!([0, 0]), "M rows 1, K cols 1"),
        // Neither along rows nor along columns.
        ("view (8):(1) keep 2", "2,4", json!([0, 0]), "K -"),
        ("in ~((0,0)+(2,2)) keep 2", "4,4", json!([0, 2]), "K -"),
    ] {
        let found = post(&studio, "/api/show", &spec(text, &[shape]));
        let panel = &found["panels"][0];
        assert_eq!(panel["origin"], origin, "{text}");
        let axis = |axis: &Value| match axis["along"].as_str() {
            Some(along) => format!("{} {along} {}", axis["name"].as_str().unwrap(), axis["step"]),
            None => format!("{} -", axis["name"].as_str().unwrap()),
        };
        let axes: Vec<String> = panel["axes"].as_array().unwrap().iter().map(axis).collect();
        assert_eq!(axes.join(", "), expected, "{text}");
    }
}

#[test]
fn an_element_names_its_block_scope_and_mates() {
    let studio = studio();
    let at = with(spec("2:4@8", &["8,32"]), &json!({"panel": 0, "row": 1, "col": 2}));
    let found = post(&studio, "/api/element", &at);
    assert_eq!(found["offset"], 34);
    assert_eq!(found["block"]["cells"], json!([[0, 1, 2], [0, 1, 10]]));
    assert_eq!(found["scope"]["cells"].as_array().unwrap().len(), 8);
    let view: Vec<_> =
        found["view"].as_array().unwrap().iter().map(|v| v["at"].as_u64().unwrap()).collect();
    assert_eq!(view, [1, 0, 2, 0]);
    let outside = with(
        spec("in (2,4)+(4,8) scope (1,4) keep 2", &["8,16"]),
        &json!({"panel": 0, "row": 0, "col": 0}),
    );
    assert_eq!(post(&studio, "/api/element", &outside)["kind"], "outside");
    let padding = with(spec("2:4 pad (1,4)", &["4,10"]), &json!({"panel": 0, "row": 0, "col": 11}));
    let padding = post(&studio, "/api/element", &padding);
    assert_eq!((padding["kind"].as_str(), padding["offset"].is_null()), (Some("padding"), true));
    let beyond = with(spec("2:4", &["8,16"]), &json!({"panel": 0, "row": 8, "col": 0}));
    assert_eq!(ask(&studio, "POST", "/api/element", beyond.to_string().as_bytes()).status, 404);
}

#[test]
fn an_edit_rewrites_the_text() {
    let studio = studio();
    let edited = |text: &str, edit: Value| {
        let body = with(spec(text, &["8,32"]), &json!({"panel": 0, "edit": edit}));
        post(&studio, "/api/edit", &body)["spec"].as_str().unwrap().to_string()
    };
    assert_eq!(edited("2:4", json!({"scope": {"axis": 1, "extent": 8}})), "2:4 scope (1,8)");
    assert_eq!(edited("2:4", json!({"keep": {"count": 1}})), "2:4 keep 1");
    let moved = edited("2:4@8", json!({"move_axis": {"from": 3, "to": 2}}));
    assert!(moved.starts_with("view m (g j i) -> m g j i"), "{moved}");
    let wrong = with(spec("2:4", &["8,32"]), &json!({"panel": 0, "edit": {"keep": {"count": 9}}}));
    assert_eq!(ask(&studio, "POST", "/api/edit", wrong.to_string().as_bytes()).status, 422);
}

#[test]
fn a_design_is_shared_in_every_language() {
    let studio = studio();
    let found = post(&studio, "/api/share", &spec("2:4 # half\n", &["8,16"]));
    assert_eq!(found["text"], "2:4");
    assert_eq!(found["recipe"], "spec = \"2:4\"\n");
    assert_eq!(found["command"], "openwork show '2:4' --shape '8,16'");
    assert!(found["rust"].as_str().unwrap().contains("bind(&[8, 16])"));
    assert!(found["python"].as_str().unwrap().contains(".bind((8, 16))"));
    let evil = "<script>alert(1)</script>";
    let named = format!("blocks {}: block (1,_) & b: block (1,_) keep 50%", "a");
    for (path, start) in [("/api/svg", "<svg"), ("/api/export", "<!doctype html>")] {
        let body = spec(&named, &["a=8,4", "b=8,4"]).to_string();
        let text = String::from_utf8(ask(&studio, "POST", path, body.as_bytes()).body.into_owned())
            .unwrap();
        assert!(text.starts_with(start) && !text.contains(evil), "{path}");
    }
    let fragment = post(&studio, "/api/fragment", &spec("rows16", &["16,32"]));
    assert_eq!(fragment["lanes"]["balanced"], true);
    let ragged = spec("2:4", &["8,16"]).to_string();
    assert_eq!(ask(&studio, "POST", "/api/fragment", ragged.as_bytes()).status, 422);
}

#[test]
fn layouts_are_computed_with_grids_and_steps() {
    let studio = studio();
    let body = json!({"op": "composition", "inputs": ["(6,2):(8,2)", "(4,3):(3,1)"]});
    let found = post(&studio, "/api/layout", &body);
    assert_eq!(found["output"], "((2,2),3):((24,2),8)");
    assert_eq!(found["inputs"][0]["grid"]["rows"], 6);
    for row in found["steps"]["rows"].as_array().unwrap() {
        assert_eq!(row["a"], row["r"], "{row}");
    }
    for op in get(&studio, "/api/catalog")["layout_operations"].as_array().unwrap() {
        let body = json!({"op": op["name"], "inputs": op["example"]});
        let found = post(&studio, "/api/layout", &body);
        assert!(found["error"].is_null() && found["output"].is_string(), "{op}: {found}");
    }
    let refused = json!({"op": "composition", "inputs": ["(4,3):(1,9)", "5:1"]});
    assert!(post(&studio, "/api/layout", &refused)["error"].is_string());
    let unknown = json!({"op": "colaesce", "inputs": []}).to_string();
    assert_eq!(ask(&studio, "POST", "/api/layout", unknown.as_bytes()).status, 404);
}

fn finished(studio: &Studio, job: u64) -> Value {
    let started = Instant::now();
    loop {
        let status = post(studio, "/api/trial/status", &json!({"job": job}));
        if status["ended"] == true {
            return status;
        }
        assert!(started.elapsed() < Duration::from_secs(300), "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn patterns_are_tried_on_the_built_in_model() {
    let studio = studio();
    let sources = get(&studio, "/api/sources");
    let tensors = sources["sources"][0]["tensors"].as_array().unwrap();
    assert!(tensors.len() >= 7 && tensors[0]["has_inputs"] == true, "{sources}");
    let body = json!({"source": 0, "tensor": 0, "patterns": ["2:4", "2:4@8"], "methods": ["magnitude", "sparsegpt"]});
    let job = post(&studio, "/api/trial", &body)["job"].as_u64().unwrap();
    let status = finished(&studio, job);
    assert_eq!(status["error"], Value::Null, "{status}");
    let results = status["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    let error = |i: usize| results[i]["error"].as_f64().unwrap();
    assert!(error(1) < error(0), "fitting weights lowers the error: {status}");
    assert!(error(0) < error(2), "pairs are a stricter pattern: {status}");
    let packed = |i: usize| results[i]["packed"]["bytes"].as_u64().unwrap();
    assert!(packed(2) < packed(0), "and pack smaller: {status}");
    let shape: Vec<usize> =
        status["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    let mask = |step: usize, rows: usize, cols: usize| {
        let body = json!({"job": job, "result": 0, "step": step, "rows": rows, "cols": cols});
        ask(&studio, "POST", "/api/trial/mask", body.to_string().as_bytes()).body.into_owned()
    };
    let all = mask(1, shape[0], shape[1]);
    assert_eq!(all.len(), shape[0] * shape[1]);
    assert_eq!(all.iter().filter(|&&share| share == 255).count() * 2, all.len());
    let corner: Vec<u8> = (0..3).flat_map(|i| all[i * shape[1]..][..8].to_vec()).collect();
    assert_eq!(mask(1, 3, 8), corner, "a corner is that of the whole");
    assert_eq!(mask(4, 9999, 9999).len(), shape[0].div_ceil(4) * shape[1].div_ceil(4));
    assert!(mask(0, 1, 1).starts_with(b"{\"error\""));
}

#[test]
fn a_trial_can_be_cancelled_and_wrong_ones_are_refused() {
    let studio = studio();
    let start = |body: Value| ask(&studio, "POST", "/api/trial", body.to_string().as_bytes());
    let one = json!({"source": 0, "tensor": 13, "patterns": ["2:4"], "methods": ["admm+swap"]});
    let job = value(&start(one.clone()))["job"].as_u64().unwrap();
    post(&studio, "/api/trial/cancel", &json!({"job": job}));
    let status = finished(&studio, job);
    assert!(status["cancelled"] == true && status["error"] == "cancelled", "{status}");
    assert_eq!(status["results"], json!([]), "what was stopped is not a result");
    for (change, status) in [
        (json!({"patterns": []}), 400),
        (json!({"methods": ["magnitude", "magnitude", "magnitude", "magnitude"]}), 400),
        (json!({"patterns": ["2:5"]}), 422),
        (json!({"methods": ["magic"]}), 422),
        (json!({"source": 9}), 404),
        (json!({"tensor": 99999}), 404),
        (json!({"path": "/etc/passwd"}), 400),
    ] {
        assert_eq!(start(with(one.clone(), &change)).status, status, "{change}");
    }
    assert_eq!(ask(&studio, "POST", "/api/trial/status", b"{\"job\":77}").status, 404);
}

#[test]
fn a_file_is_tried_with_its_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let tensor = |rows: usize, cols: usize| -> Vec<u8> {
        (0..rows * cols)
            .flat_map(|i| (((i * 7919) % 101) as f32 / 50.0 - 1.0).to_le_bytes())
            .collect()
    };
    let (w, x) = (tensor(8, 16), tensor(64, 16));
    let header = json!({
        "w": {"dtype": "F32", "shape": [8, 16], "data_offsets": [0, w.len()]},
        "w.inputs": {"dtype": "F32", "shape": [64, 16], "data_offsets": [w.len(), w.len() + x.len()]},
    })
    .to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &w, &x].concat();
    std::fs::write(&path, bytes).unwrap();
    let studio = studio_with(&[&path], folder.path());
    let sources = get(&studio, "/api/sources");
    assert_eq!(sources["sources"][0]["name"], "w.safetensors");
    assert_eq!(
        sources["sources"][0]["tensors"],
        json!([{"name": "w", "shape": [8, 16], "has_inputs": true}])
    );
    let body = json!({"source": 0, "tensor": 0, "patterns": ["2:4"], "methods": ["s-obs"]});
    let status = finished(&studio, post(&studio, "/api/trial", &body)["job"].as_u64().unwrap());
    assert!(status["results"][0]["error"].as_f64().is_some(), "{status}");
    assert!(!sources.to_string().contains(&folder.path().display().to_string()), "no paths");
}

#[test]
fn runs_are_listed_and_paths_are_not_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let studio = studio_with(&[], folder.path());
    assert_eq!(get(&studio, "/api/runs")["runs"], json!([]));
    for query in ["run=0", "run=../..", "run=/etc/passwd", "run=%2e%2e", "", "run=-1"] {
        assert_eq!(ask(&studio, "GET", &format!("/api/run?{query}"), b"").status, 404, "{query}");
        assert_eq!(ask(&studio, "GET", &format!("/report?{query}"), b"").status, 404, "{query}");
    }
}

#[test]
fn nothing_but_the_page_and_the_routes_is_served() {
    let studio = studio();
    let page = ask(&studio, "GET", "/", b"");
    assert_eq!((page.status, page.content_type), (200, "text/html; charset=utf-8"));
    let html = String::from_utf8(page.body.into_owned()).unwrap();
    assert!(!html.contains("<script>") && !html.contains(" style=") && !html.contains("http://"));
    for path in [
        "/../Cargo.toml",
        "/js/../../Cargo.toml",
        "/js/%2e%2e/main.js",
        "//etc/passwd",
        "/etc/passwd",
        "/js/",
        "/api/",
        "/api/nothing",
        "/index.html/..",
    ] {
        assert_eq!(ask(&studio, "GET", path, b"").status, 404, "{path}");
    }
    for route in ROUTES {
        let other = if route.method == "GET" { "POST" } else { "GET" };
        assert_eq!(ask(&studio, other, route.path, b"").status, 405, "{}", route.path);
        assert_eq!(ask(&studio, "DELETE", route.path, b"").status, 405, "{}", route.path);
    }
}

#[test]
fn the_page_is_small() {
    let bytes = openwork_studio::page_bytes();
    assert!(bytes <= 400_000, "{bytes} bytes");
}

#[test]
fn bodies_that_are_not_requests_are_refused() {
    let studio = studio();
    for route in ROUTES.iter().filter(|route| route.method == "POST") {
        for body in ["", "null", "[]", "{", "\"text\"", "{\"spec\": 1}", "{\"unknown\": {}}"] {
            let response = ask(&studio, "POST", route.path, body.as_bytes());
            assert_eq!(response.status, 400, "{} {body}", route.path);
            assert!(value(&response)["error"].is_string(), "{} {body}", route.path);
        }
        let plain = studio.answer(&Request {
            method: "POST",
            path: route.path,
            host: Some(HOST),
            content_type: Some("text/plain"),
            body: b"{}",
            ..Request::default()
        });
        assert_eq!(plain.status, 415, "another site's form cannot post: {}", route.path);
        let huge = vec![b' '; (1 << 18) + 1];
        assert_eq!(ask(&studio, "POST", route.path, &huge).status, 413, "{}", route.path);
    }
}

/// Specs and shapes that ask for much are answered at once, by an error or by a small answer.
#[test]
fn hostile_designs_are_answered() {
    let studio = studio();
    let long = format!("2:4 # {}", "x".repeat(60_000));
    let deep = format!("in {}(0,0)+(1,1){} keep 1", "~(".repeat(40), ")".repeat(40));
    for (text, shapes) in [
        (long.as_str(), vec!["8,16"]),
        (deep.as_str(), vec!["8,16"]),
        ("2:4", vec!["99999999,99999999"]),
        ("2:4", vec!["18446744073709551615,18446744073709551615"]),
        ("2:4", vec!["0,4"]),
        ("2:4 pad (1,1000000000)", vec!["4,4"]),
        ("pad (1,1048576) view m k -> k m scope (3,1) keep 1", vec!["3,3"]),
        ("keep 9223372036854775807*2", vec!["4,4"]),
        ("scope (1,4) keep 2", vec![""]),
        ("", vec!["4,4"]),
        ("2:4", vec![]),
        ("blocks a: & b: keep 1", vec!["a=4,4"]),
    ] {
        let response =
            ask(&studio, "POST", "/api/show", spec(text, &shapes).to_string().as_bytes());
        assert_eq!(response.status, 200, "{text}");
        assert!(response.body.len() < 1 << 20, "{text}: {} bytes", response.body.len());
    }
    let many: Vec<String> = (0..1000).map(|i| format!("t{i}=4,4")).collect();
    let body = json!({"spec": "2:4", "shapes": many, "seed": 1}).to_string();
    assert_eq!(ask(&studio, "POST", "/api/show", body.as_bytes()).status, 200);
    for tile in [
        json!({"rows": 100_000, "cols": 100_000, "step": 1}),
        json!({"rows": 16, "cols": 16, "step": 0}),
        json!({"rows": 16, "cols": 16, "step": 2, "numbers": true}),
        json!({"panel": 7}),
    ] {
        let plain = json!({"panel": 0, "row": 0, "col": 0, "rows": 4, "cols": 4, "step": 1, "numbers": false, "mask": true});
        let body = with(with(spec("2:4", &["8,16"]), &plain), &tile).to_string();
        let status = ask(&studio, "POST", "/api/tile", body.as_bytes()).status;
        assert!([400, 404].contains(&status), "{tile}: {status}");
    }
    let far = json!({"panel": 0, "row": usize::MAX, "col": usize::MAX, "rows": 4, "cols": 4, "step": usize::MAX, "numbers": false, "mask": true});
    let body = with(spec("2:4", &["8,16"]), &far).to_string();
    assert_eq!(ask(&studio, "POST", "/api/tile", body.as_bytes()).body.len(), 32);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    /// Whatever the bytes of a request, there is an answer that is not a failure of the server.
    #[test]
    fn any_request_is_answered(
        route in 0..ROUTES.len(),
        method in "GET|POST|PUT|[A-Z]{0,8}",
        query in "[a-z=&%0-9./]{0,20}",
        body in proptest::prop_oneof![
            proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            "\\{\"spec\":\"[ -~]{0,30}\",\"shapes\":\\[\"[0-9,x=a]{0,8}\"\\]\\}".prop_map(String::into_bytes),
            "\\{\"spec\":\"2:4\",\"shapes\":\\[\"[48],[48]\"\\],\"panel\":[0-2],\"row\":[0-9]{1,20},\"col\":[0-9]{1,3},\"rows\":[0-9]{1,4},\"cols\":[0-9]{1,4},\"step\":[0-9]{1,3},\"numbers\":(true|false),\"mask\":true\\}".prop_map(String::into_bytes),
        ],
    ) {
        static STUDIO: std::sync::OnceLock<Studio> = std::sync::OnceLock::new();
        let studio = STUDIO.get_or_init(studio);
        let path = ROUTES[route].path;
        let target = format!("{path}?{query}");
        let response = ask(studio, &method, &target, &body);
        proptest::prop_assert!((200..500).contains(&response.status), "{}", response.status);
    }
}

#[path = "../../../fuzz/src/studio.rs"]
mod fuzz_target;

/// The fuzz target on its seeds, and on mutations of them.
#[test]
fn mutated_requests_are_answered() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for seed in fuzz_target::SEEDS {
        fuzz_target::studio_request(seed.as_bytes());
        for _ in 0..60 {
            let mut bytes = seed.as_bytes().to_vec();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = b' ' + random(95) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"0{}[]\",:x"[random(9)]),
                }
            }
            fuzz_target::studio_request(&bytes);
        }
    }
}
