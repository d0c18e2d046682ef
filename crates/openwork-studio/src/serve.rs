//! The server: connections, limits on their number, on sizes and on times.

use crate::Studio;
use crate::request::{MAX_BODY, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Most connections at a time; others wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
/// Most requests that are computed at a time; others wait.
const MAX_COMPUTING: usize = 2;
/// Time to send the head of a request, after which the connection is closed.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time to send a body.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Time from there to the response.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Most bytes of a request's head.
const MAX_HEAD: usize = 1 << 14;

/// Answers requests until the process ends.
pub fn serve(studio: Studio, listener: TcpListener) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2 * MAX_COMPUTING)
        .enable_all()
        .build()?;
    runtime.block_on(accept(Arc::new(studio), listener))
}

/// What connections share.
struct Shared {
    studio: Arc<Studio>,
    computing: Arc<Semaphore>,
}

async fn accept(studio: Arc<Studio>, listener: TcpListener) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let computing = Arc::new(Semaphore::new(MAX_COMPUTING));
    let shared = Arc::new(Shared { studio, computing });
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Such as too many open files: try again when some may have closed.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(sent(respond(&shared, request).await)) }
            });
            // An error ends this connection alone: the other side is gone, slow or wrong.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(MAX_HEAD)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(permit);
        });
    }
}

async fn respond(shared: &Shared, request: hyper::Request<Incoming>) -> Response {
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect());
    let body = match body.await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            return closing(Response::error(413, format!("the body exceeds {MAX_BODY} bytes")));
        }
        Err(_) => return closing(Response::error(408, "the body took too long to arrive")),
    };
    let studio = Arc::clone(&shared.studio);
    let computing = Arc::clone(&shared.computing);
    let work = async move {
        let permit = computing.acquire_owned().await.ok()?;
        let answer = tokio::task::spawn_blocking(move || {
            // Held until the computation ends, even if nobody waits for it any more.
            let _permit = permit;
            let text = |name: HeaderName| value(&head.headers, name);
            studio.answer(&Request {
                method: head.method.as_str(),
                path: head.uri.path(),
                query: head.uri.query().unwrap_or(""),
                host: text(header::HOST),
                origin: text(header::ORIGIN),
                fetch_site: text(HeaderName::from_static("sec-fetch-site")),
                content_type: text(header::CONTENT_TYPE),
                cookie: text(header::COOKIE),
                body: &body,
            })
        });
        answer.await.ok()
    };
    match tokio::time::timeout(ANSWER_TIME, work).await {
        Ok(Some(response)) => response,
        Ok(None) => Response::error(500, "this request could not be computed"),
        Err(_) => closing(Response::error(503, "this takes too long; try a smaller tensor")),
    }
}

/// The rest of the request is not read, so the connection cannot be used again.
fn closing(response: Response) -> Response {
    response.with("Connection", "close")
}

fn value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn sent(response: Response) -> hyper::Response<Full<Bytes>> {
    let body = match response.body {
        std::borrow::Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        std::borrow::Cow::Owned(bytes) => Bytes::from(bytes),
    };
    let mut sent = hyper::Response::new(Full::new(body));
    // Every status in this crate is a valid one.
    *sent.status_mut() = hyper::StatusCode::from_u16(response.status).unwrap_or_default();
    let headers = sent.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(response.content_type));
    for (name, value) in response.headers {
        let Ok(value) = HeaderValue::from_str(&value) else { continue };
        headers.insert(HeaderName::from_bytes(name.as_bytes()).unwrap_or(header::VIA), value);
    }
    sent
}
