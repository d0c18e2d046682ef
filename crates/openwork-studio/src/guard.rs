//! Who may ask: requests of the page itself, on this machine unless another host was given.
//!
//! - `Host` must be an address of the server: a name that an attacker's DNS points here
//!   (rebinding) is refused.
//! - `Origin` and `Sec-Fetch-Site` must be those of the page: other sites cannot make a
//!   browser ask. There are no CORS headers, so they could not read the answer either.
//! - Where other machines can connect, every request needs a token, which the printed address
//!   has and a cookie keeps.

use crate::request::{Request, Response};
use std::net::{IpAddr, SocketAddr};

const COOKIE: &str = "openwork_studio";

/// What the page may load: its own files, and pictures that it makes itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// A secret of 128 random bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new token from the system's random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where texts differ.
    fn is(&self, text: &str) -> bool {
        let (a, b) = (self.0.as_bytes(), text.as_bytes());
        a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// The rules of a server.
#[derive(Clone, Debug)]
pub struct Access {
    port: u16,
    /// The host that was given, if it is not this machine alone.
    host: Option<String>,
    token: Option<Token>,
}

impl Access {
    /// For a server on this machine alone.
    pub fn loopback(port: u16) -> Self {
        Self { port, host: None, token: None }
    }

    /// For a server that other machines reach as `host`.
    pub fn public(host: &str, port: u16, token: Token) -> Self {
        Self { port, host: Some(host.to_string()), token: Some(token) }
    }

    /// The address of the page.
    pub fn address(&self, bound: SocketAddr) -> String {
        let host = match &self.host {
            Some(host) if host.contains(':') => format!("[{host}]"),
            Some(host) => host.clone(),
            None => bound.ip().to_string(),
        };
        let token = self.token.as_ref().map_or(String::new(), |t| format!("?token={}", t.text()));
        format!("http://{host}:{}/{token}", self.port)
    }

    /// Refuses requests that are not of the page.
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<(), Response> {
        let Some(host) = request.host.filter(|host| self.is_own(host)) else {
            return Err(Response::error(421, "this Host is not an address of the studio"));
        };
        let own = request.origin.is_none_or(|origin| {
            origin.strip_prefix("http://").is_some_and(|name| name.eq_ignore_ascii_case(host))
        });
        let site = request.fetch_site.is_none_or(|site| ["same-origin", "none"].contains(&site));
        // Following a link from another page is a visit, not a request of that page.
        let visit = request.method == "GET" && request.path == "/" && request.origin.is_none();
        if !own || !(site || visit) {
            return Err(Response::error(403, "requests of other pages are refused"));
        }
        match &self.token {
            Some(token) if !self.is_known(token, request) => Err(Response::error(
                401,
                "the token is missing or wrong; open the address that the command printed",
            )),
            _ => Ok(()),
        }
    }

    /// Whether a `Host` header names this server.
    fn is_own(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port.parse().ok()),
            _ => (host, Some(80)),
        };
        if port != Some(self.port) {
            return false;
        }
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let ip: Option<IpAddr> = bare.parse().ok();
        match &self.host {
            None => bare.eq_ignore_ascii_case("localhost") || ip.is_some_and(|ip| ip.is_loopback()),
            // Rebinding needs a name; a literal address is the server's own.
            Some(given) => bare.eq_ignore_ascii_case(given) || ip.is_some(),
        }
    }

    fn is_known(&self, token: &Token, request: &Request<'_>) -> bool {
        let cookies =
            request.cookie.unwrap_or("").split(';').filter_map(|c| c.trim().split_once('='));
        let kept = cookies.into_iter().any(|(name, value)| name == COOKIE && token.is(value));
        kept || request.query_value("token").is_some_and(|given| token.is(given))
    }

    /// Adds the headers that every response has.
    pub(crate) fn finish(&self, request: &Request<'_>, response: Response) -> Response {
        let mut response = response
            .with("X-Content-Type-Options", "nosniff")
            .with("Referrer-Policy", "no-referrer")
            .with("Cross-Origin-Opener-Policy", "same-origin")
            .with("Cross-Origin-Resource-Policy", "same-origin");
        if !response.headers.iter().any(|(name, _)| *name == "Content-Security-Policy") {
            response = response.with("Content-Security-Policy", POLICY);
        }
        if !response.headers.iter().any(|(name, _)| *name == "Cache-Control") {
            response = response.with("Cache-Control", "no-store");
        }
        match &self.token {
            Some(token) if request.query_value("token").is_some_and(|given| token.is(given)) => {
                let cookie =
                    format!("{COOKIE}={}; HttpOnly; SameSite=Strict; Path=/", token.text());
                response.with("Set-Cookie", cookie)
            }
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(host: &str) -> Request<'_> {
        Request { method: "GET", path: "/", host: Some(host), ..Request::default() }
    }

    fn status(access: &Access, request: &Request<'_>) -> u16 {
        access.check(request).map_or_else(|refusal| refusal.status, |()| 200)
    }

    #[test]
    fn only_addresses_of_this_machine_are_hosts() {
        let access = Access::loopback(8000);
        for host in ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"] {
            assert_eq!(status(&access, &page(host)), 200, "{host}");
        }
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "evil.example:8000",
            "localhost.evil.example:8000",
            "127.0.0.1.evil.example:8000",
            "10.0.0.1:8000",
            "",
            ":8000",
            "[::1]",
            "[::1",
        ] {
            assert_eq!(status(&access, &page(host)), 421, "{host}");
        }
        assert_eq!(status(&access, &Request { host: None, ..page("") }), 421);
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let access = Access::loopback(8000);
        let of = |origin, fetch_site, path| {
            let host = page("127.0.0.1:8000");
            status(&access, &Request { origin, fetch_site, path, ..host })
        };
        let own = Some("http://127.0.0.1:8000");
        assert_eq!(of(own, Some("same-origin"), "/api/show"), 200);
        assert_eq!(of(None, Some("cross-site"), "/"), 200, "a link that is followed");
        for (origin, site, path) in [
            (Some("https://evil.example"), None, "/"),
            (Some("https://127.0.0.1:8000"), None, "/api/show"),
            (Some("null"), None, "/api/show"),
            (Some("http://127.0.0.1:8001"), None, "/api/show"),
            (own, Some("cross-site"), "/api/show"),
            (None, Some("same-site"), "/api/show"),
            (None, Some("cross-site"), "/api/runs"),
        ] {
            assert_eq!(of(origin, site, path), 403, "{origin:?} {site:?} {path}");
        }
    }

    #[test]
    fn a_public_studio_needs_its_token() {
        let token = Token::random().unwrap();
        let text = token.text().to_string();
        assert_eq!(text.len(), 32);
        let access = Access::public("box.lan", 8000, token);
        let bound = "0.0.0.0:8000".parse().unwrap();
        assert_eq!(access.address(bound), format!("http://box.lan:8000/?token={text}"));
        let query = format!("token={text}");
        let cookie = format!("other=1; {COOKIE}={text}");
        let host = page("box.lan:8000");
        assert_eq!(status(&access, &host), 401);
        assert_eq!(status(&access, &Request { query: "token=0", ..host }), 401);
        assert_eq!(status(&access, &Request { query: &query, ..host }), 200);
        assert_eq!(status(&access, &Request { cookie: Some(&cookie), ..host }), 200);
        assert_eq!(status(&access, &Request { query: &query, ..page("evil.example:8000") }), 421);
        let visit = Request { query: &query, ..host };
        let sent = access.finish(&visit, Response::error(200, "")).headers;
        let set = sent.iter().find(|(name, _)| *name == "Set-Cookie").map(|(_, value)| value);
        assert!(set.is_some_and(|set| set.contains("HttpOnly; SameSite=Strict")), "{set:?}");
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
    }

    #[test]
    fn every_response_has_the_policy() {
        let access = Access::loopback(1);
        let headers = access.finish(&page(""), Response::error(404, "")).headers;
        let policy = headers.iter().find(|(name, _)| *name == "Content-Security-Policy");
        let policy = policy.map(|(_, value)| value.as_str()).unwrap_or_default();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert!(!headers.iter().any(|(name, _)| name.starts_with("Access-Control")));
    }
}
