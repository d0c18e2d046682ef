//! The page's files, embedded in the program.

use crate::request::{Request, Response};

/// A file of the page.
struct File {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal, $file:literal, $kind:literal;)*) => {
        &[$(File {
            path: $path,
            content_type: $kind,
            bytes: include_bytes!(concat!("../static/", $file)),
        }),*]
    };
}

/// Every file; nothing else is served.
const FILES: &[File] = files! {
    "/", "index.html", "text/html; charset=utf-8";
    "/studio.css", "studio.css", "text/css; charset=utf-8";
    "/icon.svg", "icon.svg", "image/svg+xml";
    "/js/main.js", "js/main.js", "text/javascript; charset=utf-8";
    "/js/dom.js", "js/dom.js", "text/javascript; charset=utf-8";
    "/js/api.js", "js/api.js", "text/javascript; charset=utf-8";
    "/js/state.js", "js/state.js", "text/javascript; charset=utf-8";
    "/js/editor.js", "js/editor.js", "text/javascript; charset=utf-8";
    "/js/picture.js", "js/picture.js", "text/javascript; charset=utf-8";
    "/js/tiles.js", "js/tiles.js", "text/javascript; charset=utf-8";
    "/js/handles.js", "js/handles.js", "text/javascript; charset=utf-8";
    "/js/axes.js", "js/axes.js", "text/javascript; charset=utf-8";
    "/js/facts.js", "js/facts.js", "text/javascript; charset=utf-8";
    "/js/gallery.js", "js/gallery.js", "text/javascript; charset=utf-8";
    "/js/trial.js", "js/trial.js", "text/javascript; charset=utf-8";
    "/js/layouts.js", "js/layouts.js", "text/javascript; charset=utf-8";
    "/js/runs.js", "js/runs.js", "text/javascript; charset=utf-8";
    "/js/share.js", "js/share.js", "text/javascript; charset=utf-8";
};

/// Bytes of all files together.
pub fn page_bytes() -> usize {
    FILES.iter().map(|file| file.bytes.len()).sum()
}

/// The file at a path.
pub(crate) fn file(request: &Request<'_>) -> Option<Response> {
    let file = FILES.iter().find(|file| file.path == request.path)?;
    Some(Response::new(file.content_type, file.bytes).with("Cache-Control", "no-cache"))
}
