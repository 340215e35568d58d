//! Refuses requests without a token that a web page of another site may have sent.
//!
//! A browser sends the requests of a page to loopback too, with the page's site in `Origin`, or without it
//! for images, links and the like; `Sec-Fetch-Site` says for all of them whether another site made them.
//! After DNS rebinding, `Host` is the name of the page's site.

use std::net::IpAddr;

use axum::Json;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::ops::problem_code::ProblemCode;

/// Whether the page that makes a request is of the same site (Fetch Metadata): `none` for a request by the
/// user, such as an address that was typed in.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignRequest {
    /// The client is not on this host.
    Peer,
    /// `Host` is not a name of loopback.
    Host,
    /// `Origin` or `Sec-Fetch-Site` names another site than `Host`.
    Origin,
}

impl ForeignRequest {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Peer | Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// The stable code of the problem.
    pub fn code(self) -> ProblemCode {
        match self {
            Self::Peer | Self::Host => ProblemCode::ForeignHost,
            Self::Origin => ProblemCode::ForeignOrigin,
        }
    }

    /// What is wrong, and what to do.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Peer => "only clients on the host of the process may read this",
            Self::Host => {
                "without tokens, the header Host must be localhost, an address in 127.0.0.0/8 \
                 or [::1]"
            }
            Self::Origin => {
                "without tokens, a request of another site's page is refused: Origin must be the \
                 same site as Host, and Sec-Fetch-Site, if it is sent, same-origin or none"
            }
        }
    }
}

/// Without a request id, which the ops listener does not have.
impl IntoResponse for ForeignRequest {
    fn into_response(self) -> Response {
        let status = self.status();
        let code = self.code();
        let body = json!({
            "type": code.link(),
            "title": code.title(),
            "status": status.as_u16(),
            "code": code.as_str(),
            "detail": self.detail(),
        });
        let kind = HeaderValue::from_static("application/problem+json");
        (status, [(header::CONTENT_TYPE, kind)], Json(body)).into_response()
    }
}

/// Whether the host of an address or URI is loopback.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Refuses a request to another name than loopback's, or to none.
///
/// # Errors
///
/// [`ForeignRequest::Host`].
pub fn check_host(request: &Parts) -> Result<(), ForeignRequest> {
    let is_local = |authority: &Authority| is_loopback(authority.host());
    let of_target = request.uri.authority().is_none_or(is_local);
    match host(&request.headers) {
        Some(host) if of_target && is_local(&host) => Ok(()),
        _ => Err(ForeignRequest::Host),
    }
}

/// Refuses a request that a page of another site makes: its `Origin` differs from `Host`, or a browser says
/// so in `Sec-Fetch-Site`, which no page can set.
///
/// # Errors
///
/// [`ForeignRequest::Origin`].
pub fn check_origin(request: &Parts) -> Result<(), ForeignRequest> {
    let own = |site: &HeaderValue| site == "same-origin" || site == "none";
    if !request.headers.get_all(SEC_FETCH_SITE).iter().all(own) {
        return Err(ForeignRequest::Origin);
    }
    let Some(origin) = request.headers.get(header::ORIGIN) else { return Ok(()) };
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let site = site.and_then(|(_, site)| site.parse::<Authority>().ok());
    let is_own = site.is_some() && site == host(&request.headers);
    let is_single = request.headers.get_all(header::ORIGIN).iter().count() == 1;
    if is_own && is_single { Ok(()) } else { Err(ForeignRequest::Origin) }
}

/// The one `Host` of a request, with its port.
fn host(headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().uri(uri);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn host_must_name_loopback() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(check_host(&parts("/", &[("host", host)])), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "u@evil.example",
            "",
            "127.0.0.1@evil.example",
        ] {
            assert_eq!(
                check_host(&parts("/", &[("host", host)])),
                Err(ForeignRequest::Host),
                "{host}"
            );
        }
        assert_eq!(check_host(&parts("/", &[])), Err(ForeignRequest::Host), "no Host");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check_host(&parts("/", &two)), Err(ForeignRequest::Host), "two of them");
        let target = parts("http://evil.example/", &[("host", "localhost")]);
        assert_eq!(
            check_host(&target),
            Err(ForeignRequest::Host),
            "a target with a name of its own"
        );
    }

    #[test]
    fn origin_must_be_the_site_that_host_names() {
        let check = |origins: &[&str]| {
            let origins = origins.iter().map(|origin| ("origin", *origin));
            let headers: Vec<_> = [("host", "localhost:8080")].into_iter().chain(origins).collect();
            check_origin(&parts("/", &headers))
        };

        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["http://localhost:8080"]), Ok(()));
        assert_eq!(check(&["https://localhost:8080"]), Ok(()), "TLS may end before this process");
        for foreign in [
            "null",
            "",
            "http://evil.example",
            "http://localhost",
            "http://localhost:3000",
            "http://localhost:8080.evil.example",
            "localhost:8080",
            "http://localhost:8080/x",
        ] {
            assert_eq!(check(&[foreign]), Err(ForeignRequest::Origin), "{foreign}");
        }
        let two = ["http://localhost:8080", "http://evil.example"];
        assert_eq!(check(&two), Err(ForeignRequest::Origin));
    }

    #[test]
    fn request_of_another_site_is_refused_without_origin_too() {
        let check = |sites: &[&str]| {
            let sites = sites.iter().map(|site| ("sec-fetch-site", *site));
            let headers: Vec<_> = [("host", "localhost:8080")].into_iter().chain(sites).collect();
            check_origin(&parts("/", &headers))
        };

        for own in [&[][..], &["same-origin"], &["none"]] {
            assert_eq!(check(own), Ok(()), "{own:?}");
        }
        for foreign in
            [&["cross-site"][..], &["same-site"], &["other"], &[""], &["none", "cross-site"]]
        {
            assert_eq!(check(foreign), Err(ForeignRequest::Origin), "{foreign:?}");
        }
    }
}
