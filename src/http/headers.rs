//! Headers that a request must not have twice.

use axum::http::HeaderMap;

use crate::events::Flaw;

/// Reads a header, if the request has it. Its name appears in the flaw as it is given here.
///
/// # Errors
///
/// The header appears twice, or is not ASCII.
pub fn read_single<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Flaw> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Flaw::new(name, "appears twice; remove one of the two"));
    }
    value.to_str().map(Some).map_err(|_| Flaw::new(name, "must be ASCII"))
}

/// The same, for a header that is ignored if it is invalid.
pub fn read_valid<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    read_single(headers, name).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_read_whatever_the_case_of_its_name() {
        let one = HeaderMap::from_iter([("x-a".parse().unwrap(), "1".parse().unwrap())]);

        assert_eq!(read_single(&one, "X-A"), Ok(Some("1")));
        assert_eq!(read_single(&one, "X-B"), Ok(None));
    }

    #[test]
    fn header_that_appears_twice_or_is_not_ascii_is_refused() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-a", "1"), ("x-a", "1"), ("x-b", "ü")] {
            headers.append(name, value.parse().unwrap());
        }

        for name in ["X-A", "X-B"] {
            assert_eq!(read_single(&headers, name).unwrap_err().field, name);
            assert_eq!(read_valid(&headers, name), None);
        }
    }
}
