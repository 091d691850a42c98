//! The token of a request: in a header, a cookie or the query; and taking it out of there.

use axum::extract::Request;
use axum::http::header::COOKIE;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::preview_url::TOKEN_PARAMETER;

/// Ours and that of E2B.
const TOKEN: [HeaderName; 2] = [
    HeaderName::from_static("x-forkd-traffic-token"),
    HeaderName::from_static("e2b-traffic-access-token"),
];

/// The cookie. Over https its name makes sure that no other host has set it.
const PLAIN_COOKIE: &str = "forkd_traffic_token";
const HOST_COOKIE: &str = "__Host-forkd_traffic_token";

/// What a request comes with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credential {
    pub(super) token: String,
    pub(super) source: Source,
}

/// Where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Header,
    Query,
    Cookie,
}

/// Takes tokens out of a request, wherever they are, and gives the one that counts: what was given
/// by hand before what a browser has kept.
pub(super) fn take(request: &mut Request) -> Option<Credential> {
    let credential = |source| move |token| Credential { token, source };
    let header = from_headers(request.headers_mut()).map(credential(Source::Header));
    let query = from_query(request.uri_mut()).map(credential(Source::Query));
    let cookie = from_cookies(request.headers_mut()).map(credential(Source::Cookie));
    header.or(query).or(cookie)
}

fn from_headers(headers: &mut HeaderMap) -> Option<String> {
    let mut found = None;
    for name in &TOKEN {
        let value = headers.remove(name);
        found = found.or_else(|| Some(value?.to_str().ok()?.to_owned()));
    }
    found
}

fn from_query(uri: &mut Uri) -> Option<String> {
    let query = uri.query()?;
    let is_ours = |part: &&str| {
        part.strip_prefix(TOKEN_PARAMETER)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let (ours, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_ours);
    let token = ours.first()?.split_once('=').map_or("", |(_, token)| token).to_owned();
    let path = uri.path();
    let rest =
        if others.is_empty() { path.to_owned() } else { format!("{path}?{}", others.join("&")) };
    let mut parts = uri.clone().into_parts();
    // It is a part of what was one.
    parts.path_and_query = Some(PathAndQuery::try_from(rest).ok()?);
    *uri = Uri::from_parts(parts).ok()?;
    Some(token)
}

fn from_cookies(headers: &mut HeaderMap) -> Option<String> {
    let mut found = None;
    let mut kept = Vec::new();
    for value in headers.get_all(COOKIE) {
        // What is no text has not been set by us.
        let Ok(text) = value.to_str() else { continue };
        for cookie in text.split(';').map(str::trim) {
            match cookie.split_once('=') {
                Some((HOST_COOKIE, token)) => found = Some(token.to_owned()),
                Some((PLAIN_COOKIE, token)) => {
                    found.get_or_insert_with(|| token.to_owned());
                }
                _ if cookie.is_empty() => {}
                _ => kept.push(cookie.to_owned()),
            }
        }
    }
    headers.remove(COOKIE);
    if let Ok(kept) = HeaderValue::from_str(&kept.join("; "))
        && !kept.is_empty()
    {
        headers.insert(COOKIE, kept);
    }
    found
}

/// What a browser keeps of a token: for this host, out of reach of its pages.
pub(super) fn cookie(token: &str, is_https: bool) -> String {
    let (name, secure) = if is_https { (HOST_COOKIE, "; Secure") } else { (PLAIN_COOKIE, "") };
    format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax{secure}")
}

/// What is left of a cookie that a sandbox sets: for its own host alone, and never ours.
pub(super) fn guests_cookie(value: &HeaderValue) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let name = text.split(['=', ';']).next()?.trim();
    if name == PLAIN_COOKIE || name == HOST_COOKIE {
        return None;
    }
    let is_domain = |part: &&str| {
        part.split('=').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("domain"))
    };
    let parts: Vec<&str> = text
        .split(';')
        .enumerate()
        .filter(|(n, part)| *n == 0 || !is_domain(part))
        .map(|(_, part)| part)
        .collect();
    HeaderValue::from_str(&parts.join(";")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn taken(uri: &str, headers: &[(&str, &str)]) -> (Option<Credential>, Request) {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        (take(&mut request), request)
    }

    fn found(token: &str, source: Source) -> Option<Credential> {
        Some(Credential { token: token.to_owned(), source })
    }

    #[test]
    fn a_token_is_found_where_it_may_be_and_goes_no_further() {
        let (token, rest) = taken("/a?b=1&forkd_token=t&c", &[]);
        assert_eq!(token, found("t", Source::Query));
        assert_eq!(rest.uri(), "/a?b=1&c");
        let (token, rest) = taken("/?forkd_token=t", &[]);
        assert_eq!((token, rest.uri().to_string()), (found("t", Source::Query), "/".to_owned()));
        for name in ["X-Forkd-Traffic-Token", "e2b-traffic-access-token"] {
            let (token, rest) = taken("/", &[(name, "t"), ("x-other", "o")]);
            assert_eq!(token, found("t", Source::Header));
            assert_eq!(rest.headers().len(), 1);
        }
        let cookies = [("cookie", "a=1; forkd_traffic_token=t"), ("cookie", "b=2")];
        let (token, rest) = taken("/", &cookies);
        assert_eq!(token, found("t", Source::Cookie));
        assert_eq!(rest.headers()[COOKIE], "a=1; b=2");
        let (token, rest) = taken("/?forkd_tokens=1", &[("cookie", "forkd_traffic_tokens=t")]);
        assert_eq!(token, None);
        assert_eq!((rest.uri().query(), rest.headers().len()), (Some("forkd_tokens=1"), 1));
    }

    #[test]
    fn what_is_given_by_hand_counts_before_what_a_browser_kept_and_all_of_it_is_taken_out() {
        let headers =
            [("cookie", "forkd_traffic_token=old"), ("x-forkd-traffic-token", "by-header")];
        let (token, rest) = taken("/?forkd_token=by-query&forkd_token=again", &headers);
        assert_eq!(token, found("by-header", Source::Header));
        assert!(rest.headers().is_empty() && rest.uri() == "/", "{rest:?}");
        let (token, _) = taken("/?forkd_token=new", &headers[..1]);
        assert_eq!(token, found("new", Source::Query));
        let both = "forkd_traffic_token=tossed; __Host-forkd_traffic_token=ours";
        let (token, _) = taken("/", &[("cookie", both)]);
        assert_eq!(token, found("ours", Source::Cookie));
    }

    #[test]
    fn a_sandbox_sets_cookies_for_its_own_host_and_not_ours() {
        let left = |text: &'static str| guests_cookie(&HeaderValue::from_static(text));
        assert_eq!(left("a=1; Path=/; HttpOnly").unwrap(), "a=1; Path=/; HttpOnly");
        assert_eq!(left("a=1; Domain=example.com; Secure").unwrap(), "a=1; Secure");
        assert_eq!(left("a=1;DOMAIN = x;domain").unwrap(), "a=1");
        assert_eq!(left("domain=1; Path=/").unwrap(), "domain=1; Path=/");
        assert_eq!(left("forkd_traffic_token=x; Path=/"), None);
        assert_eq!(left(" __Host-forkd_traffic_token = x"), None);
    }
}
