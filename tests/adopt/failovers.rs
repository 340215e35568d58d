//! A new primary whose commit point is behind what its predecessor has shown.

use bson::{Bson, Document, doc};
use mongodb::Client;

use crate::support::outbox::{TestOutbox, eventually};
use crate::support::replica_set::ReplicaSet;
use crate::util::{SOURCE_FIELDS, TestSource};

/// The longest that a member waits for one of its fail points.
const WAIT_MILLIS: i64 = 30_000;

async fn fail_point(member: &Client, name: &str, mode: &str, data: Document) -> i64 {
    let point = doc! { "configureFailPoint": name, "mode": mode, "data": data };
    let set = member.database("admin").run_command(point).await.unwrap();
    set.get_i32("count").unwrap().into()
}

/// A source in three members.
struct Members {
    set: ReplicaSet,
    test: TestSource,
}

impl Members {
    async fn start() -> Self {
        let set = ReplicaSet::start().await;
        let uri = format!("mongo.uri={}", set.uri());
        let settings = [&SOURCE_FIELDS[..], &[&uri]].concat();
        let test = TestSource::of(TestOutbox::at(&set.uri()).await, "fields", &settings);
        Self { set, test }
    }

    async fn put(&self, number: i32) {
        let document = doc! { "_id": number, "k": "k", "p": { "n": number }, "s": "new" };
        self.test.insert(vec![document]).await;
    }

    /// Holds back the commit point of the secondaries, as a lost heartbeat does; they have all documents.
    async fn hold_back(&self) -> Vec<usize> {
        let secondaries = self.set.secondaries().await;
        for member in &secondaries {
            let direct = self.set.direct(*member);
            fail_point(direct, "disableSnapshotting", "alwaysOn", doc! {}).await;
            // What the bridge asks it is written down.
            let database = direct.database(&self.test.outbox.database);
            database.run_command(doc! { "profile": 2 }).await.unwrap();
        }
        secondaries
    }

    /// Kills the primary; releases the commit point of its successor once the bridge has asked that for something.
    async fn fail_over(&mut self, held_back: &[usize]) {
        let killed = self.set.primary().await;
        self.set.kill(killed);
        let primary = self.set.primary_other_than(killed).await;
        let direct = self.set.direct(primary);
        let database = direct.database(&self.test.outbox.database);
        let profile = database.collection::<Document>("system.profile");
        let answered = doc! { "op": "query", "appName": "postrider" };
        let source = format!("{}.{}", self.test.outbox.database, self.test.collection);
        let waits = doc! { "currentOp": true, "ns": source, "command.find": { "$exists": true } };
        eventually("a question to the new primary", async || {
            let operations = direct.database("admin").run_command(waits.clone()).await.unwrap();
            !operations.get_array("inprog").unwrap().is_empty()
                || profile.find_one(answered.clone()).await.unwrap().is_some()
        })
        .await;
        for member in held_back {
            fail_point(self.set.direct(*member), "disableSnapshotting", "off", doc! {}).await;
        }
        self.set.restart(killed).await;
        self.set.secondaries().await;
    }
}

#[fixture::test]
async fn document_that_a_new_primary_does_not_show_yet_is_copied_in_its_order() {
    let mut members = Members::start().await;
    members.put(0).await;
    // The new primary gets the scan: the kill takes less than the pause.
    let held_back = members.hold_back().await;
    members.put(1).await;
    let mut bridge =
        members.test.start(&["--old-relay-stopped"], "adopt::before_scan=1*sleep(8000)->off");
    bridge.until_logged("scanning the other outbox").await;
    members.fail_over(&held_back).await;
    members.test.until_copied(2).await;
    bridge.until_logged("receiving changes of the other outbox").await;

    // The next one gets the read of a document whose change the one before has reported.
    let held_back = members.hold_back().await;
    let old = members.set.direct(members.set.primary().await);
    let name = format!("{}.{}", members.test.outbox.database, members.test.collection);
    let hang = "waitInFindBeforeMakingBatch";
    let entered = fail_point(old, hang, "alwaysOn", doc! { "nss": name }).await;
    members.put(2).await;
    let reached = doc! {
        "waitForFailPoint": hang,
        "timesEntered": entered + 1,
        "maxTimeMS": WAIT_MILLIS,
    };
    old.database("admin").run_command(reached).await.unwrap();
    members.fail_over(&held_back).await;
    members.put(3).await;
    members.test.until_copied(4).await;
    bridge.stop().await;

    let records = members.test.records().await;
    let copied = records.iter().map(|it| (it.get("_id").unwrap(), it.get("payload").unwrap()));
    let expected: Vec<(Bson, Bson)> =
        (0..4).map(|number| (i64::from(number).into(), doc! { "n": number }.into())).collect();
    assert_eq!(
        copied.map(|(id, payload)| (id.clone(), payload.clone())).collect::<Vec<_>>(),
        expected
    );
}
