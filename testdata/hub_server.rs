//! A server on loopback that speaks the routes of the Hugging Face Hub, for tests: a hub,
//! and a second address that large files are redirected to.

#![allow(dead_code)] // each test program uses a part

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The commit of every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What the servers hold and how they misbehave.
#[derive(Default)]
pub struct State {
    /// `models/org/name` or `datasets/org/name` to files.
    pub repos: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Requests to the hub, and to the address of large files.
    pub hub_log: Vec<Request>,
    pub cdn_log: Vec<Request>,
    /// The only token that is accepted; without it repositories are hidden.
    pub token: Option<String>,
    /// Error code of every repository, such as `GatedRepo`.
    pub error_code: Option<&'static str>,
    /// Repositories are described to everyone, but their files are refused, as the Hub does
    /// for gated ones.
    pub gates_files: bool,
    /// Next answers of this status instead of the right ones.
    pub failures: Vec<u16>,
    /// Bodies of files that end early, and after how many bytes.
    pub cuts: Vec<usize>,
    /// Files are sent whole, whatever range is asked for.
    pub ignores_ranges: bool,
    /// The list of files says nothing about sizes and hashes.
    pub lists_names_only: bool,
    /// Files are sent with one byte changed.
    pub changes_contents: bool,
    /// Sizes are announced as one byte less.
    pub understates_sizes: bool,
    /// More entries of the list of files.
    pub extra: Vec<Value>,
    /// The commit that is announced.
    pub commit: Option<String>,
    cdn: String,
}

/// A running server; it ends with the test process.
#[derive(Clone)]
pub struct Server {
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let cdn = listen(Arc::clone(&state), cdn_answer);
        state.lock().unwrap().cdn = cdn;
        let endpoint = listen(Arc::clone(&state), hub_answer);
        Self { endpoint, state }
    }

    /// Changes what it holds or how it behaves.
    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Adds a file to a repository, such as `models/org/name`.
    pub fn add(&self, repo: &str, file: &str, contents: &[u8]) {
        self.set(|state| {
            let files = state.repos.entry(repo.to_string()).or_default();
            files.insert(file.to_string(), contents.to_vec());
        });
    }

    /// Adds all files of a folder.
    pub fn add_folder(&self, repo: &str, folder: &Path) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            if entry.path().is_file() {
                let name = entry.file_name().into_string().expect("a plain name");
                self.add(repo, &name, &std::fs::read(entry.path()).expect("a file"));
            }
        }
    }

    /// The requests so far, to the hub and to the address of large files; both lists are
    /// emptied.
    pub fn requests(&self) -> (Vec<Request>, Vec<Request>) {
        let mut state = self.state.lock().unwrap();
        (std::mem::take(&mut state.hub_log), std::mem::take(&mut state.cdn_log))
    }
}

/// An answer: status, headers, body, and after how many bytes the connection breaks.
type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>, Option<usize>);

/// Large files are those of safetensors and GGUF, as on the Hub.
fn is_large(file: &str) -> bool {
    file.ends_with(".safetensors") || file.ends_with(".gguf")
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash by which the Hub names a file.
pub fn hash(file: &str, contents: &[u8]) -> String {
    if is_large(file) {
        return hex(&Sha256::digest(contents));
    }
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", contents.len()));
    hasher.update(contents);
    hex(&hasher.finalize())
}

fn listen(state: Arc<Mutex<State>>, answer: fn(&mut State, &Request) -> Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            std::thread::spawn(move || serve(stream, &state, answer));
        }
    });
    address
}

fn serve(
    stream: TcpStream,
    state: &Mutex<State>,
    answer: fn(&mut State, &Request) -> Answer,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split_whitespace().map(String::from);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_lowercase(), value.trim().to_string());
            }
            None => break,
        }
    }
    let request = Request { method, path, headers };
    let (status, headers, body, cut) = answer(&mut state.lock().unwrap(), &request);
    let mut head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n");
    for (name, value) in &headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if request.method != "HEAD" {
        stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())]).ok()?;
    }
    stream.flush().ok()
}

fn error(status: u16, code: &str) -> Answer {
    (status, vec![("X-Error-Code", code.to_string())], b"{}".to_vec(), None)
}

fn hub_answer(state: &mut State, request: &Request) -> Answer {
    state.hub_log.push(request.clone());
    if let Some(status) = state.failures.pop() {
        return (status, Vec::new(), Vec::new(), None);
    }
    if let Some(code) = state.error_code {
        let status = if code == "RevisionNotFound" { 404 } else { 401 };
        return error(status, code);
    }
    let given = request.header("authorization");
    let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
    if wanted.is_some() && given != wanted.as_deref() {
        return error(401, "RepoNotFound");
    }
    let path = request.path.split('?').next().unwrap_or_default().trim_start_matches('/');
    if let Some(rest) = path.strip_prefix("api/") {
        let Some((repo, revision)) = rest.split_once("/revision/") else {
            return error(404, "");
        };
        let Some(files) = state.repos.get(repo) else { return error(401, "RepoNotFound") };
        if !["main", COMMIT].contains(&revision) {
            return error(404, "RevisionNotFound");
        }
        let entry = |(name, contents): (&String, &Vec<u8>)| {
            let (size, hash) = (contents.len(), hash(name, contents));
            let size = size - usize::from(state.understates_sizes);
            match (state.lists_names_only, is_large(name)) {
                (true, _) => json!({"rfilename": name}),
                (false, true) => json!({
                    "rfilename": name, "size": size, "blobId": "0".repeat(40),
                    "lfs": {"sha256": hash, "size": size, "pointerSize": 134},
                }),
                (false, false) => json!({"rfilename": name, "size": size, "blobId": hash}),
            }
        };
        let siblings: Vec<Value> =
            files.iter().map(entry).chain(state.extra.iter().cloned()).collect();
        let commit = state.commit.as_deref().unwrap_or(COMMIT);
        let body = json!({"sha": commit, "siblings": siblings}).to_string();
        return (200, Vec::new(), body.into_bytes(), None);
    }
    let path = match path.starts_with("datasets/") {
        true => path.to_string(),
        false => format!("models/{path}"),
    };
    let Some((repo, file)) = path.split_once(&format!("/resolve/{COMMIT}/")) else {
        return error(404, "EntryNotFound");
    };
    let Some(contents) = state.repos.get(repo).and_then(|files| files.get(file)) else {
        return error(404, "EntryNotFound");
    };
    if state.gates_files {
        return error(if given.is_some() { 403 } else { 401 }, "GatedRepo");
    }
    let tag = format!("\"{}\"", hash(file, contents));
    if is_large(file) {
        let headers = vec![
            ("Location", format!("{}/{repo}/{file}", state.cdn)),
            ("X-Linked-Etag", tag),
            ("X-Linked-Size", contents.len().to_string()),
            ("X-Repo-Commit", COMMIT.to_string()),
        ];
        return (302, headers, Vec::new(), None);
    }
    let contents = contents.clone();
    contents_of(state, request, contents, tag)
}

fn cdn_answer(state: &mut State, request: &Request) -> Answer {
    state.cdn_log.push(request.clone());
    let parts: Vec<&str> = request.path.trim_start_matches('/').splitn(4, '/').collect();
    let [kind, owner, name, file] = parts[..] else { return error(404, "") };
    let repo = state.repos.get(&format!("{kind}/{owner}/{name}"));
    let Some(contents) = repo.and_then(|files| files.get(file)).cloned() else {
        return error(404, "");
    };
    contents_of(state, request, contents, "\"cdn\"".to_string())
}

fn contents_of(state: &mut State, request: &Request, mut body: Vec<u8>, tag: String) -> Answer {
    if state.changes_contents
        && let Some(byte) = body.first_mut()
    {
        *byte ^= 1;
    }
    let mut headers = vec![("ETag", tag)];
    if request.method == "HEAD" {
        return (200, headers, body, None);
    }
    let cut = state.cuts.pop();
    let range = request.header("range").filter(|_| !state.ignores_ranges);
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    match from.and_then(|from| from.parse::<usize>().ok()) {
        Some(from) if from >= body.len() => (416, headers, Vec::new(), None),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
            headers.push(("Content-Range", range));
            (206, headers, body.split_off(from), cut)
        }
        None => (200, headers, body, cut),
    }
}
