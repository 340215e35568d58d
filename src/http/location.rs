//! The header `Location` of what a request has created.

use axum::http::{HeaderName, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but the unreserved characters of a URI (RFC 3986) and the colon, after a prefix of an id.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// The header with this path, as a relative reference: the client knows the host, a proxy may change it.
pub fn location(path: &str) -> [(HeaderName, String); 1] {
    [(header::LOCATION, path.to_owned())]
}

/// The path of the item with this id in a list.
pub fn below(list: &str, id: &str) -> String {
    format!("{list}/{}", utf8_percent_encode(id, ENCODED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_one_segment_of_the_path() {
        assert_eq!(below("/v1/list", "str:a/b ö?"), "/v1/list/str:a%2Fb%20%C3%B6%3F");
    }
}
