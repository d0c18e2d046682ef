//! Requests to the Hub: what a repository holds, and the contents of files.
//!
//! The token goes to the Hub's own address only. Redirects are followed here, not by the
//! HTTP library, so that a request to any other host is built without it.

use super::error::HubError;
use super::name::{HubName, RepoKind, is_safe_path};
use super::{Download, OnDownload};
use serde_json::Value;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;
use ureq::http::HeaderMap;
use ureq::{Agent, Body};

/// The Hub's address, if `HF_ENDPOINT` does not give another.
const ENDPOINT: &str = "https://huggingface.co";
/// Attempts of a request that fails for the moment.
const ATTEMPTS: usize = 5;
/// Most redirects of a request.
const REDIRECTS: usize = 8;
/// Most bytes of the description of a repository.
const MAX_INFO: u64 = 1 << 26;
/// Time to connect, and to wait for the first byte of an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes read at a time.
const BUFFER: usize = 1 << 18;

/// A secret; it is never printed.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// A token, if a header can carry it.
    pub fn new(text: &str) -> Result<Self, HubError> {
        Self::from_source(text, "HF_TOKEN")
    }

    fn from_source(text: &str, source: &str) -> Result<Self, HubError> {
        let text = text.trim();
        match text.chars().all(|c| c.is_ascii_graphic()) {
            true => Ok(Self(text.to_string())),
            false => Err(HubError::TokenText(source.to_string())),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The Hub's address in the environment.
pub(super) fn endpoint() -> String {
    std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty()).unwrap_or(ENDPOINT.into())
}

/// The token of the environment, or of the file that `hf auth login` writes.
pub(super) fn token(home: &Path) -> Result<Option<Token>, HubError> {
    if super::cache::is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return Ok(None);
    }
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Ok(text) = std::env::var(name)
            && !text.trim().is_empty()
        {
            return Token::from_source(&text, name).map(Some);
        }
    }
    let file = std::env::var_os("HF_TOKEN_PATH").map_or_else(|| home.join("token"), Into::into);
    match crate::disk::read(&file, 1 << 16) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim();
            let source = file.display().to_string();
            (!text.is_empty()).then(|| Token::from_source(text, &source)).transpose()
        }
        // A file that cannot be read is no token; public repositories need none.
        Err(_) => Ok(None),
    }
}

/// What a repository holds at a revision.
#[derive(Clone, Debug)]
pub(super) struct RepoInfo {
    /// The commit.
    pub commit: String,
    /// Its files.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    /// Its path, safe to append to a folder.
    pub path: String,
    /// Its size, if known.
    pub size: Option<u64>,
    /// The name of its blob in the cache, which is its hash, if known.
    pub hash: Option<String>,
}

/// A file with all that is needed to store it.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub path: String,
    pub url: String,
    pub size: u64,
    pub hash: String,
}

impl RepoInfo {
    /// A file by its path.
    pub fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// A connection to the Hub.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Without a slash at the end.
    endpoint: String,
    token: Option<Token>,
    /// Before the second attempt of a request; doubled before each further one.
    pub pause: Duration,
}

/// An answer, and the headers of the answers that led to it.
struct Answer {
    status: u16,
    headers: Vec<HeaderMap>,
    body: Body,
    /// Whether the Hub itself gave it, rather than another host that it redirects to.
    from_hub: bool,
}

impl Answer {
    /// A header of the first answer that has it.
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|headers| headers.get(name)?.to_str().ok())
    }

    /// A header of the last answer.
    fn last_header(&self, name: &str) -> Option<&str> {
        self.headers.last()?.get(name)?.to_str().ok()
    }
}

impl Client {
    /// A client of the Hub at an address.
    pub fn new(endpoint: String, token: Option<Token>) -> Result<Self, HubError> {
        let endpoint = endpoint.trim_end_matches('/').to_string();
        if origin(&endpoint).is_none() {
            return Err(HubError::Name {
                name: format!("HF_ENDPOINT={endpoint}"),
                why: "give an address that begins with https://".to_string(),
            });
        }
        let config = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .user_agent(concat!("openwork/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self { agent: config.into(), endpoint, token, pause: Duration::from_millis(500) })
    }

    /// What a repository holds.
    pub fn info(&self, name: &HubName) -> Result<RepoInfo, HubError> {
        let (kind, repo) = (name.kind.plural(), name.repo());
        let revision = encoded(&name.revision, "");
        let url = format!("{}/api/{kind}/{repo}/revision/{revision}?blobs=true", self.endpoint);
        let answer = self.patiently(|| self.request("GET", &url, None))?;
        self.check_status(&answer, name, &url)?;
        let wrong = |why: String| HubError::Reply { url: url.clone(), why };
        let mut bytes = Vec::new();
        let mut body = answer.body.into_reader().take(MAX_INFO + 1);
        body.read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
        if bytes.len() as u64 > MAX_INFO {
            return Err(wrong(format!("it exceeds the limit of {MAX_INFO} bytes")));
        }
        let json: Value =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let commit = json["sha"].as_str().filter(|sha| is_hex(sha, 7..=64));
        let commit = commit.ok_or_else(|| wrong("it names no commit".to_string()))?.to_string();
        let listed = json["siblings"].as_array();
        let listed = listed.ok_or_else(|| wrong("it lists no files".to_string()))?;
        let file = |entry: &Value| {
            let path = entry["rfilename"].as_str().filter(|path| is_safe_path(path))?;
            let lfs = &entry["lfs"];
            let size = lfs["size"].as_u64().or(entry["size"].as_u64());
            let hash = lfs["sha256"].as_str().or(entry["blobId"].as_str());
            let hash = hash.filter(|hash| is_hex(hash, 40..=64)).map(str::to_lowercase);
            Some(RemoteFile { path: path.to_string(), size, hash })
        };
        // A path that could leave the folder is as good as absent.
        Ok(RepoInfo { commit, files: listed.iter().filter_map(file).collect() })
    }

    /// The address, size and hash of a file; the Hub is asked if they are not known.
    pub fn locate(
        &self,
        name: &HubName,
        commit: &str,
        file: &RemoteFile,
    ) -> Result<Located, HubError> {
        let prefix = name.kind.prefix();
        let (repo, path) = (name.repo(), encoded(&file.path, "/"));
        let url = format!("{}/{prefix}{repo}/resolve/{commit}/{path}", self.endpoint);
        if let (Some(size), Some(hash)) = (file.size, file.hash.clone()) {
            return Ok(Located { path: file.path.clone(), url, size, hash });
        }
        let answer = self.patiently(|| self.request("HEAD", &url, None))?;
        self.check_status(&answer, name, &url)?;
        let number = |text: &str| text.parse::<u64>().ok();
        let size = answer.header("x-linked-size").and_then(number);
        let size = size.or_else(|| answer.last_header("content-length").and_then(number));
        let size = file.size.or(size).ok_or_else(|| HubError::Reply {
            url: url.clone(),
            why: "it does not say how large the file is".to_string(),
        })?;
        let tag = answer.header("x-linked-etag").or(answer.last_header("etag"));
        let tag = tag.map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_lowercase());
        // Without a hash only the size can be checked; the blob needs a name all the same.
        let hash = file.hash.clone().or(tag.filter(|tag| is_hex(tag, 40..=64)));
        let hash = hash
            .unwrap_or_else(|| format!("size-{size}-{commit}-{}", file.path.replace('/', "--")));
        Ok(Located { path: file.path.clone(), url, size, hash })
    }

    /// Downloads a file to `partial`, which may have a part of it already; on return it
    /// has the right size.
    pub fn download(
        &self,
        name: &HubName,
        file: &Located,
        partial: &Path,
        on_download: OnDownload<'_>,
    ) -> Result<(), HubError> {
        let io = |error| HubError::Io { path: partial.to_path_buf(), error };
        let mut report =
            |done| match on_download(Download { file: &file.path, done, total: file.size }) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(HubError::Stopped),
            };
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            self.wait(attempt);
            let mut out = OpenOptions::new().create(true).append(true).open(partial).map_err(io)?;
            let mut done = out.metadata().map_err(io)?.len();
            if done > file.size {
                out.set_len(0).map_err(io)?;
                done = 0;
            }
            report(done)?;
            if done == file.size {
                return out.sync_all().map_err(io);
            }
            let answer = match self.request("GET", &file.url, Some(done)) {
                Ok(answer) => answer,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            match answer.status {
                206 if starts_at(answer.last_header("content-range"), done) => {}
                200 => {
                    out.set_len(0).map_err(io)?;
                    done = 0;
                }
                // The part that is there is not a part of this file.
                206 | 416 => {
                    out.set_len(0).map_err(io)?;
                    continue;
                }
                status if is_passing(status) => {
                    last = Some(HubError::Status { url: file.url.clone(), status });
                    continue;
                }
                // The Hub describes gated repositories to everyone and refuses their files.
                status => {
                    if answer.from_hub {
                        self.check_status(&answer, name, &file.url)?;
                    }
                    return Err(HubError::Status { url: file.url.clone(), status });
                }
            }
            // One byte more than expected shows that the file is too long.
            let mut body = answer.body.into_reader().take(file.size - done + 1);
            let mut buffer = vec![0; BUFFER];
            loop {
                let count = match body.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => count,
                };
                done += count as u64;
                if done > file.size {
                    out.set_len(0).map_err(io)?;
                    return Err(HubError::Reply {
                        url: file.url.clone(),
                        why: format!("it is longer than the {} bytes it should have", file.size),
                    });
                }
                out.write_all(&buffer[..count]).map_err(io)?;
                report(done)?;
            }
            if done == file.size {
                return out.sync_all().map_err(io);
            }
            last = None;
        }
        let found = std::fs::metadata(partial).map_or(0, |found| found.len());
        let (url, size, attempts) = (file.url.clone(), file.size, ATTEMPTS);
        Err(last.unwrap_or(HubError::Truncated { url, found, size, attempts }))
    }

    /// Pauses before a further attempt.
    fn wait(&self, attempt: usize) {
        if attempt > 0 {
            std::thread::sleep(self.pause * (1 << (attempt - 1)));
        }
    }

    /// Repeats a request whose answer says that the server fails for the moment.
    fn patiently(
        &self,
        request: impl Fn() -> Result<Answer, HubError>,
    ) -> Result<Answer, HubError> {
        for attempt in 0.. {
            self.wait(attempt);
            let answer = request()?;
            if !is_passing(answer.status) || attempt + 1 == ATTEMPTS {
                return Ok(answer);
            }
        }
        unreachable!("the loop returns")
    }

    /// Sends a request and follows redirects; a `HEAD` stops at the answer that names the
    /// file's hash.
    fn request(&self, method: &str, url: &str, from: Option<u64>) -> Result<Answer, HubError> {
        let (mut url, mut headers) = (url.to_string(), Vec::new());
        for _ in 0..=REDIRECTS {
            let reply = |why: &str| HubError::Reply { url: url.clone(), why: why.to_string() };
            let mut request = match method {
                "HEAD" => self.agent.head(&url),
                _ => self.agent.get(&url),
            };
            // Sizes are those of the files, not of compressed ones.
            request = request.header("Accept-Encoding", "identity");
            if let Some(from) = from.filter(|&from| from > 0) {
                request = request.header("Range", format!("bytes={from}-"));
            }
            if let Some(Token(token)) = &self.token
                && origin(&url) == origin(&self.endpoint)
            {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| HubError::Connect {
                endpoint: origin(&url).unwrap_or_default(),
                why: error.to_string(),
            })?;
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            let location = parts.headers.get("location").and_then(|text| text.to_str().ok());
            let location = location.map(String::from);
            let has_hash = parts.headers.contains_key("x-linked-etag");
            headers.push(parts.headers);
            if !matches!(status, 301 | 302 | 303 | 307 | 308) || (method == "HEAD" && has_hash) {
                let from_hub = origin(&url) == origin(&self.endpoint);
                return Ok(Answer { status, headers, body, from_hub });
            }
            let location = location.ok_or_else(|| reply("it redirects to nowhere"))?;
            let next =
                joined(&url, &location).ok_or_else(|| reply("it redirects to no address"))?;
            if url.starts_with("https://") && !next.starts_with("https://") {
                return Err(reply("it redirects from https to an address without encryption"));
            }
            url = next;
        }
        Err(HubError::Reply { url, why: format!("it redirects more than {REDIRECTS} times") })
    }

    /// Refuses an answer that is not a success, in words.
    fn check_status(&self, answer: &Answer, name: &HubName, url: &str) -> Result<(), HubError> {
        let endpoint = self.endpoint.clone();
        let (repo, with_token) = (name.repo(), self.token.is_some());
        let page = format!("{endpoint}/{}{repo}", name.kind.prefix());
        let code = answer.header("x-error-code").unwrap_or_default();
        let message = answer.header("x-error-message").unwrap_or_default().to_lowercase();
        Err(match (answer.status, code) {
            (200..=399, _) => return Ok(()),
            (_, "GatedRepo") | (403, _) => HubError::Gated { name: repo, page, with_token },
            (404, "RevisionNotFound") => {
                HubError::NoRevision { name: repo, revision: name.revision.clone() }
            }
            (404, "EntryNotFound") => HubError::NoFile {
                name: repo,
                file: url.rsplit('/').next().unwrap_or_default().to_string(),
                revision: name.revision.clone(),
                similar: Vec::new(),
            },
            (401, _) if with_token && message.contains("invalid") => {
                HubError::BadToken { endpoint }
            }
            (401 | 404, _) => {
                let kind = if name.kind == RepoKind::Model { "model" } else { "dataset" };
                HubError::NotFound { name: name.to_string(), kind, endpoint, with_token }
            }
            (status, _) => HubError::Status { url: url.to_string(), status },
        })
    }
}

/// Whether a failure may pass by itself.
fn is_passing(status: u16) -> bool {
    status == 429 || (500..600).contains(&status)
}

/// Whether `bytes 5-9/10` starts at a position.
fn starts_at(range: Option<&str>, at: u64) -> bool {
    let first = range.and_then(|text| text.strip_prefix("bytes ")?.split('-').next());
    first.and_then(|first| first.parse::<u64>().ok()) == Some(at)
}

/// Whether a text is hexadecimal, of such a length.
fn is_hex(text: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// Scheme, host and port of an address; `None` if it is not one of HTTP.
fn origin(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    // An address with a user name could hide its host.
    let plain = !host.is_empty() && !host.contains('@');
    let scheme = scheme.to_ascii_lowercase();
    (plain && ["http", "https"].contains(&scheme.as_str()))
        .then(|| format!("{scheme}://{}", host.to_ascii_lowercase()))
}

/// The address that a redirect leads to.
fn joined(from: &str, location: &str) -> Option<String> {
    let start = origin(from)?;
    let next = if location.contains("://") {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{}//{rest}", start.split("//").next()?)
    } else if location.starts_with('/') {
        format!("{start}{location}")
    } else {
        let path = from.split(['?', '#']).next()?;
        format!("{}/{location}", path.rsplit_once('/')?.0)
    };
    origin(&next).map(|_| next)
}

/// A text as part of an address; the characters of `kept` are left as they are.
fn encoded(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        match c.is_ascii_alphanumeric() || "-_.~".contains(c) || kept.contains(c) {
            true => out.push(c),
            false => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_the_standard_says() {
        let from = "https://hub.co/a/b?x=1";
        for (location, want) in [
            ("https://cdn.net/f", Some("https://cdn.net/f")),
            ("//cdn.net/f", Some("https://cdn.net/f")),
            ("/c", Some("https://hub.co/c")),
            ("c", Some("https://hub.co/a/c")),
            ("ftp://cdn.net/f", None),
            ("https://hub.co@cdn.net/f", None),
        ] {
            assert_eq!(joined(from, location).as_deref(), want, "{location}");
        }
    }

    #[test]
    fn origins_tell_hosts_and_ports_apart() {
        let same = |a: &str, b: &str| origin(a) == origin(b);
        assert!(same("https://hub.co/a", "HTTPS://HUB.CO/b"));
        assert!(!same("https://hub.co/a", "https://hub.co:8443/a"));
        assert!(!same("https://hub.co/a", "http://hub.co/a"));
        assert!(!same("https://hub.co/a", "https://hub.co.evil.net/a"));
        assert_eq!(origin("file:///etc/passwd"), None);
    }

    #[test]
    fn a_token_is_not_printed() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_eq!(token.0, "hf_secret");
        let error = Token::new("hf_sec\nret").unwrap_err().to_string();
        assert!(error.starts_with("HF_TOKEN: ") && !error.contains("sec"), "{error}");
    }
}
