//! `raw:` ids: each names the value that it has, and no other.

use bson::raw::RawDocumentBuf;
use bson::{Bson, JavaScriptCodeWithScope, Regex, doc};
use postrider::ids::raw_text;
use postrider::outbox::inspect::Inspector;
use postrider::outbox::undecoded::RawId;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::support::outbox::{TestOutbox, record};
use crate::{arbitrary, outbox_command};

fn raw(id: &Bson) -> String {
    raw_text(&RawDocumentBuf::try_from(&doc! { "_id": id }).unwrap())
}

/// Values that MongoDB would take for conditions, and those that it does not have as `_id`.
fn refused() -> Vec<Bson> {
    let regex = Regex { pattern: "a".try_into().unwrap(), options: "".try_into().unwrap() };
    let with_scope = JavaScriptCodeWithScope { code: "1".to_owned(), scope: doc! {} };
    vec![
        doc! { "$gt": "" }.into(),
        doc! { "$regex": "^a" }.into(),
        doc! { "$in": ["a"] }.into(),
        doc! { "$exists": true }.into(),
        doc! { "$not": { "$type": "date" } }.into(),
        doc! { "a": 1, "$gt": "" }.into(),
        Bson::RegularExpression(regex),
        Bson::Array(vec!["a".into()]),
        Bson::Undefined,
        Bson::JavaScriptCode("1".to_owned()),
        Bson::JavaScriptCodeWithScope(with_scope),
    ]
}

#[fixture::test]
async fn raw_id_finds_the_record_with_its_bytes_or_none() {
    let outbox = TestOutbox::new().await;
    // What operators would find.
    outbox.insert([record("a", "k"), record("b", "k")]).await;
    let records = outbox.records().clone_with_type::<RawDocumentBuf>();
    let inspector = Inspector::new(outbox.collections.clone());
    let mut runner = TestRunner::deterministic();
    let any = (0..1_000).map(|_| arbitrary::value().new_tree(&mut runner).unwrap().current());
    let equal = [1.into(), 1_i64.into(), 1.0.into(), Bson::Symbol("a".into()), "a".into()];
    let (mut found, mut no_ids) = (0, 0);

    for value in refused().into_iter().chain(equal).chain(any) {
        let id = RawId::from(&value);
        // (By this encoder alone: the driver sorts the options of a regular expression.)
        let record = RawDocumentBuf::try_from(&doc! { "_id": &value, "key": "k" }).unwrap();
        let is_new = records.insert_one(record).await.is_ok();

        let ids = RawId::parse_candidates(&raw(&value));
        let shown = inspector.show(&ids).await.unwrap();

        no_ids += usize::from(ids.is_empty());
        match shown {
            Some(shown) => {
                assert!(id.is_same(&shown.id), "{value:?}: {shown:?}");
                found += 1;
            }
            None => assert!(!is_new || ids.is_empty(), "{value:?} is stored and not found"),
        }
    }

    assert!(found > 300 && no_ids > 30, "{found} {no_ids}");
}

#[fixture::test]
async fn commands_refuse_a_raw_id_that_is_a_condition() {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("a", "k")]).await;

    for id in [doc! { "$gt": "" }.into(), Bson::Array(vec!["a".into()])] {
        let id = raw(&id);
        for command in [&["show", &id][..], &["discard", &id, "--yes"], &["requeue", &id]] {
            let ended = outbox_command(&outbox, command).await.with_code(2);
            assert!(ended.stderr.contains("invalid raw id"), "{command:?}: {ended}");
        }
        let ended = outbox_command(&outbox, &["list", "--after", &id]).await.with_code(2);
        assert!(ended.stderr.contains("--after"), "{ended}");
    }

    assert_eq!(outbox.count(doc! {}).await, 1);
}

/// Their ids are no texts that commands take, but pages continue after them.
#[fixture::test]
async fn pages_continue_after_an_id_that_has_no_name() {
    let outbox = TestOutbox::new().await;
    let code = ["1", "2", "3"].map(|code| Bson::JavaScriptCode(code.to_owned()));
    for id in &code {
        outbox.records().insert_one(doc! { "_id": id, "status": "pending" }).await.unwrap();
    }

    let mut after = None;
    for id in &code {
        let mut arguments = vec!["list", "--sort", "id", "--limit", "1", "--output", "json"];
        arguments.extend(after.iter().flat_map(|after: &String| ["--after", after]));
        let page = outbox_command(&outbox, &arguments).await.with_code(0);

        assert!(page.stdout.contains(&raw(id)), "{id}: {page}");
        after = page.stderr.split('\'').nth(1).map(str::to_owned);
    }
    assert_eq!(after, None);
}
