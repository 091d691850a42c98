//! One request: whether it may pass, and what it passes with.

use forkd_types::network::{DomainName, HEADER_BYTES_MAX};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};

use super::context::Context;
use crate::gate::host_name;

/// Why a request does not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("the request is for another host than the connection, which is for `{0}`")]
    Misdirected(DomainName),
    #[error("`{0}` has header rules, so it is reached by HTTPS only")]
    Plain(DomainName),
    #[error("{0} does not pass to a host with header rules")]
    Method(Method),
    #[error("the header rules for `{host}` need the secret `{secret}`, which is not set")]
    Missing { host: DomainName, secret: String },
    #[error("the header rules for `{host}` make a value that is too long for `{header}`")]
    TooLong { host: DomainName, header: String },
    #[error("no connection to `{host}` can be trusted: {why}")]
    Server { host: DomainName, why: String },
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Self::Misdirected(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Plain(_) => StatusCode::FORBIDDEN,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Missing { .. } | Self::TooLong { .. } | Self::Server { .. } => {
                StatusCode::BAD_GATEWAY
            }
        }
    }

    /// What the guest gets.
    pub(super) fn answer(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(format!("forkd: {self}\n").into()));
        *response.status_mut() = self.status();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }
}

/// Makes a request of the guest one of the gateway.
pub(super) fn transform<B>(
    request: &mut Request<B>,
    host: &DomainName,
    context: &Context,
) -> Result<(), Refused> {
    if !is_for(request, host) {
        return Err(Refused::Misdirected(host.clone()));
    }
    if [Method::CONNECT, Method::TRACE].contains(request.method()) {
        return Err(Refused::Method(request.method().clone()));
    }
    if request.version() != Version::HTTP_2 {
        // The host is in a header; here the whole URL would be for a proxy.
        let target = request.uri().path_and_query().map_or("*", |target| target.as_str());
        if let Ok(target) = target.parse::<Uri>() {
            *request.uri_mut() = target;
        }
    }
    let rules = context.rules.borrow();
    let rules = rules.of(host).map(|(_, rules)| rules).unwrap_or_default();
    for (name, template) in rules.iter().flat_map(|rule| &rule.transform.headers) {
        let mut value = Vec::new();
        for (text, secret) in template.parts() {
            value.extend_from_slice(text.as_bytes());
            if !context.credentials.append(&mut value, &context.owner, secret) {
                let secret = secret.to_string();
                return Err(Refused::Missing { host: host.clone(), secret });
            }
        }
        value.extend_from_slice(template.rest().as_bytes());
        let too_long = || Refused::TooLong { host: host.clone(), header: name.to_string() };
        if value.len() > HEADER_BYTES_MAX {
            return Err(too_long());
        }
        let header = HeaderName::from_bytes(name.as_str().as_bytes()).map_err(|_| too_long())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| too_long())?;
        value.set_sensitive(true);
        request.headers_mut().insert(header, value);
    }
    Ok(())
}

/// Whether everything in a request that names a host names this one.
fn is_for<B>(request: &Request<B>, host: &DomainName) -> bool {
    let named = |authority: &[u8]| host_name(authority).as_ref() == Some(host);
    let in_target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let mut headers = request.headers().get_all(HOST).iter().map(HeaderValue::as_bytes);
    let in_header = headers.next();
    headers.next().is_none()
        && (in_header.is_some() || request.version() == Version::HTTP_2 && in_target.is_some())
        && in_target.into_iter().chain(in_header).all(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_host_must_be_its_own() {
        let host: DomainName = "a.example".parse().unwrap();
        let passes = |version, target: &str, hosts: &[&str]| {
            let mut request = Request::builder().version(version).uri(target);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            is_for(&request.body(()).unwrap(), &host)
        };
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        for (version, target, hosts, expected) in [
            (one, "/", &["a.example"][..], true),
            (one, "/", &["A.Example:443"], true),
            (one, "https://a.example/", &["a.example"], true),
            (two, "https://a.example/", &[], true),
            (two, "https://a.example:8443/", &["a.example"], true),
            (one, "/", &[], false),
            (one, "https://a.example/", &[], false),
            (one, "/", &["b.example"], false),
            (one, "/", &["a.example", "b.example"], false),
            (one, "/", &["a.example", "a.example"], false),
            (one, "https://b.example/", &["a.example"], false),
            (one, "/", &["b.example@a.example"], false),
            (one, "/", &["a.example:x"], false),
            (two, "https://b.example/", &[], false),
            (two, "https://a.example/", &["b.example"], false),
            (two, "https://b.example@a.example/", &[], false),
            (two, "/", &[], false),
        ] {
            assert_eq!(passes(version, target, hosts), expected, "{target} {hosts:?}");
        }
    }
}
