//! What of a condition the keys of an index bound.

use bson::{Bson, Document, doc};

use super::compile::{DELETED, escaped};
use super::read::{IndexRead, Read};

/// A part of a condition: whatever meets the condition meets it too, and MongoDB finds it by the keys of
/// an index alone, so it reads no more documents than it finds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bounds {
    /// The filter.
    pub(super) filter: Document,
    /// Whether the index is read for single values, not for a range.
    pub(super) is_points: bool,
}

/// The bounds of a condition in what one plan reads; `None` without any.
pub(super) fn bounds(filter: &Document, read: &Read) -> Option<Bounds> {
    let mut all = Conjunction::default();
    all.add(filter, "");
    if read.is_text {
        let filter = doc! { "$text": all.text?.clone() };
        return Some(Bounds { filter, is_points: false });
    }
    all.bounds(&read.indexes)
}

/// Tests that must all be true.
#[derive(Debug, Default)]
struct Conjunction<'f> {
    /// Each with the path of its field.
    tests: Vec<(String, &'f Bson)>,
    /// Of each, one must be true.
    alternatives: Vec<&'f [Bson]>,
    text: Option<&'f Bson>,
}

impl<'f> Conjunction<'f> {
    fn add(&mut self, filter: &'f Document, prefix: &str) {
        for (name, value) in filter {
            match (name.as_str(), value) {
                ("$and", Bson::Array(children)) => {
                    let children = children.iter().filter_map(Bson::as_document);
                    children.for_each(|child| self.add(child, prefix));
                }
                ("$or", Bson::Array(children)) if prefix.is_empty() => {
                    self.alternatives.push(children);
                }
                ("$text", text) => self.text = Some(text),
                (name, _) if name.starts_with('$') => {}
                (name, value) => {
                    let path = format!("{prefix}{name}");
                    let element = value.as_document().and_then(|test| test.get("$elemMatch"));
                    match element {
                        Some(test) if is_operators(test) => self.tests.push((path, test)),
                        Some(Bson::Document(fields)) => self.add(fields, &format!("{path}.")),
                        _ => {}
                    }
                    // An `$elemMatch` may be one of several operators.
                    self.tests.push((format!("{prefix}{name}"), value));
                }
            }
        }
    }

    fn bounds(&self, indexes: &[IndexRead]) -> Option<Bounds> {
        let of_index = indexes.iter().find_map(|index| self.in_index(index));
        of_index.or_else(|| self.alternatives.iter().find_map(|some| either(some, indexes)))
    }

    /// Bounds of the first fields of an index: up to the first one that is not bounded to one value.
    fn in_index(&self, index: &IndexRead) -> Option<Bounds> {
        let mut tests = Vec::new();
        // What nearly all documents have bounds nothing.
        let is_usual = |field: &str, test: &Bson| field == DELETED && *test == Bson::Boolean(false);
        let mut is_points = None;
        for field in &index.fields {
            let of_field = || self.tests.iter().filter(|(path, _)| path == field);
            match of_field().find_map(|(_, test)| point(test)) {
                Some(Point::One(value)) => {
                    if !is_usual(field, &value) {
                        is_points.get_or_insert(true);
                    }
                    tests.push(doc! { field: { "$eq": value } });
                }
                Some(Point::Some(values)) => {
                    is_points.get_or_insert(true);
                    tests.push(doc! { field: { "$in": values } });
                    break;
                }
                None => {
                    let mut ranges: Vec<Document> =
                        of_field().flat_map(|(_, test)| ranges(test)).collect();
                    if ranges.is_empty() {
                        break;
                    }
                    if ranges.iter().any(|range| !range.contains_key("$type")) {
                        ranges.retain(|range| !range.contains_key("$type"));
                    }
                    // Of an array different elements may meet two of them, so MongoDB uses one.
                    ranges.truncate(if index.is_multikey { 1 } else { usize::MAX });
                    is_points.get_or_insert(false);
                    tests.extend(ranges.into_iter().map(|range| doc! { field: range }));
                    break;
                }
            }
        }
        if tests.is_empty() {
            return None;
        }
        tests.extend(index.partial.clone());
        Some(Bounds { filter: doc! { "$and": tests }, is_points: is_points.unwrap_or(false) })
    }
}

/// Bounds of each of the alternatives.
fn either(children: &[Bson], indexes: &[IndexRead]) -> Option<Bounds> {
    let of_child = |child: &Bson| {
        let mut all = Conjunction::default();
        all.add(child.as_document()?, "");
        all.bounds(indexes)
    };
    let all = children.iter().map(of_child).collect::<Option<Vec<Bounds>>>()?;
    let is_points = all.iter().all(|bounds| bounds.is_points);
    let filters: Vec<Document> = all.into_iter().map(|bounds| bounds.filter).collect();
    (!filters.is_empty()).then(|| Bounds { filter: doc! { "$or": filters }, is_points })
}

enum Point {
    One(Bson),
    Some(Vec<Bson>),
}

/// The values that a test permits.
fn point(test: &Bson) -> Option<Point> {
    if !is_operators(test) {
        return is_plain(test).then(|| Point::One(test.clone()));
    }
    let test = test.as_document()?;
    if let Some(value) = test.get("$eq").filter(|value| is_plain(value)) {
        return Some(Point::One(value.clone()));
    }
    if let Some(Bson::Array(values)) = test.get("$in")
        && values.iter().all(is_plain)
    {
        return Some(Point::Some(values.clone()));
    }
    if test.get("$exists") == Some(&Bson::Boolean(false)) {
        return Some(Point::One(Bson::Null));
    }
    match test.get("$all") {
        Some(Bson::Array(values)) => {
            let first = values.first().filter(|value| is_plain(value) && !is_operators(value))?;
            Some(Point::One(first.clone()))
        }
        _ => None,
    }
}

/// The ranges that a test permits; all of them must hold.
fn ranges(test: &Bson) -> Vec<Document> {
    let Some(test) = test.as_document().filter(|_| is_operators(test)) else { return Vec::new() };
    let range = |(operator, value): (&String, &Bson)| match (operator.as_str(), value) {
        ("$gt" | "$gte" | "$lt" | "$lte", value) if is_plain(value) => {
            Some(doc! { operator: value })
        }
        ("$regex", Bson::String(pattern)) if !test.contains_key("$options") => {
            let prefix = literal_prefix(pattern)?;
            Some(doc! { "$regex": format!("^{}", escaped(&prefix)) })
        }
        ("$type", kinds) => Some(doc! { "$type": type_bracket(kinds)? }),
        _ => None,
    };
    test.iter().filter_map(range).collect()
}

/// Whether a document holds operators, not fields.
fn is_operators(test: &Bson) -> bool {
    let combines = |name: &str| ["$and", "$or", "$nor"].contains(&name);
    let first = test.as_document().and_then(|test| test.keys().next());
    first.is_some_and(|name| name.starts_with('$') && !combines(name))
}

/// Whether an index has a value as one key: not an array, which has one per element.
fn is_plain(value: &Bson) -> bool {
    !matches!(value, Bson::Array(_) | Bson::RegularExpression(_))
}

/// The text with which every text begins that a pattern matches; `None` if there is none.
fn literal_prefix(pattern: &str) -> Option<String> {
    let mut rest = pattern.strip_prefix('^')?.chars().peekable();
    let (mut prefix, mut is_alternative) = (String::new(), false);
    while let Some(next) = rest.next() {
        let literal = match next {
            '\\' => match rest.next_if(|escaped| !escaped.is_alphanumeric()) {
                Some(escaped) => escaped,
                None => break,
            },
            '|' => {
                is_alternative = true;
                break;
            }
            '^' | '$' | '.' | '?' | '*' | '+' | '(' | ')' | '[' | ']' | '{' | '}' => break,
            literal => literal,
        };
        if rest.peek().is_some_and(|next| "?*+{".contains(*next)) {
            break;
        }
        prefix.push(literal);
    }
    let has_bar = is_alternative || rest.any(|next| next == '|');
    (!prefix.is_empty() && !has_bar).then_some(prefix)
}

/// The types whose keys an index keeps together with those of these types.
fn type_bracket(kinds: &Bson) -> Option<Bson> {
    let one = |kind: &Bson| {
        let number = match kind {
            Bson::Int32(number) => Some(i64::from(*number)),
            Bson::Int64(number) => Some(*number),
            Bson::Double(number) if number.fract() == 0.0 => Some(*number as i64),
            _ => None,
        };
        match (kind, number) {
            (Bson::String(name), _) => match name.as_str() {
                "array" => None,
                "int" | "long" | "double" | "decimal" | "number" => Some("number".into()),
                "string" | "symbol" => Some("string".into()),
                _ => Some(kind.clone()),
            },
            (_, Some(1 | 16 | 18 | 19)) => Some("number".into()),
            (_, Some(2 | 14)) => Some("string".into()),
            (_, Some(4) | None) => None,
            (_, Some(_)) => Some(kind.clone()),
        }
    };
    match kinds {
        Bson::Array(kinds) => kinds.iter().map(one).collect::<Option<Vec<Bson>>>().map(Bson::Array),
        kind => one(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(fields: &[&str]) -> IndexRead {
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        IndexRead { fields, ..IndexRead::default() }
    }

    fn found(filter: &Document, indexes: Vec<IndexRead>) -> Option<(Document, bool)> {
        let read = Read { indexes, is_text: false, is_sorted: false };
        bounds(filter, &read).map(|Bounds { filter, is_points }| (filter, is_points))
    }

    #[test]
    fn bounds_end_with_the_first_field_that_is_not_bounded_to_one_value() {
        let filter = doc! { "$and": [
            { "c": { "$gt": 1 } }, { "a": "x" }, { "b": { "$gte": 1 } }, { "b": { "$lt": 5 } }, { "a": { "$gt": 0 } },
        ] };

        let bounds = found(&filter, vec![index(&["a", "b", "c"])]);
        let of_range = found(&filter, vec![index(&["b", "a"])]);

        let a = doc! { "a": { "$eq": "x" } };
        let b = [doc! { "b": { "$gte": 1 } }, doc! { "b": { "$lt": 5 } }];
        assert_eq!(bounds, Some((doc! { "$and": [&a, &b[0], &b[1]] }, true)));
        assert_eq!(of_range, Some((doc! { "$and": [&b[0], &b[1]] }, false)));
        assert_eq!(found(&filter, vec![index(&["d", "a"])]), None);
        let multikey = IndexRead { is_multikey: true, ..index(&["b"]) };
        assert_eq!(found(&filter, vec![multikey]), Some((doc! { "$and": [&b[0]] }, false)));
    }

    #[test]
    fn an_or_is_bounded_if_each_of_its_children_is() {
        let both = || vec![index(&["a"]), index(&["b"])];
        let a = doc! { "a": 1, "x": 2 };
        let b = doc! { "$and": [{ "b": { "$in": [1, 2] } }, { "x": { "$gt": 1 } }] };

        let or = found(&doc! { "x": 1, "$or": [&a, &b] }, both());
        let open = found(&doc! { "$or": [&a, &b, { "x": 1 }] }, both());

        let filters = [
            doc! { "$and": [{ "a": { "$eq": 1 } }] },
            doc! { "$and": [{ "b": { "$in": [1, 2] } }] },
        ];
        assert_eq!(or, Some((doc! { "$or": filters.to_vec() }, true)));
        assert_eq!(open, None);
        assert_eq!(found(&doc! { "$nor": [{ "a": 1 }] }, both()), None);
    }

    #[test]
    fn what_an_index_cannot_find_by_its_keys_bounds_nothing() {
        for test in [
            doc! { "$ne": 1 },
            doc! { "$nin": [1] },
            doc! { "$eq": [1, 2] },
            doc! { "$in": [1, Bson::Array(vec![])] },
            doc! { "$regex": "x" },
            doc! { "$regex": "^x", "$options": "i" },
            doc! { "$regex": "^.x" },
            doc! { "$regex": "^x?" },
            doc! { "$regex": "^x|y" },
            doc! { "$type": "array" },
            doc! { "$exists": true },
            doc! { "$not": { "$gt": 1 } },
            doc! { "$all": [{ "$elemMatch": { "b": 1 } }] },
        ] {
            assert_eq!(found(&doc! { "a": &test }, vec![index(&["a"])]), None, "{test}");
        }
        for (test, bounds) in [
            (doc! { "$regex": "^x\\.y.*z" }, doc! { "$regex": "^x\\.y" }),
            (doc! { "$regex": "^x\\|" }, doc! { "$regex": "^x\\|" }),
            (doc! { "$type": ["int", "double"] }, doc! { "$type": ["number", "number"] }),
            (doc! { "$exists": false }, doc! { "$eq": Bson::Null }),
            (doc! { "$all": ["x", "y"] }, doc! { "$eq": "x" }),
            (doc! { "$elemMatch": { "$gt": 1 } }, doc! { "$gt": 1 }),
        ] {
            let bounds = doc! { "$and": [{ "a": bounds }] };
            let found = found(&doc! { "a": &test }, vec![index(&["a"])]);
            assert_eq!(found.map(|(filter, _)| filter), Some(bounds), "{test}");
        }
        let element = doc! { "a": { "$elemMatch": { "$and": [{ "b": 1 }] } } };
        let bounds = doc! { "$and": [{ "a.b": { "$eq": 1 } }] };
        assert_eq!(found(&element, vec![index(&["a.b"])]), Some((bounds, true)));
    }

    /// Nearly all snapshots are not deleted.
    #[test]
    fn that_a_snapshot_is_not_deleted_bounds_nothing() {
        let filter = doc! { "$and": [{ "deleted": false }, { "_id": { "$gte": "" } }] };

        let bounds = found(&filter, vec![index(&["deleted", "_id"])]).unwrap();

        assert!(!bounds.1);
        assert_eq!(bounds.0.get_array("$and").unwrap().len(), 2);
    }
}
