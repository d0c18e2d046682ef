//! Models and texts by name, against a server on loopback that speaks the Hub's routes.
#![cfg(feature = "hub")]

#[path = "../../../testdata/hub_server.rs"]
mod hub_server;

use hub_server::{COMMIT, Server, hash};
use openwork_llm::Checkpoint;
use openwork_llm::hub::{Download, Hub, HubError, HubName};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MODEL: &str = "models/org/tiny";

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama")
}

/// A server with a model, and files that no model needs.
fn server() -> Server {
    let server = Server::start();
    server.add_folder(MODEL, &tiny());
    server.add(MODEL, "README.md", b"a model");
    server.add(MODEL, "pytorch_model.bin", &[0; 1000]);
    server.add(MODEL, "onnx/model.onnx", &[0; 1000]);
    server
}

fn hub(server: &Server, cache: &Path, token: Option<&str>) -> Hub {
    Hub::new(&server.endpoint, cache, token).expect("a hub").retry_after(Duration::from_millis(1))
}

fn name(text: &str) -> HubName {
    let dataset = HubName::dataset(text).expect("a name");
    dataset.or_else(|| HubName::model(text).expect("a name")).expect("a name")
}

fn fetch(hub: &Hub, text: &str) -> Result<PathBuf, String> {
    let found = hub.fetch(&name(text), &mut |_| ControlFlow::Continue(()));
    found.map(|found| found.path).map_err(|error| error.to_string())
}

fn weights() -> Vec<u8> {
    std::fs::read(tiny().join("model.safetensors")).expect("weights")
}

#[test]
fn a_model_is_downloaded_once_and_only_what_it_needs() {
    let (server, cache) = (server(), tempfile::tempdir().expect("a folder"));
    let hub = hub(&server, cache.path(), None);
    let mut seen = Vec::new();
    let found = hub.fetch(&name("org/tiny"), &mut |Download { file, done, total }| {
        seen.push((file.to_string(), done, total));
        ControlFlow::Continue(())
    });
    let path = found.expect("a model").path;
    assert_eq!(path, cache.path().join("models--org--tiny/snapshots").join(COMMIT));
    let model = Checkpoint::open(&path).expect("a checkpoint");
    assert_eq!(model.name(), "org/tiny");
    model.tokenizer().expect("a tokenizer");
    assert!(!path.join("README.md").exists() && !path.join("pytorch_model.bin").exists());
    let size = weights().len() as u64;
    assert!(seen.contains(&("model.safetensors".to_string(), size, size)));

    // The layout of huggingface_hub: contents by hash, links, the commit of the branch.
    let repo = cache.path().join("models--org--tiny");
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).expect("a ref"), COMMIT);
    for file in ["config.json", "model.safetensors"] {
        let contents = std::fs::read(tiny().join(file)).expect("a file");
        let blob = repo.join("blobs").join(hash(file, &contents));
        assert_eq!(std::fs::read(&blob).expect("a blob"), contents);
        #[cfg(unix)]
        assert_eq!(path.join(file).canonicalize().unwrap(), blob.canonicalize().unwrap());
    }

    // Again: the list of files is asked for, but no file.
    server.requests();
    assert_eq!(fetch(&hub, "org/tiny").unwrap(), path);
    let (asked, large) = server.requests();
    assert_eq!((asked.len(), large.len()), (1, 0));
    // The commit by its name, and offline.
    assert_eq!(fetch(&hub, &format!("org/tiny@{COMMIT}")).unwrap(), path);
    server.requests();
    let hub = hub.offline();
    assert_eq!(fetch(&hub, "org/tiny").unwrap(), path);
    assert_eq!(server.requests().0.len(), 0);
    let refused = fetch(&hub, "org/other").unwrap_err();
    assert!(refused.starts_with("org/other: no such file or folder, and not in the cache"));
    assert!(refused.ends_with("run once without --offline to download it"), "{refused}");
}

#[test]
fn shards_gguf_files_and_texts_are_found_by_name() {
    let (server, cache) = (Server::start(), tempfile::tempdir().expect("a folder"));
    let hub = hub(&server, cache.path(), None);
    for file in ["config.json", "tokenizer.json"] {
        server.add("models/o/s", file, &std::fs::read(tiny().join(file)).expect("a file"));
    }
    let index = json!({"weight_map": {"a": "model-1.safetensors", "b": "sub/model-2.safetensors"}});
    server.add("models/o/s", "model.safetensors.index.json", index.to_string().as_bytes());
    server.add("models/o/s", "model-1.safetensors", b"one");
    server.add("models/o/s", "sub/model-2.safetensors", b"two");
    let path = fetch(&hub, "o/s").unwrap();
    assert_eq!(std::fs::read(path.join("sub/model-2.safetensors")).unwrap(), b"two");
    assert_eq!(fetch(&hub.offline(), "o/s").unwrap(), path);

    let hub = self::hub(&server, cache.path(), None);
    let gguf = tiny().join("../../gguf/qwen2.gguf");
    server.add("models/o/g", "README.md", b"");
    server.add("models/o/g", "q4/tiny.gguf", &std::fs::read(gguf).expect("a file"));
    let path = fetch(&hub, "o/g/q4/tiny.gguf").unwrap();
    assert!(Checkpoint::open(&path).is_ok());
    assert_eq!(
        fetch(&hub, "o/g").unwrap_err(),
        "o/g has GGUF files and no safetensors; name one of q4/tiny.gguf: \
         o/g/q4/tiny.gguf"
    );
    assert_eq!(
        fetch(&hub, "o/g/q8.gguf").unwrap_err(),
        "o/g has no file q8.gguf at revision main; it has q4/tiny.gguf"
    );

    server.add("datasets/o/texts", "data/a.jsonl", b"{\"text\": \"hello\"}\n");
    let path = fetch(&hub, "datasets:o/texts/data/a.jsonl").unwrap();
    assert!(path.ends_with(format!("datasets--o--texts/snapshots/{COMMIT}/data/a.jsonl")));
    assert_eq!(openwork_llm::tokens::read_text(&path).unwrap(), ["hello"]);
}

#[test]
fn the_token_goes_to_the_hub_alone_and_is_never_told() {
    const SECRET: &str = "hf_verysecret";
    let (server, cache) = (server(), tempfile::tempdir().expect("a folder"));
    server.set(|state| state.token = Some(SECRET.to_string()));
    let without = fetch(&hub(&server, cache.path(), None), "org/tiny").unwrap_err();
    assert!(without.contains("has no such model or it is private"), "{without}");
    assert!(without.ends_with("for a private one, set HF_TOKEN"), "{without}");
    let wrong = fetch(&hub(&server, cache.path(), Some("hf_wrong")), "org/tiny").unwrap_err();
    assert!(!wrong.contains("hf_wrong") && wrong.contains("token has access"), "{wrong}");

    server.requests();
    let hub = hub(&server, cache.path(), Some(SECRET));
    fetch(&hub, "org/tiny").unwrap();
    let (to_hub, to_cdn) = server.requests();
    assert!(to_hub.iter().all(|request| request.header("authorization").is_some()));
    assert!(!to_cdn.is_empty());
    for request in to_cdn {
        assert!(!format!("{request:?}").contains(SECRET), "{request:?}");
    }
    assert!(!format!("{hub:?}").contains(SECRET));
    for entry in walk(cache.path()) {
        let bytes = std::fs::read(&entry).expect("a file");
        let found = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        assert!(!found, "{}", entry.display());
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => walk(&path),
            path => vec![path],
        })
        .collect()
}

/// The partial file of the weights.
fn partial(cache: &Path) -> PathBuf {
    let blobs = cache.join("models--org--tiny/blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    blobs.join(format!("{}.incomplete", hash("model.safetensors", &weights())))
}

#[test]
fn downloads_continue_where_they_ended() {
    let weights = weights();
    // What is there of the file, and whether the server knows ranges.
    let wrong = vec![7; 100];
    let longer = [&weights[..], b"x"].concat();
    let parts: [(&[u8], bool); 5] = [
        (&weights[..100], false),
        (&weights[..100], true),
        (&weights, false),
        (&wrong, false),
        (&longer, false),
    ];
    for (part, ignores_ranges) in parts {
        let (server, cache) = (server(), tempfile::tempdir().expect("a folder"));
        server.set(|state| state.ignores_ranges = ignores_ranges);
        std::fs::write(partial(cache.path()), part).expect("a file");
        let path = fetch(&hub(&server, cache.path(), None), "org/tiny").unwrap();
        assert_eq!(std::fs::read(path.join("model.safetensors")).unwrap(), weights);
        assert!(!partial(cache.path()).exists());
        let ranges: Vec<_> =
            server.requests().1.iter().map(|r| r.header("range").map(String::from)).collect();
        if part.len() == 100 {
            assert_eq!(ranges[0].as_deref(), Some("bytes=100-"));
        }
        // A wrong part is noticed by its hash; then all of it is sent again.
        assert_eq!(ranges.len(), if part == wrong { 2 } else { usize::from(part != weights) });
    }
}

#[test]
fn broken_connections_and_busy_servers_are_tried_again() {
    let weights = weights();
    let (server, cache) = (Server::start(), tempfile::tempdir().expect("a folder"));
    let hub = hub(&server, cache.path(), None);
    let gguf = std::fs::read(tiny().join("../../gguf/qwen2.gguf")).expect("a file");
    server.add("models/o/g", "a.gguf", &gguf);
    server.set(|state| state.cuts = vec![700, 300, 500]);
    let path = fetch(&hub, "o/g/a.gguf").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), gguf);
    let ranges: Vec<_> =
        server.requests().1.iter().map(|r| r.header("range").map(String::from)).collect();
    let want = [None, Some("bytes=500-"), Some("bytes=800-"), Some("bytes=1500-")];
    assert_eq!(ranges, want.map(|range| range.map(String::from)));

    // Too often: what arrived is kept, and the next call continues.
    server.add("models/o/g", "b.gguf", &weights);
    server.set(|state| state.cuts = vec![10; 5]);
    let error = fetch(&hub, "o/g/b.gguf").unwrap_err();
    assert!(error.contains(&format!("50 of {} bytes arrived", weights.len())), "{error}");
    assert!(error.ends_with("run the command again to continue"), "{error}");
    fetch(&hub, "o/g/b.gguf").unwrap();

    server.add("models/o/g", "c.gguf", b"contents");
    server.set(|state| state.failures = vec![503, 500, 429]);
    fetch(&hub, "o/g/c.gguf").unwrap();
    server.add("models/o/g", "d.gguf", b"more");
    server.set(|state| state.failures = vec![503; 30]);
    let error = fetch(&hub, "o/g/d.gguf").unwrap_err();
    assert!(error.ends_with("the server answered 503; try again later"), "{error}");

    // A caller can stop.
    server.set(|state| state.failures.clear());
    let stopped = hub.fetch(&name("o/g/d.gguf"), &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(HubError::Stopped)));
}

#[test]
fn contents_that_are_not_what_was_announced_are_refused() {
    for names_only in [false, true] {
        let (server, cache) = (server(), tempfile::tempdir().expect("a folder"));
        let hub = hub(&server, cache.path(), None);
        server.set(|state| state.lists_names_only = names_only);
        server.set(|state| state.changes_contents = true);
        let error = fetch(&hub, "org/tiny").unwrap_err();
        assert!(error.contains("git hash of the contents is"), "{error}");
        assert!(error.ends_with("it was removed"), "{error}");
        let left: Vec<_> = walk(&cache.path().join("models--org--tiny"));
        assert!(left.is_empty(), "{left:?}");
        server.set(|state| state.changes_contents = false);
        fetch(&hub, "org/tiny").unwrap();
    }
    // Longer than announced.
    let (server, cache) = (server(), tempfile::tempdir().expect("a folder"));
    server.set(|state| state.understates_sizes = true);
    let error = fetch(&hub(&server, cache.path(), None), "org/tiny").unwrap_err();
    assert!(error.contains("it is longer than the"), "{error}");
}

#[test]
fn repositories_that_cannot_be_used_say_why() {
    let cache = tempfile::tempdir().expect("a folder");
    let server = Server::start();
    let hub = hub(&server, cache.path(), None);
    server.add("models/o/pickled", "config.json", b"{}");
    server.add("models/o/pickled", "pytorch_model.bin", b"x");
    server.add("models/o/empty", "README.md", b"x");
    let error = |text: &str| fetch(&hub, text).unwrap_err();
    assert_eq!(
        error("o/pickled"),
        "o/pickled has only pickled weights (pytorch_model.bin), which can run code when \
         they are loaded; use a repository with safetensors, or convert it"
    );
    assert!(error("o/empty").starts_with("o/empty has no model.safetensors and no config.json"));
    assert!(error("o/none").starts_with("o/none: no such file or folder, and http://127.0.0.1"));
    assert_eq!(
        error("o/empty@v9"),
        "o/empty has no revision v9; give a branch, tag or commit after @"
    );
    server.set(|state| state.error_code = Some("GatedRepo"));
    let gated = error("o/pickled");
    assert!(gated.starts_with("o/pickled is gated: accept its terms at http://"), "{gated}");
    assert!(gated.ends_with(", then set HF_TOKEN"), "{gated}");
    server.set(|state| state.error_code = None);
    server.add("models/o/gated", "config.json", b"{}");
    server.add("models/o/gated", "model.safetensors", b"x");
    server.add("datasets/o/gated", "a.jsonl", b"x");
    server.set(|state| state.gates_files = true);
    for names_only in [false, true] {
        server.set(|state| state.lists_names_only = names_only);
        let page = format!("o/gated is gated: accept its terms at {}/", server.endpoint);
        assert_eq!(error("o/gated"), format!("{page}o/gated, then set HF_TOKEN"));
        let dataset = error("datasets:o/gated/a.jsonl");
        assert_eq!(dataset, format!("{page}datasets/o/gated, then set HF_TOKEN"));
        let known = Hub::new(&server.endpoint, cache.path(), Some("hf_x")).expect("a hub");
        let refused = fetch(&known, "o/gated").unwrap_err();
        assert_eq!(refused, format!("{page}o/gated with the account of your token"));
    }
    let nowhere = Hub::new("http://127.0.0.1:1", cache.path(), None).expect("a hub");
    let error = fetch(&nowhere, "o/x").unwrap_err();
    let start = "o/x: no such file or folder, and http://127.0.0.1:1 cannot be reached: ";
    assert!(error.starts_with(start), "{error}");
    assert!(Hub::new("ftp://x", cache.path(), None).unwrap_err().to_string().contains("https://"));
}

#[test]
fn a_hostile_server_writes_nothing_outside_the_cache() {
    let cache = tempfile::tempdir().expect("a folder");
    let inner = cache.path().join("a/b/c");
    let server = server();
    let hub = hub(&server, &inner, None);
    server.set(|state| {
        let path = |path: &str| json!({"rfilename": path, "size": 1, "blobId": "1".repeat(40)});
        state.extra = ["../../../../out", "/etc/out", "a\\b", "x/../y", ""].map(path).to_vec();
    });
    fetch(&hub, "org/tiny").unwrap();
    server.set(|state| state.commit = Some("../../../../out".to_string()));
    assert!(fetch(&hub, "org/tiny").unwrap_err().ends_with("it names no commit"));
    server.set(|state| {
        state.commit = None;
        let index = json!({"weight_map": {"a": "../../../../out"}}).to_string();
        let files = state.repos.get_mut(MODEL).unwrap();
        files.remove("model.safetensors");
        files.insert("model.safetensors.index.json".to_string(), index.into_bytes());
    });
    let refused = fetch(&hub, "org/tiny").unwrap_err();
    assert!(refused.contains("not an index of safetensors files"), "{refused}");
    let outside: Vec<_> =
        walk(cache.path()).into_iter().filter(|path| !path.starts_with(&inner)).collect();
    assert!(outside.is_empty(), "{outside:?}");
    // A size that no disk has.
    server.set(|state| {
        state.extra =
            vec![json!({"rfilename": "x.gguf", "size": u64::MAX / 2, "blobId": "1".repeat(40)})];
    });
    let refused = fetch(&hub, "org/tiny/x.gguf").unwrap_err();
    assert!(refused.contains("bytes are needed"), "{refused}");
}
