//! Random conditions on random documents: MongoDB finds what the evaluator finds.

use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, Timestamp, doc};
use postrider::events::query::{Comparison, Condition, DeletionState, Target, Test, TextTest};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::evaluator::matches;
use crate::world::{World, field, found};

const DOCUMENTS: i32 = 150;
const CONDITIONS: usize = 1_200;
/// Enough on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(20);

const NAMES: [&str; 5] = ["a", "b", "0", "$gt", "tenantId"];
const PATHS: [&str; 14] = [
    "a",
    "b",
    "a.b",
    "b.a",
    "a.a",
    "a.0",
    "a.1",
    "a.0.a",
    "a.b.a",
    "b.0.b",
    "tenantId",
    "_id",
    "id",
    "aggregateId",
];
const TEXTS: [&str; 12] =
    ["", "a", "A", "ab", "b\n", "a.b", "axb", "É", "éa", "$x", "a\nb", "tenant"];

struct Generator(StdRng);

impl Generator {
    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.0).unwrap()
    }

    fn text(&mut self) -> String {
        self.any(&TEXTS).to_owned()
    }

    fn decimal(&mut self) -> Decimal128 {
        let digits =
            self.any(&["0.1", "0.5", "1", "2", "-0", "NaN", "Infinity", "9007199254740993"]);
        digits.parse().unwrap()
    }

    fn simple(&mut self) -> Bson {
        match self.0.random_range(0..22) {
            0..4 => self.any(&[0, 1, 2, -1]).into(),
            4 => self.any(&[1_i64, 2, 9_007_199_254_740_993, i64::MAX, i64::MIN]).into(),
            5 | 6 => self.any(&[0.0, -0.0, 0.1, 0.5, 1.0, 2.0, f64::NAN]).into(),
            7 => {
                self.any(&[f64::INFINITY, f64::NEG_INFINITY, 9_007_199_254_740_992.0, 1e300]).into()
            }
            8 => self.decimal().into(),
            9..13 => self.text().into(),
            13 | 14 => Bson::Boolean(self.0.random()),
            15..18 => Bson::Null,
            18 => DateTime::from_millis(self.any(&[0, 1, -1])).into(),
            19 => Timestamp { time: self.any(&[1, 2]), increment: 1 }.into(),
            20 => ObjectId::from_bytes([self.any(&[0, 1]); 12]).into(),
            _ => {
                let subtype = self.any(&[BinarySubtype::Generic, BinarySubtype::Uuid]);
                let bytes =
                    vec![self.any(&[0, 1]); if subtype == BinarySubtype::Uuid { 16 } else { 2 }];
                Binary { subtype, bytes }.into()
            }
        }
    }

    /// A value, at most so deep.
    fn value(&mut self, levels: u32) -> Bson {
        match self.0.random_range(0..10) {
            0 | 1 if levels > 0 => self.document(levels - 1).into(),
            2..5 if levels > 0 => {
                let items = self.0.random_range(0..4);
                Bson::Array((0..items).map(|_| self.value(levels - 1)).collect())
            }
            _ => self.simple(),
        }
    }

    fn document(&mut self, levels: u32) -> Document {
        let fields = self.0.random_range(0..3);
        (0..fields).map(|_| (self.any(&NAMES).to_owned(), self.value(levels))).collect()
    }

    fn stored(&mut self, id: i32) -> Document {
        let mut document = doc! { "_id": if id % 10 == 0 { self.unique(id) } else { id.into() } };
        for name in ["a", "b", "tenantId", "deleted", "aggregateId", "id"] {
            let (levels, is_there) = match name {
                "a" | "b" => (3, self.0.random_range(0..8) > 0),
                _ => (1, self.0.random_range(0..3) > 0),
            };
            if is_there {
                let is_flag = name == "deleted" && self.0.random_range(0..4) > 0;
                let value = if is_flag {
                    Bson::Boolean(self.0.random_range(0..4) == 0)
                } else {
                    self.value(levels)
                };
                document.insert(name, value);
            }
        }
        // MinKey and MaxKey are only stored: as operands of `$gt` they have no bracket.
        if id % 25 == 0 {
            document.insert("a", if id % 2 == 0 { Bson::MinKey } else { Bson::MaxKey });
        }
        document
    }

    /// An id that is not a number, but has the number of its document.
    fn unique(&mut self, id: i32) -> Bson {
        match self.0.random_range(0..3) {
            0 => format!("{id}").into(),
            1 => bson::bson!({ "a": id }),
            _ => DateTime::from_millis(id.into()).into(),
        }
    }

    fn values(&mut self) -> Vec<Bson> {
        let count = self.0.random_range(0..4);
        (0..count).map(|_| self.value(2)).collect()
    }

    fn test(&mut self, levels: u32) -> Test {
        use Comparison::{Eq, Gt, Gte, Lt, Lte, Ne};
        match self.0.random_range(0..16) {
            0..5 => Test::Compare(self.any(&[Eq, Ne, Gt, Gte, Lt, Lte]), self.value(2)),
            5 => Test::Between(self.value(1), self.value(1)),
            6 => Test::In(self.values()),
            7 => Test::NotIn(self.values()),
            8 => Test::AllIn(self.values()),
            9 | 10 => {
                let test =
                    self.any(&[TextTest::Contains, TextTest::StartsWith, TextTest::EndsWith]);
                Test::Text(test, self.text(), self.0.random())
            }
            11 | 12 if levels > 0 => Test::ElemMatch(Box::new(self.condition(levels - 1))),
            13 => self.any(&[&Test::Null, &Test::NotNull]).clone(),
            14 => self.any(&[&Test::True, &Test::False]).clone(),
            _ => Test::Exists(self.0.random()),
        }
    }

    fn condition(&mut self, levels: u32) -> Condition {
        let children = |generator: &mut Self| {
            let count = generator.0.random_range(1..4);
            (0..count).map(|_| generator.condition(levels - 1)).collect()
        };
        match self.0.random_range(0..24) {
            0..3 if levels > 0 => Condition::And(children(self)),
            3..6 if levels > 0 => Condition::Or(children(self)),
            6..8 if levels > 0 => Condition::Nor(children(self)),
            8 => Condition::All,
            9 => Condition::TenantId(self.text()),
            10 => Condition::AggregateIds(vec![self.text(), "10".to_owned()]),
            11 => Condition::Ids(vec!["20".to_owned(), "30".to_owned()]),
            12 => Condition::Deleted(self.any(&[
                DeletionState::Active,
                DeletionState::Deleted,
                DeletionState::All,
            ])),
            _ => {
                let path = self.any(&PATHS);
                Condition::Field(field(path), self.test(levels))
            }
        }
    }
}

/// Whether an array is the operand of a range. An index of MongoDB has the elements of arrays, so by an
/// index such a range does not find arrays as a whole.
fn compares_arrays(condition: &Condition) -> bool {
    let is_array = |value: &Bson| matches!(value, Bson::Array(_));
    match condition {
        Condition::And(children) | Condition::Or(children) | Condition::Nor(children) => {
            children.iter().any(compares_arrays)
        }
        Condition::Field(_, Test::ElemMatch(child)) => compares_arrays(child),
        Condition::Field(_, Test::Between(first, last)) => is_array(first) || is_array(last),
        Condition::Field(_, Test::Compare(comparison, value)) => {
            !matches!(comparison, Comparison::Eq | Comparison::Ne) && is_array(value)
        }
        _ => false,
    }
}

/// Events have indexes, whose use must not change what is found.
#[fixture::test]
async fn mongodb_finds_what_the_manual_says() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut generator = Generator(StdRng::seed_from_u64(seed));
    let world = World::new().await;
    let documents: Vec<Document> = (0..DOCUMENTS).map(|id| generator.stored(id)).collect();
    for target in [Target::Events, Target::Snapshots] {
        world.insert(target, documents.clone()).await;
    }
    for keys in [doc! { "a": 1 }, doc! { "a.b": 1 }, doc! { "b": -1 }] {
        world.create_index(Target::Events, keys).await;
    }
    let queries = world.queries();
    let (begin, mut some) = (Instant::now(), 0);
    for number in 0..CONDITIONS {
        let condition = generator.condition(3);
        let target = match generator.any(&[Target::Events, Target::Snapshots]) {
            Target::Events if compares_arrays(&condition) => Target::Snapshots,
            target => target,
        };

        let found = found(&queries, target, &condition).await;

        let meant = documents.iter().filter(|document| matches(&condition, document, target));
        let mut missing: Vec<&Document> = Vec::new();
        let mut count = 0;
        for document in meant {
            count += 1;
            if !found.contains(&document["_id"]) {
                missing.push(document);
            }
        }
        let extra = found
            .iter()
            .map(|id| documents.iter().find(|document| document["_id"] == *id).unwrap());
        let extra: Vec<&Document> =
            extra.filter(|document| !matches(&condition, document, target)).collect();
        assert!(
            missing.is_empty() && extra.is_empty(),
            "seed {seed}, condition {number} of {target:?}: {}\nMongoDB does not find {missing:#?}\nand finds {extra:#?}",
            serde_json::to_string(&condition).unwrap(),
        );
        some += usize::from(count > 0 && found.len() < documents.len());
        if begin.elapsed() > LIMIT && number > CONDITIONS / 4 {
            break;
        }
    }
    assert!(some > CONDITIONS / 10, "only {some} conditions find some and not all");
}
