//! Metrics of requests, by route.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use metrics::{SharedString, counter, histogram};

use crate::telemetry::metrics::{HTTP_REQUEST_DURATION_SECONDS, HTTP_REQUESTS};

/// The code of a request whose client left before its answer began, as nginx writes it.
const CLIENT_LEFT: u16 = 499;

/// Counts a request when its answer begins, or when its client leaves before. Runs around all other
/// layers, so that requests are counted that these refuse.
pub(super) async fn measure(request: Request, next: Next) -> Response {
    let mut measured = Measured {
        method: label(request.method()),
        // The template: the path itself has ids.
        route: request.extensions().get::<MatchedPath>().cloned(),
        code: CLIENT_LEFT,
        begun: Instant::now(),
    };
    let response = next.run(request).await;
    measured.code = response.status().as_u16();
    response
}

/// A request, which is counted when this value is dropped: hyper drops the future of a request whose
/// client has left.
struct Measured {
    method: &'static str,
    route: Option<MatchedPath>,
    code: u16,
    begun: Instant,
}

impl Drop for Measured {
    fn drop(&mut self) {
        let (method, code) = (self.method, self.code.to_string());
        let route = self.route.as_ref().map_or("", MatchedPath::as_str);
        let route = SharedString::from(route.to_owned());
        counter!(HTTP_REQUESTS, "method" => method, "route" => route.clone(), "code" => code)
            .increment(1);
        histogram!(HTTP_REQUEST_DURATION_SECONDS, "method" => method, "route" => route)
            .record(self.begun.elapsed().as_secs_f64());
    }
}

/// A client can send any method, so those that HTTP does not define have one label.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_of_a_method_is_one_of_ten() {
        assert_eq!(label(&Method::GET), "GET");
        for unknown in ["PURGE", "get", "X-1"] {
            assert_eq!(label(&unknown.parse().unwrap()), "other", "{unknown}");
        }
    }
}
