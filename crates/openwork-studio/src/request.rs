//! Requests and responses without sockets.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Most bytes of a body: a spec has at most 64 KB.
pub(crate) const MAX_BODY: usize = 1 << 18;

/// A request, its body read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// The path, as it was sent.
    pub path: &'a str,
    /// What follows the question mark.
    pub query: &'a str,
    /// The `Host` header.
    pub host: Option<&'a str>,
    /// The `Origin` header.
    pub origin: Option<&'a str>,
    /// The `Sec-Fetch-Site` header.
    pub fetch_site: Option<&'a str>,
    /// The `Content-Type` header.
    pub content_type: Option<&'a str>,
    /// The `Cookie` header.
    pub cookie: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

impl Request<'_> {
    /// The body as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Response> {
        if self.body.len() > MAX_BODY {
            return Err(Response::error(413, format!("the body exceeds {MAX_BODY} bytes")));
        }
        let json = |kind: &str| {
            kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json")
        };
        if !self.content_type.is_some_and(json) {
            return Err(Response::error(415, "send application/json"));
        }
        serde_json::from_slice(self.body).map_err(|error| {
            Response::error(400, format!("the body is not what this route takes: {error}"))
        })
    }

    /// A value of the query, as it was sent.
    pub(crate) fn query_value(&self, key: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The type of the body.
    pub content_type: &'static str,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Cow<'static, [u8]>,
}

impl Response {
    /// A response with status 200.
    pub(crate) fn new(content_type: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { status: 200, content_type, headers: Vec::new(), body: body.into() }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self::new("application/json", value.to_string().into_bytes())
    }

    pub(crate) fn bytes(body: Vec<u8>) -> Self {
        Self::new("application/octet-stream", body)
    }

    pub(crate) fn text(content_type: &'static str, body: String) -> Self {
        Self::new(content_type, body.into_bytes())
    }

    /// `{"error": why}` under a status of 400 or more.
    pub(crate) fn error(status: u16, why: impl Into<String>) -> Self {
        Self { status, ..Self::json(&json!({"error": why.into()})) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}
