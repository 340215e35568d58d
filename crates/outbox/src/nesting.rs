//! How deep values may be nested.

use bson::{Bson, Document};

/// The most levels of objects and arrays in one value, itself included: those that MongoDB documents. The answers and
/// messages around a value then have fewer than the 128 levels at which parsers of JSON begin to refuse a text.
pub const MAX_LEVELS: usize = 100;

/// What is wrong with a value that has more levels.
pub const TOO_DEEP: &str = "is nested deeper than 100 levels";

/// Whether a value has more than [`MAX_LEVELS`].
pub fn is_too_deep(value: &Bson) -> bool {
    !is_within(value, MAX_LEVELS)
}

/// Whether a document has more than [`MAX_LEVELS`].
pub fn is_document_too_deep(document: &Document) -> bool {
    !document.values().all(|value| is_within(value, MAX_LEVELS - 1))
}

/// Whether a value has at most so many levels.
pub fn is_within(value: &Bson, levels: usize) -> bool {
    let within = |value| is_within(value, levels - 1);
    match value {
        Bson::Document(document) => levels > 0 && document.values().all(within),
        Bson::Array(items) => levels > 0 && items.iter().all(within),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn empty_containers_are_levels_and_scalars_are_not() {
        let nested = |levels: usize, inner: Bson| {
            (0..levels).fold(inner, |inner, at| match at % 2 {
                0 => Bson::Array(vec![Bson::Null, inner]),
                _ => doc! { "a": 1, "b": inner }.into(),
            })
        };
        for inner in [Bson::Int32(1), doc! {}.into(), Bson::Array(Vec::new())] {
            let own = usize::from(inner != Bson::Int32(1));

            assert!(!is_too_deep(&nested(MAX_LEVELS - own, inner.clone())));
            assert!(is_too_deep(&nested(MAX_LEVELS + 1 - own, inner)));
        }
        assert!(TOO_DEEP.contains(&MAX_LEVELS.to_string()));
        let deep = |levels| doc! { "d": nested(levels, Bson::Null) };
        assert!(!is_document_too_deep(&deep(MAX_LEVELS - 1)));
        assert!(is_document_too_deep(&deep(MAX_LEVELS)));
    }
}
