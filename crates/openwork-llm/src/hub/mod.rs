//! The Hugging Face Hub: models and text files by name, from its cache or by download.
//!
//! Names are `org/name`, `org/name/file.gguf` and `datasets:org/name/file.jsonl`, each
//! optionally followed by `@revision`. The cache is that of the `huggingface_hub`
//! package, so neither downloads what the other has:
//!
//! ```text
//! HF_HOME/hub/models--org--name/refs/main                     the commit of a revision
//! HF_HOME/hub/models--org--name/snapshots/COMMIT/config.json  a link to its blob
//! HF_HOME/hub/models--org--name/blobs/HASH                    the contents of a file
//! ```
//!
//! The official crate, hf-hub 1.0, neither resumes a download nor checks hashes, and
//! brings an async runtime; this client is a few hundred lines over a blocking one.

mod cache;
mod client;
mod error;
mod name;

pub use error::HubError;
pub use name::{HubName, RepoKind};

use cache::Cache;
use client::{Client, RemoteFile, RepoInfo};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files that a model may have beside its weights.
const COMPANIONS: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Ends of the names of weights in pickles, which can run code when they are loaded.
const PICKLES: &[&str] = &[".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"];
/// Most GGUF files that an error lists.
const MOST_LISTED: usize = 6;

/// The progress of a download.
#[derive(Clone, Debug)]
pub struct Download<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes of it that are there.
    pub done: u64,
    /// Bytes of it in all.
    pub total: u64,
}

/// Receives the progress of downloads, and may stop them.
pub type OnDownload<'a> = &'a mut dyn FnMut(Download<'_>) -> ControlFlow<()>;

/// A way to the Hub and its cache.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    cache: Cache,
    offline: bool,
}

/// A file or folder in the cache, and what the user should know about it.
#[derive(Debug)]
pub struct CachedPath {
    /// Where it is.
    pub path: PathBuf,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Hub {
    /// The Hub of the environment: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH` and `HF_HUB_OFFLINE`, as the `huggingface_hub` package reads them.
    pub fn from_env(offline: bool) -> Result<Self, HubError> {
        let home = cache::home();
        let cache = Cache::new(cache::hub_folder(&home));
        let client = Client::new(client::endpoint(), client::token(&home)?)?;
        let offline = offline || cache::is_set("HF_HUB_OFFLINE");
        Ok(Self { client, cache, offline })
    }

    /// A Hub at an address, with a cache in a folder and a token, for tests.
    pub fn new(endpoint: &str, folder: &Path, token: Option<&str>) -> Result<Self, HubError> {
        let token = token.map(client::Token::new).transpose()?;
        let client = Client::new(endpoint.to_string(), token)?;
        Ok(Self { client, cache: Cache::new(folder.to_path_buf()), offline: false })
    }

    /// Uses only what is in the cache.
    pub fn offline(mut self) -> Self {
        self.offline = true;
        self
    }

    /// Waits this long before the second attempt of a request, and longer before later
    /// ones.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.client.pause = pause;
        self
    }

    /// A name as a file or folder: downloaded, unless it is in the cache.
    pub fn fetch(
        &self,
        name: &HubName,
        on_download: OnDownload<'_>,
    ) -> Result<CachedPath, HubError> {
        if self.offline {
            let path = self.cached(name).ok_or_else(|| HubError::NotCached {
                name: name.to_string(),
                cache: self.cache.folder().to_path_buf(),
            })?;
            return Ok(CachedPath { path, notes: Vec::new() });
        }
        let info = match self.client.info(name) {
            Err(HubError::Connect { endpoint, why }) => {
                let Some(path) = self.cached(name) else {
                    return Err(HubError::Unreachable { name: name.to_string(), endpoint, why });
                };
                let note = format!("{endpoint} cannot be reached; using {name} from the cache");
                return Ok(CachedPath { path, notes: vec![note] });
            }
            other => other?,
        };
        let snapshot = self.cache.snapshot(name, &info.commit);
        let result = match &name.file {
            Some(file) => {
                let remote = info.file(file).ok_or_else(|| self.no_file(name, file, &info))?;
                self.fetch_file(name, &info, remote, on_download)?
            }
            None => {
                self.fetch_model(name, &info, on_download)?;
                snapshot
            }
        };
        self.cache.save_ref(name, &info.commit)?;
        Ok(CachedPath { path: result, notes: Vec::new() })
    }

    /// A name in the cache, if all of its files are there.
    fn cached(&self, name: &HubName) -> Option<PathBuf> {
        let snapshot = self.cache.snapshot(name, &self.cache.commit(name)?);
        if let Some(file) = &name.file {
            return Some(snapshot.join(file)).filter(|path| path.is_file());
        }
        let weights = match std::fs::read(snapshot.join(INDEX)) {
            Ok(index) if !snapshot.join(SINGLE).exists() => shards(&index)?,
            _ => [SINGLE.to_string()].into(),
        };
        let complete = weights
            .iter()
            .map(String::as_str)
            .chain(["config.json"])
            .all(|file| snapshot.join(file).is_file());
        complete.then_some(snapshot)
    }

    /// Downloads what a model needs: config, tokenizer, and weights in safetensors.
    fn fetch_model(
        &self,
        name: &HubName,
        info: &RepoInfo,
        on_download: OnDownload<'_>,
    ) -> Result<(), HubError> {
        let config = info.file("config.json");
        let weights = info.file(SINGLE).or_else(|| info.file(INDEX));
        let (Some(config), Some(weights)) = (config, weights) else {
            return Err(self.no_model(name, info));
        };
        let companions = COMPANIONS.iter().filter_map(|file| info.file(file));
        for file in [config].into_iter().chain(companions) {
            self.fetch_file(name, info, file, on_download)?;
        }
        let path = self.fetch_file(name, info, weights, on_download)?;
        if weights.path != INDEX {
            return Ok(());
        }
        let index = std::fs::read(&path).map_err(|error| HubError::Io { path, error })?;
        let shards = shards(&index).ok_or_else(|| HubError::Reply {
            url: format!("{name}/{INDEX}"),
            why: "it is not an index of safetensors files".to_string(),
        })?;
        for shard in &shards {
            let file = info.file(shard).ok_or_else(|| self.no_file(name, shard, info))?;
            self.fetch_file(name, info, file, on_download)?;
        }
        Ok(())
    }

    fn fetch_file(
        &self,
        name: &HubName,
        info: &RepoInfo,
        file: &RemoteFile,
        on_download: OnDownload<'_>,
    ) -> Result<PathBuf, HubError> {
        let target = self.cache.snapshot(name, &info.commit).join(&file.path);
        let there = std::fs::metadata(&target).ok().filter(|found| found.is_file());
        if there.is_some_and(|found| file.size.is_none_or(|size| size == found.len())) {
            return Ok(target);
        }
        let remote = self.client.locate(name, &info.commit, file)?;
        self.cache.store(name, &info.commit, &remote, &self.client, on_download)
    }

    fn no_file(&self, name: &HubName, file: &str, info: &RepoInfo) -> HubError {
        HubError::NoFile {
            name: name.repo(),
            file: file.to_string(),
            revision: name.revision.clone(),
            similar: similar(info, file),
        }
    }

    /// Why a repository is not a model that can be read.
    fn no_model(&self, name: &HubName, info: &RepoInfo) -> HubError {
        let ends = |ends: &[&str]| -> Vec<String> {
            let files = info.files.iter().map(|file| file.path.clone());
            files.filter(|path| ends.iter().any(|end| path.ends_with(end))).collect()
        };
        let (gguf, pickles) = (ends(&[".gguf"]), ends(PICKLES));
        let name = name.to_string();
        if !gguf.is_empty() {
            let more = gguf.len().saturating_sub(MOST_LISTED);
            let mut listed = gguf[..gguf.len().min(MOST_LISTED)].join(", ");
            if more > 0 {
                listed += &format!(" and {more} more");
            }
            return HubError::NameGguf { example: format!("{name}/{}", gguf[0]), name, listed };
        }
        match pickles.first() {
            Some(pickle) => HubError::Pickles { name, pickle: pickle.clone() },
            None => HubError::NoWeights { name },
        }
    }
}

/// The files that an index of shards names; `None` if it is not such an index.
fn shards(index: &[u8]) -> Option<BTreeSet<String>> {
    let json: Value = serde_json::from_slice(index).ok()?;
    let map = json["weight_map"].as_object()?;
    let shards: Option<BTreeSet<String>> =
        map.values().map(|file| file.as_str().map(String::from)).collect();
    shards.filter(|shards| shards.iter().all(|shard| name::is_safe_path(shard)))
}

/// Files with the extension of `file`, to suggest.
fn similar(info: &RepoInfo, file: &str) -> Vec<String> {
    let end = file.rsplit('.').next().unwrap_or_default();
    let files = info.files.iter().map(|known| known.path.clone());
    files.filter(|path| path.rsplit('.').next() == Some(end)).take(MOST_LISTED).collect()
}

/// A model as the user gave it: a path that exists as it is, a name on the Hub as the
/// place of its files. Anything else is returned unchanged, to be refused where it is
/// opened, unless it looks like a name without its owner.
pub fn resolve_model(
    path: &Path,
    offline: bool,
    on_download: OnDownload<'_>,
) -> Result<CachedPath, HubError> {
    resolve(path, HubName::model, HubName::model_hint, offline, on_download)
}

/// As [`resolve_model`], for a text: `datasets:org/name/file.jsonl`.
pub fn resolve_text(
    path: &Path,
    offline: bool,
    on_download: OnDownload<'_>,
) -> Result<CachedPath, HubError> {
    resolve(path, HubName::dataset, HubName::dataset_hint, offline, on_download)
}

fn resolve(
    path: &Path,
    parse: fn(&str) -> Result<Option<HubName>, HubError>,
    hint: fn(&str) -> Option<HubError>,
    offline: bool,
    on_download: OnDownload<'_>,
) -> Result<CachedPath, HubError> {
    let unchanged = || CachedPath { path: path.to_path_buf(), notes: Vec::new() };
    let Some(text) = path.to_str().filter(|_| !path.exists()) else { return Ok(unchanged()) };
    match parse(text)? {
        Some(name) => Hub::from_env(offline)?.fetch(&name, on_download),
        None => hint(text).map_or_else(|| Ok(unchanged()), Err),
    }
}
