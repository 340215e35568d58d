//! `traceparent` and `tracestate` of a request (W3C Trace Context).

use axum::http::HeaderMap;

use crate::events::Trace;
use crate::http::headers::read_valid;

/// The header that names the request's span.
pub const PARENT: &str = "traceparent";

/// The header with what tracing systems add.
pub const STATE: &str = "tracestate";

/// The longest `tracestate` that is passed on.
const MAX_STATE_BYTES: usize = 512;

/// Reads the well-formed headers; `tracestate` requires `traceparent`.
pub fn read(headers: &HeaderMap) -> Trace {
    let Some(parent) = read_valid(headers, PARENT).filter(|text| is_parent(text)) else {
        return Trace::default();
    };
    let mut found = Trace { parent: Some(parent.to_owned()), state: None };
    let states = headers.get_all(STATE).iter().map(|value| value.to_str());
    if let Ok(states) = states.collect::<Result<Vec<_>, _>>() {
        let state = states.join(",");
        if !state.trim().is_empty() && state.len() <= MAX_STATE_BYTES {
            found.state = Some(state);
        }
    }
    found
}

fn is_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags, rest @ ..] = parts.as_slice() else { return false };
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
    hex(version, 2)
        && *version != "ff"
        // Later versions may add to it.
        && (*version != "00" || rest.is_empty())
        && hex(trace, 32)
        && !is_zero(trace)
        && hex(span, 16)
        && !is_zero(span)
        && hex(flags, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn found(pairs: &[(&'static str, &str)]) -> Trace {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        read(&headers)
    }

    #[test]
    fn well_formed_headers_are_read() {
        let parent = ("traceparent", PARENT);
        let states = [parent, ("tracestate", "a=1"), ("tracestate", "b=2")];

        let only = Trace { parent: Some(PARENT.to_owned()), state: None };
        assert_eq!(found(&[parent]), only);
        assert_eq!(found(&states).state.as_deref(), Some("a=1,b=2"));
        assert!(found(&[("traceparent", &format!("cc{}-x", &PARENT[2..]))]).parent.is_some());
    }

    #[test]
    fn malformed_headers_are_ignored() {
        let (long, zero) = ("a".repeat(513), "0".repeat(32));
        for wrong in [
            "",
            "00",
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &format!("{PARENT}-x"),
            &format!("ff{}", &PARENT[2..]),
            &PARENT.replace("0af7651916cd43dd8448eb211c80319c", &zero),
        ] {
            let pairs = [("traceparent", wrong), ("tracestate", "a=1")];
            assert_eq!(found(&pairs), Trace::default(), "{wrong}");
        }
        assert_eq!(found(&[("tracestate", "a=1")]), Trace::default());
        assert_eq!(found(&[("traceparent", PARENT), ("tracestate", &long)]).state, None);
        let twice = [("traceparent", PARENT), ("traceparent", PARENT)];
        assert_eq!(found(&twice), Trace::default());
    }
}
