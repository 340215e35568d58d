//! Filters of MongoDB that a client writes itself.

use bson::{Bson, Document};

/// The operators that a raw filter may contain: they test fields by constants. None runs code
/// (`$where`, `$function`, `$accumulator`), computes (`$expr`) or sorts (`$near`).
pub(super) const OPERATORS: [&str; 24] = [
    "$all",
    "$and",
    "$bitsAllClear",
    "$bitsAllSet",
    "$bitsAnyClear",
    "$bitsAnySet",
    "$elemMatch",
    "$eq",
    "$exists",
    "$gt",
    "$gte",
    "$in",
    "$lt",
    "$lte",
    "$mod",
    "$ne",
    "$nin",
    "$nor",
    "$not",
    "$options",
    "$or",
    "$regex",
    "$size",
    "$type",
];

/// What a raw filter contains, for the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RawSize {
    /// Documents and operators.
    pub(super) nodes: usize,
    /// Levels of nesting.
    pub(super) levels: usize,
    /// Values in lists.
    pub(super) values: usize,
}

/// Checks a raw filter, at every depth.
///
/// # Errors
///
/// The first name that is not allowed.
pub(super) fn check(filter: &Document) -> Result<RawSize, String> {
    let mut size = RawSize::default();
    walk(filter, 1, &mut size)?;
    Ok(size)
}

fn walk(document: &Document, level: usize, size: &mut RawSize) -> Result<(), String> {
    size.nodes += 1;
    size.levels = size.levels.max(level);
    for (name, value) in document {
        if name.starts_with('$') && !OPERATORS.contains(&name.as_str()) {
            return Err(format!(
                "contains {name:?}, which is not allowed; allowed are {}",
                OPERATORS.join(" ")
            ));
        }
        if name.contains('\0') {
            return Err("contains U+0000 in a name, which BSON does not allow".to_owned());
        }
        walk_value(value, level, size)?;
    }
    Ok(())
}

fn walk_value(value: &Bson, level: usize, size: &mut RawSize) -> Result<(), String> {
    match value {
        Bson::Document(inner) => walk(inner, level + 1, size),
        Bson::Array(items) => {
            size.values += items.len();
            items.iter().try_for_each(|item| walk_value(item, level + 1, size))
        }
        Bson::JavaScriptCode(_) | Bson::JavaScriptCodeWithScope(_) => {
            Err("contains JavaScript, which is not allowed".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn operators_that_run_code_are_refused_at_every_depth() {
        for name in
            ["$where", "$function", "$accumulator", "$expr", "$near", "$text", "$comment", "$foo"]
        {
            for filter in [
                doc! { name: "x" },
                doc! { "a": { name: "x" } },
                doc! { "$and": [{ "a": 1 }, { "$or": [{ name: "x" }] }] },
                doc! { "a": { "$elemMatch": { "$not": { name: 1 } } } },
                doc! { "a": { "$in": [[{ name: 1 }]] } },
            ] {
                let refused = check(&filter).unwrap_err();
                assert!(refused.starts_with(&format!("contains {name:?}")), "{filter}: {refused}");
            }
        }
        let code = Bson::JavaScriptCode("sleep(1)".into());
        assert!(check(&doc! { "a": code }).is_err());
    }

    #[test]
    fn size_of_a_raw_filter_counts_documents_levels_and_values() {
        let filter = doc! { "$or": [{ "a": { "$in": [1, 2, 3] } }, { "b": 1 }] };

        assert_eq!(check(&filter), Ok(RawSize { nodes: 4, levels: 4, values: 5 }));
    }
}
