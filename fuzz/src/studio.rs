//! Requests of the studio: whatever is sent, there is an answer.

use openwork_studio::{Access, Options, Request, Studio};
use std::sync::OnceLock;

/// Requests to start from: method and target, host, origin, an empty line, the body.
pub const SEEDS: &[&str] = &[
    "GET /\n127.0.0.1:80\n\n\n",
    "GET /?token=0\nlocalhost:80\nhttp://localhost:80\n\n",
    "GET /api/run?run=0\n[::1]:80\n\n\n",
    "POST /api/show\n127.0.0.1:80\n\n\n{\"spec\":\"2:4@8\",\"shapes\":[\"8,32\"],\"seed\":1}",
    "POST /api/tile\n127.0.0.1:80\n\n\n{\"spec\":\"2:4 pad (1,4)\",\"shapes\":[\"4,10\"],\"panel\":0,\"row\":0,\"col\":0,\"rows\":4,\"cols\":4,\"step\":1,\"numbers\":true,\"mask\":true}",
    "POST /api/tile\n127.0.0.1:80\n\n\n{\"spec\":\"1:2 then 1:2\",\"shapes\":[\"8,16\"],\"panel\":1,\"row\":0,\"col\":2,\"rows\":4,\"cols\":4,\"step\":2,\"numbers\":false,\"mask\":true}",
    "POST /api/draw\n127.0.0.1:80\n\n\n{\"spec\":\"2:4@8\",\"shapes\":[\"8,32\"],\"tiles\":[{\"panel\":0,\"row\":0,\"col\":0,\"rows\":4,\"cols\":4,\"step\":2,\"numbers\":false,\"mask\":true}]}",
    "POST /api/element\n127.0.0.1:80\n\n\n{\"spec\":\"in (1,2)+(2,4) keep 1\",\"shapes\":[\"4,8\"],\"panel\":0,\"row\":1,\"col\":2}",
    "POST /api/edit\n127.0.0.1:80\n\n\n{\"spec\":\"2:4\",\"shapes\":[\"8,16\"],\"panel\":0,\"edit\":{\"move_axis\":{\"from\":0,\"to\":1}}}",
    "POST /api/edit\n127.0.0.1:80\n\n\n{\"spec\":\"block(4,4)\",\"shapes\":[\"8,16\"],\"panel\":0,\"edit\":{\"block\":{\"axis\":0,\"extent\":2}}}",
    "POST /api/layout\n127.0.0.1:80\n\n\n{\"op\":\"composition\",\"inputs\":[\"(6,2):(8,2)\",\"(4,3):(3,1)\"]}",
    "POST /api/share\n127.0.0.1:80\n\n\n{\"spec\":\"blocks a: & b: keep 1\",\"shapes\":[\"a=4,4\",\"b=4,4\"]}",
    "POST /api/fragment\n127.0.0.1:80\n\n\n{\"spec\":\"rows16\",\"shapes\":[\"16,32\"]}",
];

/// Must not panic, and must refuse what does not come from the page, on any bytes.
pub fn studio_request(data: &[u8]) {
    static STUDIO: OnceLock<Studio> = OnceLock::new();
    let studio = STUDIO.get_or_init(|| {
        let options = Options {
            sources: Vec::new(),
            calibration: "demo".into(),
            runs: "fuzz_targets".into(),
        };
        Studio::new(&options, Access::loopback(80)).expect("the built-in model opens")
    });
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.splitn(5, '\n');
    let mut part = || parts.next().unwrap_or("");
    let (line, host, origin, content_type, body) = (part(), part(), part(), part(), part());
    let (method, target) = line.split_once(' ').unwrap_or((line, "/"));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    // A trial starts a thread that goes on after the answer.
    if path == "/api/trial" {
        return;
    }
    let response = studio.answer(&Request {
        method,
        path,
        query,
        host: Some(host),
        origin: Some(origin).filter(|origin| !origin.is_empty()),
        content_type: Some(if content_type.is_empty() { "application/json" } else { content_type }),
        body: body.as_bytes(),
        ..Request::default()
    });
    assert!((200..600).contains(&response.status), "{}", response.status);
    assert!(response.status != 500, "{text}");
    let local = ["127.", "localhost", "LOCALHOST", "[::", "[0"];
    if response.status == 200 && !host.to_lowercase().starts_with("localhost") {
        assert!(local.iter().any(|start| host.starts_with(start)), "{host} is not this machine");
    }
}
