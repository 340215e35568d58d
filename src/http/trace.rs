//! `traceparent` and `tracestate` of a request, as W3C Trace Context has them.

use axum::http::HeaderMap;

/// Names the request's place in a trace.
pub const PARENT: &str = "traceparent";

/// What tracing systems add to it.
const STATE: &str = "tracestate";

/// The longest `tracestate` that is handed on.
const LONGEST_STATE: usize = 512;

/// Those of the two that are well-formed, by their names; no `tracestate` without its parent.
pub fn of(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let one = headers.get_all(PARENT).iter().collect::<Vec<_>>();
    let [parent] = one.as_slice() else { return Vec::new() };
    let Some(parent) = parent.to_str().ok().filter(|text| is_parent(text)) else {
        return Vec::new();
    };
    let mut found = vec![(PARENT, parent.to_owned())];
    let states = headers.get_all(STATE).iter().map(|value| value.to_str());
    if let Ok(states) = states.collect::<Result<Vec<_>, _>>() {
        let state = states.join(",");
        if !state.trim().is_empty() && state.len() <= LONGEST_STATE {
            found.push((STATE, state));
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

    fn found(pairs: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        of(&headers)
    }

    #[test]
    fn what_is_well_formed_is_handed_on() {
        let parent = ("traceparent", PARENT);
        let states = [parent, ("tracestate", "a=1"), ("tracestate", "b=2")];

        assert_eq!(found(&[parent]), [("traceparent", PARENT.to_owned())]);
        assert_eq!(found(&states)[1], ("tracestate", "a=1,b=2".to_owned()));
        assert_eq!(found(&[("traceparent", &format!("cc{}-x", &PARENT[2..]))]).len(), 1);
    }

    #[test]
    fn what_is_not_is_left_out() {
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
            assert!(found(&[("traceparent", wrong), ("tracestate", "a=1")]).is_empty(), "{wrong}");
        }
        assert!(found(&[("tracestate", "a=1")]).is_empty());
        assert_eq!(found(&[("traceparent", PARENT), ("tracestate", &long)]).len(), 1);
        assert!(found(&[("traceparent", PARENT), ("traceparent", PARENT)]).is_empty());
    }
}
