//! Reads bodies, queries and paths by serde, and collects all flaws.
//!
//! serde stops at the first error. The reader does not: it knows the requested type, so it adds the
//! flaw under the path of the field and continues with a placeholder of that type. A value counts only
//! without flaws.

use std::fmt;
use std::marker::PhantomData;

use bson::{Bson, Document};
use postrider_outbox::nesting::{MAX_LEVELS, TOO_DEEP};
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

use crate::Flaw;
use crate::integer::integral;
use crate::json::flaws::{FieldPath, FlawList};
use crate::json::tree::parse;

/// The form of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As JSON.
    Json,
    /// As strings, in a query or a path.
    Strings,
}

/// A body.
pub trait Request: DeserializeOwned {
    /// The flaws of members in combination. Placeholders count as present.
    fn conflicts(&self) -> Vec<Flaw> {
        Vec::new()
    }
}

/// Why a text is not the requested body.
#[derive(Debug)]
pub enum BodyError {
    /// It is not JSON. The error names the position and quotes nothing.
    Syntax(serde_json::Error),
    /// It is not an object of this form.
    Invalid(Vec<Flaw>),
}

/// Reads a body from a JSON text, in which `members` replace those of the same name.
///
/// # Errors
///
/// [`BodyError`], with all flaws.
pub fn read_body<T: Request>(text: &str, members: Document) -> Result<T, BodyError> {
    read_completed(text, |body| {
        body.extend(members);
        Vec::new()
    })
}

/// Reads a body from a JSON text, after `complete` has added members that are known otherwise, and found
/// flaws.
///
/// # Errors
///
/// [`BodyError`], with all flaws.
pub fn read_completed<T: Request>(
    text: &str,
    complete: impl FnOnce(&mut Document) -> Vec<Flaw>,
) -> Result<T, BodyError> {
    let (value, mut flaws) = parse(text).map_err(BodyError::Syntax)?;
    let Bson::Document(mut body) = value else {
        return Err(BodyError::Invalid(vec![Flaw::new("", "the body must be an object")]));
    };
    flaws.extend(complete(&mut body));
    read_with(body, Form::Json, flaws, T::conflicts).map_err(BodyError::Invalid)
}

/// Reads the members of a query or of a path, and of an object with [`Form::Json`].
///
/// # Errors
///
/// All flaws, after those that are known already.
pub fn read<T: DeserializeOwned>(
    members: Document,
    form: Form,
    flaws: Vec<Flaw>,
) -> Result<T, Vec<Flaw>> {
    read_with(members, form, flaws, |_| Vec::new())
}

fn read_with<T: DeserializeOwned>(
    members: Document,
    form: Form,
    flaws: Vec<Flaw>,
    conflicts: fn(&T) -> Vec<Flaw>,
) -> Result<T, Vec<Flaw>> {
    let flaws = FlawList::from(flaws);
    let place = Place { path: FieldPath::Body, form, level: 0, flaws: Some(&flaws) };
    let reader = Reader { value: Some(Bson::Document(members)), place };
    let read = T::deserialize(reader).map_err(|error| error.note(FieldPath::Body, Some(&flaws)));
    for Flaw { field, detail } in read.iter().flat_map(conflicts) {
        flaws.add(FieldPath::Field(&FieldPath::Body, &field), || detail);
    }
    match (read, flaws.into_report()) {
        (Ok(value), flaws) if flaws.is_empty() => Ok(value),
        (_, flaws) => Err(flaws),
    }
}

/// Reads a field by a rule. A value that breaks it is a flaw, and is replaced by the default.
///
/// # Errors
///
/// Errors of the deserializer; none if it is a reader.
pub fn checked<'de, D, R, T>(
    from: D,
    rule: impl FnOnce(R) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    R: Deserialize<'de>,
    T: Default,
{
    let value =
        from.deserialize_tuple_struct(ALWAYS_PRESENT, 1, OneValue { rule, raw: PhantomData })?;
    Ok(value.unwrap_or_default())
}

/// Reads a field that may be absent, and whose null is a value.
///
/// # Errors
///
/// Errors of the deserializer; none if it is a reader.
pub fn if_present<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    from.deserialize_tuple_struct(IF_PRESENT, 1, OneValue { rule: Ok, raw: PhantomData })
}

/// Names by which a type requests a sequence of one value from the reader: it is empty for an invalid
/// value and, with `IF_PRESENT`, for an absent field.
const ALWAYS_PRESENT: &str = "postrider::always";
const IF_PRESENT: &str = "postrider::if_present";

struct OneValue<F, R> {
    rule: F,
    raw: PhantomData<R>,
}

impl<'de, R: Deserialize<'de>, T, F: FnOnce(R) -> Result<T, String>> Visitor<'de>
    for OneValue<F, R>
{
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Option<T>, A::Error> {
        from.next_element_seed(self)
    }
}

impl<'de, R: Deserialize<'de>, T, F: FnOnce(R) -> Result<T, String>> DeserializeSeed<'de>
    for OneValue<F, R>
{
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        (self.rule)(R::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// An invalid field, with the detail until it is in the list.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("invalid"))]
struct Refused(Option<String>);

impl de::Error for Refused {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self(Some(reason.to_string()))
    }
}

impl Refused {
    /// Adds the detail to the list, once.
    fn note(self, path: FieldPath<'_>, flaws: Option<&FlawList>) -> Self {
        if let (Some(detail), Some(flaws)) = (self.0, flaws) {
            flaws.add(path, || detail);
        }
        Self(None)
    }
}

/// The position of a value.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: FieldPath<'a>,
    form: Form,
    /// The depth within a value without a type.
    level: usize,
    /// Not set below an invalid value.
    flaws: Option<&'a FlawList>,
}

/// One value, which may be absent.
struct Reader<'a> {
    value: Option<Bson>,
    place: Place<'a>,
}

impl<'a> Reader<'a> {
    fn add_flaw(&self, detail: &str) {
        let detail = if self.value.is_none() { "is missing" } else { detail };
        if let Some(flaws) = self.place.flaws {
            flaws.add(self.place.path, || detail.to_owned());
        }
    }

    /// Reads by a seed, and adds the flaw if it refuses the value.
    fn read<'de, S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Refused> {
        let Place { path, flaws, .. } = self.place;
        seed.deserialize(self).map_err(|refused| refused.note(path, flaws))
    }

    fn string(self, otherwise: &str) -> String {
        match self.value {
            Some(Bson::String(text)) => text,
            _ => {
                self.add_flaw(otherwise);
                String::new()
            }
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let is_level = matches!(self.value, Some(Bson::Array(_) | Bson::Document(_)));
        if is_level && self.place.level >= MAX_LEVELS {
            self.add_flaw(TOO_DEEP);
            return visitor.visit_unit();
        }
        let place = Place { level: self.place.level + 1, ..self.place };
        match self.value {
            None => {
                self.add_flaw("");
                visitor.visit_unit()
            }
            Some(Bson::Boolean(value)) => visitor.visit_bool(value),
            Some(Bson::Int32(integer)) => visitor.visit_i64(integer.into()),
            Some(Bson::Int64(integer)) => visitor.visit_i64(integer),
            Some(Bson::Double(float)) => visitor.visit_f64(float),
            Some(Bson::String(text)) => visitor.visit_string(text),
            Some(Bson::Array(items)) => {
                let items = items.into_iter().enumerate();
                visitor.visit_seq(ItemAccess { items, place: &place })
            }
            Some(Bson::Document(members)) => visitor.visit_map(MemberAccess {
                present: members.into_iter(),
                known: None,
                absent: Vec::new(),
                next: None,
                place: &place,
            }),
            Some(Bson::Decimal128(decimal)) => visitor.visit_bytes(&decimal.bytes()),
            // JSON has no other types.
            Some(_) => visitor.visit_unit(),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_string(self.string("must be a string"))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let value = match (&self.value, self.place.form) {
            (Some(Bson::Boolean(value)), _) => Some(*value),
            (Some(Bson::String(text)), Form::Strings) => text.parse().ok(),
            _ => None,
        };
        if value.is_none() {
            self.add_flaw("must be true or false");
        }
        visitor.visit_bool(value.unwrap_or_default())
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let value = match (&self.value, self.place.form) {
            (Some(Bson::String(text)), Form::Strings) => text.parse().ok(),
            (Some(value), _) => integral(value),
            (None, _) => None,
        };
        if value.is_none() {
            self.add_flaw("must be an integer");
        }
        visitor.visit_i64(value.unwrap_or_default())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.value {
            None | Some(Bson::Null) => visitor.visit_none(),
            Some(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let is_absent = name == IF_PRESENT && self.value.is_none();
        visitor.visit_seq(Once((!is_absent).then_some(self)))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if !matches!(self.value, Some(Bson::Array(_))) {
            self.add_flaw("must be an array");
            return visitor.visit_seq(Once(None));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let word = match &self.value {
            Some(Bson::String(text)) => words.iter().find(|word| *word == text),
            _ => None,
        };
        if word.is_none() {
            self.add_flaw(&format!("must be one of {}", words.join(", ")));
        }
        let word: StrDeserializer<'_, Refused> =
            word.or(words.first()).copied().unwrap_or_default().into_deserializer();
        visitor.visit_enum(word)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let mut place = Place { level: 0, ..self.place };
        let members = match self.value {
            Some(Bson::Document(members)) => members,
            _ => {
                self.add_flaw("must be an object");
                place.flaws = None;
                Document::new()
            }
        };
        let absent = known.iter().filter(|name| !members.contains_key(name)).rev();
        visitor.visit_map(MemberAccess {
            absent: absent.copied().collect(),
            present: members.into_iter(),
            known: Some(known),
            next: None,
            place: &place,
        })
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple map
        identifier ignored_any
    }
}

impl<'a> Place<'a> {
    /// Whether no further flaws are reported, so that reading can end.
    fn is_full(&self) -> bool {
        self.flaws.is_some_and(FlawList::is_full)
    }

    fn member(&'a self, name: &'a str, value: Option<Bson>) -> Reader<'a> {
        Reader { value, place: Self { path: FieldPath::Field(&self.path, name), ..*self } }
    }
}

struct Once<'a>(Option<Reader<'a>>);

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Refused;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Refused> {
        // The type has a default.
        Ok(self.0.take().and_then(|reader| reader.read(seed).ok()))
    }
}

struct ItemAccess<'a, I> {
    items: I,
    place: &'a Place<'a>,
}

impl<'de, I: Iterator<Item = (usize, Bson)>> SeqAccess<'de> for ItemAccess<'_, I> {
    type Error = Refused;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Refused> {
        let next = self.items.next().filter(|_| !self.place.is_full());
        let Some((index, item)) = next else { return Ok(None) };
        let place = Place { path: FieldPath::Item(&self.place.path, index), ..*self.place };
        Reader { value: Some(item), place }.read(seed).map(Some)
    }
}

/// The present members in their order, then the absent ones.
struct MemberAccess<'a, I> {
    present: I,
    /// The known names; without them all names are.
    known: Option<&'static [&'static str]>,
    /// The absent known names, the last one first.
    absent: Vec<&'static str>,
    next: Option<(String, Option<Bson>)>,
    place: &'a Place<'a>,
}

impl<'de, I: Iterator<Item = (String, Bson)>> MapAccess<'de> for MemberAccess<'_, I> {
    type Error = Refused;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Refused> {
        while let Some((name, value)) = self.present.next().filter(|_| !self.place.is_full()) {
            if self.known.is_none_or(|known| known.contains(&name.as_str())) {
                let key: StrDeserializer<'_, Refused> = name.as_str().into_deserializer();
                let key = seed.deserialize(key);
                self.next = Some((name, Some(value)));
                return key.map(Some);
            }
            let unknown = match self.place.form {
                Form::Json => "unknown field",
                Form::Strings => "unknown parameter",
            };
            self.place.member(&name, Some(value)).add_flaw(unknown);
        }
        let Some(name) = self.absent.pop() else { return Ok(None) };
        self.next = Some((name.to_owned(), None));
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Refused> {
        let (name, value) = self.next.take().unwrap_or_default();
        self.place.member(&name, value).read(seed)
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use serde::Deserialize;

    use super::*;
    use crate::json::{IdText, Json, JsonObject, Time};

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Order {
        id: IdText,
        placed_at: Option<Time>,
        is_paid: Option<bool>,
        lines: Vec<Line>,
        #[serde(deserialize_with = "if_present")]
        note: Option<Json>,
        kind: Option<Kind>,
    }

    impl Request for Order {}

    #[derive(Debug, Deserialize, PartialEq)]
    struct Line {
        count: i64,
        item: JsonObject,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        New,
        Old,
    }

    fn fields(members: Document) -> Vec<String> {
        let flaws = read::<Order>(members, Form::Json, Vec::new()).unwrap_err();
        flaws.into_iter().map(|flaw| flaw.field).collect()
    }

    #[test]
    fn valid_body_is_read() {
        let members = doc! {
            "id": "o", "placedAt": 1e3, "isPaid": Bson::Null, "note": Bson::Null, "kind": "old",
            "lines": [{ "count": 2.0, "item": { "$oid": "x" } }],
        };

        let order: Order = read(members, Form::Json, Vec::new()).unwrap();

        assert_eq!((order.id.as_str(), order.is_paid), ("o", None));
        assert_eq!(order.placed_at.unwrap().millis(), 1_000);
        assert_eq!(order.lines[0], Line { count: 2, item: JsonObject(doc! { "$oid": "x" }) });
        assert_eq!((order.note, order.kind), (Some(Json(Bson::Null)), Some(Kind::Old)));
    }

    #[test]
    fn all_flaws_are_reported_once_by_path() {
        assert_eq!(fields(doc! {}), ["id", "lines"]);
        assert_eq!(
            fields(doc! {
                "id": "", "placedAt": "soon", "isPaid": "true", "kind": "odd", "other": 1,
                "lines": [5, { "count": 1.5, "item": [] , "x": 1 }, {}],
            }),
            [
                "id",
                "placedAt",
                "isPaid",
                "kind",
                "other",
                "lines[0]",
                "lines[1].count",
                "lines[1].item",
                "lines[1].x",
                "lines[2].count",
                "lines[2].item",
            ]
        );
        assert_eq!(fields(doc! { "id": Bson::Null, "lines": {} }), ["id", "lines"]);
    }

    #[test]
    fn values_nested_too_deep_are_reported_by_path() {
        let nested = |levels| (0..levels).fold(Bson::Int32(1), |inner, _| Bson::Array(vec![inner]));
        let order = |note: Bson| doc! { "id": "o", "lines": [], "note": note };

        assert!(read::<Order>(order(nested(100)), Form::Json, Vec::new()).is_ok());
        let deep = read::<Order>(order(nested(101)), Form::Json, Vec::new()).unwrap_err();
        assert!(deep[0].field.starts_with("note[0][0]") && deep.len() == 1, "{deep:?}");
        let twice = Bson::Array(vec![nested(101), Bson::Int32(1), nested(102)]);
        let deep = read::<Order>(order(twice), Form::Json, Vec::new()).unwrap_err();
        let begins: Vec<&str> = deep.iter().map(|flaw| &flaw.field[..10]).collect();
        assert_eq!(begins, ["note[0][0]", "note[2][0]"]);
    }

    #[test]
    fn decimals_are_read_as_any_json_only() {
        let decimal = Bson::Decimal128("123456789012345.6789".parse().unwrap());
        let members = doc! { "id": "o", "lines": [], "note": { "all": [decimal.clone()] } };

        let order: Order = read(members, Form::Json, Vec::new()).unwrap();

        assert_eq!(order.note, Some(Json(bson::bson!({ "all": [decimal.clone()] }))));
        let wrong = doc! { "id": decimal.clone(), "placedAt": decimal.clone(), "isPaid": decimal.clone(), "lines": decimal };
        assert_eq!(fields(wrong), ["id", "placedAt", "isPaid", "lines"]);
    }

    #[test]
    fn at_most_100_flaws_of_a_body_are_reported() {
        let of = |lines: usize| doc! { "id": "o", "lines": vec![Bson::Int32(1); lines] };

        assert_eq!(fields(of(100)).len(), 100);
        for lines in [101, 100_000] {
            let flaws = read::<Order>(of(lines), Form::Json, Vec::new()).unwrap_err();

            assert_eq!((flaws.len(), &*flaws[99].field), (101, "lines[99]"));
            assert_eq!(
                flaws[100],
                Flaw::new("", "has more errors; only the first 100 are reported")
            );
        }
        let text = format!("{{\"id\":[{}]}}", vec!["1e400"; 300].join(","));
        let Err(BodyError::Invalid(flaws)) = read_body::<Order>(&text, Document::new()) else {
            panic!("the body is invalid")
        };
        assert_eq!((flaws.len(), &*flaws[99].field), (101, "id[99]"));
    }

    #[test]
    fn strings_are_read_as_the_requested_type() {
        #[derive(Debug, Deserialize)]
        struct Query {
            limit: Option<i64>,
            dry: Option<bool>,
        }
        let members = doc! { "limit": "7", "dry": "true" };

        let query: Query = read(members, Form::Strings, Vec::new()).unwrap();

        assert_eq!((query.limit, query.dry), (Some(7), Some(true)));
        let wrong = doc! { "limit": "x", "dry": "", "z": "" };
        assert_eq!(read::<Query>(wrong, Form::Strings, Vec::new()).unwrap_err().len(), 3);
    }
}
