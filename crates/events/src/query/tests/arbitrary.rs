//! Random conditions, as JSON and as Rust values.

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Decimal128, Document, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::operators;
use crate::query::date::DatePattern;
use crate::query::zone::Zone;
use crate::query::{
    Comparison, Condition, DateForm, DateTest, DeletionState, FieldName, Test, TextTest,
};

/// Names as a hostile client chooses them.
const NAMES: [&str; 14] = [
    "a",
    "state.x",
    "id",
    "aggregateId",
    "_id",
    "$where",
    "$expr",
    "$gt",
    "$oid",
    "$in",
    "a.$b",
    "",
    "a..b",
    "$elemMatch",
];

const FIELDS: [&str; 6] = ["f", "state.x", "id", "aggregateId", "_id", "Größe"];

const OPTIONS: [&str; 5] = ["ignoreCase", "zoneId", "datePattern", "extended", "other"];

fn name() -> impl Strategy<Value = String> + Clone {
    prop_oneof![4 => proptest::sample::select(&NAMES[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        "[a-z.*$^|(){}\\\\]{0,6}",
        any::<String>(),
        Just("UTC".to_owned()),
        Just("18:00".to_owned()),
        Just("yyyy-MM-dd".to_owned()),
        Just(r#"{"a":{"$gt":1}}"#.to_owned()),
    ]
}

/// Any JSON, with names that are operators or extended JSON.
fn any_json() -> impl Strategy<Value = Value> + Clone {
    let simple = prop_oneof![
        2 => text().prop_map(Value::from),
        2 => (-3_i64..100).prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    simple.prop_recursive(3, 16, 4, |inner| {
        let members = proptest::collection::vec((name(), inner.clone()), 0..3);
        prop_oneof![
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
            proptest::collection::vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
}

/// JSON with the members of a condition, most of them of a fitting kind.
pub(super) fn condition_json() -> impl Strategy<Value = Value> {
    let operator = prop_oneof![
        9 => proptest::sample::select(operators()).prop_map(Value::from),
        1 => any_json(),
    ];
    let field = prop_oneof![5 => name().prop_map(Value::from), 1 => any_json()];
    let option = prop_oneof![any::<bool>().prop_map(Value::from), text().prop_map(Value::from)];
    let options = proptest::collection::vec((proptest::sample::select(&OPTIONS[..]), option), 0..3)
        .prop_map(|options| {
            Value::Object(
                options.into_iter().map(|(name, option)| (name.to_owned(), option)).collect(),
            )
        });
    let members = (
        operator,
        proptest::option::of(field),
        proptest::option::of(any_json()),
        proptest::option::weighted(0.3, options),
    );
    let alone = members.prop_map(|(operator, field, value, options)| {
        let mut json = json!({ "operator": operator });
        for (name, member) in [("field", field), ("value", value), ("options", options)] {
            if let Some(member) = member {
                json[name] = member;
            }
        }
        json
    });
    alone.prop_recursive(4, 24, 4, |inner| {
        (inner.clone(), proptest::collection::vec(inner, 0..4)).prop_map(|(mut json, children)| {
            if json.get("value").is_some_and(Value::is_null) {
                json.as_object_mut().unwrap().remove("value");
            }
            json["children"] = children.into();
            json
        })
    })
}

/// Any value that a condition can compare with.
pub(super) fn value() -> impl Strategy<Value = Bson> + Clone {
    let simple = prop_oneof![
        3 => any::<i32>().prop_map(Bson::from),
        2 => any::<i64>().prop_map(Bson::from),
        3 => any::<f64>().prop_map(Bson::from),
        3 => text().prop_map(Bson::from),
        1 => any::<bool>().prop_map(Bson::from),
        1 => Just(Bson::Null),
        1 => any::<i64>().prop_map(|millis| DateTime::from_millis(millis).into()),
        1 => any::<[u8; 12]>().prop_map(|bytes| ObjectId::from_bytes(bytes).into()),
        1 => any::<i64>().prop_map(|number| number.to_string().parse::<Decimal128>().unwrap().into()),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(time, increment)| Timestamp { time, increment }.into()),
        1 => proptest::sample::select(vec![Bson::MinKey, Bson::MaxKey]),
    ];
    simple.prop_recursive(3, 12, 4, |inner| {
        // What is extended JSON by its names cannot be distinguished from a document.
        let members = proptest::collection::vec(("[a-z.]{0,3}", inner.clone()), 0..3);
        prop_oneof![
            members.prop_map(|members| Bson::Document(members.into_iter().collect())),
            proptest::collection::vec(inner, 0..4).prop_map(Bson::Array),
        ]
    })
}

/// A document of names that are operators, and values of JSON.
pub(super) fn hostile_value() -> impl Strategy<Value = Bson> + Clone {
    prop_oneof![value(), any_json().prop_map(super::json::plain),]
}

fn field() -> impl Strategy<Value = FieldName> + Clone {
    proptest::sample::select(&FIELDS[..]).prop_map(|name| FieldName::new(name).unwrap())
}

fn date() -> impl Strategy<Value = (DateTest, DateForm)> + Clone {
    let time = (0_i8..24, 0_i8..60, 0_i8..60, 0_i32..1_000_000_000);
    let test = prop_oneof![
        Just(DateTest::Today),
        Just(DateTest::Tomorrow),
        Just(DateTest::ThisWeek),
        Just(DateTest::NextWeek),
        Just(DateTest::LastWeek),
        Just(DateTest::ThisMonth),
        Just(DateTest::LastMonth),
        (1_u32..366_000).prop_map(DateTest::RecentDays),
        (1_u32..366_000).prop_map(DateTest::EarlierDays),
        time.prop_map(|(hour, minute, second, nanos)| {
            DateTest::BeforeToday(jiff::civil::time(hour, minute, second, nanos))
        }),
    ];
    let zone = proptest::sample::select(&["UTC", "Europe/Berlin", "+08:00", "Z", "UTC-3"][..])
        .prop_map(|name| Zone::new(name).unwrap());
    let pattern = proptest::option::of(
        proptest::sample::select(&["yyyy", "yyyy-MM-dd'T'HH:mm:ss.SSS"][..])
            .prop_map(|pattern| DatePattern::new(pattern).unwrap()),
    );
    (test, (zone, pattern)).prop_map(|(test, (zone, pattern))| (test, DateForm { zone, pattern }))
}

fn test(value: BoxedStrategy<Bson>, child: BoxedStrategy<Condition>) -> BoxedStrategy<Test> {
    use Comparison::{Eq, Gt, Gte, Lt, Lte, Ne};
    use TextTest::{Contains, EndsWith, StartsWith};
    let values = proptest::collection::vec(value.clone(), 0..4);
    let comparison = proptest::sample::select(&[Eq, Ne, Gt, Gte, Lt, Lte][..]);
    let text_test = proptest::sample::select(&[Contains, StartsWith, EndsWith][..]);
    prop_oneof![
        6 => (comparison, value.clone()).prop_map(|(by, value)| Test::Compare(by, value)),
        1 => (value.clone(), value).prop_map(|(first, last)| Test::Between(first, last)),
        1 => values.clone().prop_map(Test::In),
        1 => values.clone().prop_map(Test::NotIn),
        1 => values.prop_map(Test::AllIn),
        3 => (text_test, text().prop_map(|text| text.replace('\0', "")), any::<bool>())
            .prop_map(|(test, text, ignores_case)| Test::Text(test, text, ignores_case)),
        2 => child.prop_map(|child| Test::ElemMatch(Box::new(child))),
        1 => proptest::sample::select(vec![
            Test::Null, Test::NotNull, Test::True, Test::False, Test::Exists(true), Test::Exists(false)
        ]),
        3 => date().prop_map(|(test, form)| Test::Date(test, form)),
    ]
    .boxed()
}

/// Any condition with these values, of a size within the limits.
pub(super) fn condition(value: impl Strategy<Value = Bson> + 'static) -> BoxedStrategy<Condition> {
    let value = value.boxed();
    let ids = proptest::collection::vec(text(), 0..3);
    let raw = proptest::collection::vec(("[a-z]{1,3}", 0_i32..9), 0..3).prop_map(|members| {
        let size = |(name, size)| (name, bson::bson!({ "$size": size }));
        Condition::Raw(members.into_iter().map(size).collect::<Document>())
    });
    let of_field = |child: BoxedStrategy<Condition>| {
        (field(), test(value.clone(), child))
            .prop_map(|(field, test)| Condition::Field(field, test))
    };
    let alone = prop_oneof![
        1 => Just(Condition::All),
        1 => text().prop_map(Condition::Id),
        1 => ids.clone().prop_map(Condition::Ids),
        1 => text().prop_map(Condition::AggregateId),
        1 => ids.prop_map(Condition::AggregateIds),
        1 => text().prop_map(Condition::TenantId),
        1 => text().prop_map(Condition::OwnerId),
        1 => text().prop_map(Condition::SpaceId),
        1 => proptest::sample::select(vec![
            DeletionState::Active, DeletionState::Deleted, DeletionState::All
        ]).prop_map(Condition::Deleted),
        1 => raw,
        9 => of_field(Just(Condition::All).boxed()),
    ];
    let nested = alone.prop_recursive(4, 20, 4, move |inner| {
        let children = || proptest::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            children().prop_map(Condition::And),
            children().prop_map(Condition::Or),
            children().prop_map(Condition::Nor),
            (field(), inner.clone()).prop_map(|(field, child)| field.elem_match(child)),
        ]
    });
    let with_match = (nested.clone(), text())
        .prop_map(|(condition, text)| Condition::And(vec![condition, Condition::Match(text)]));
    prop_oneof![9 => nested, 1 => with_match].boxed()
}
