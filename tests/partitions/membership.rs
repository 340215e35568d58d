//! Which instance owns which partition, while instances start, stop, hang and die.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use postrider::ids::InstanceId;
use postrider::partition::names::{ANSWER_TIMEOUT, HeldName, WantedName, answer_questions, claim};

use crate::instance::{Instance, Options, assignments, counts};
use crate::peer::Peer;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::sink::TestSink;

fn is_balanced(counts: &[usize]) -> bool {
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    counts.iter().sum::<usize>() == 256 && most - least <= 1
}

async fn until_balanced(outbox: &TestOutbox, instances: &[&Instance]) {
    let ids: Vec<InstanceId> = instances.iter().map(|instance| instance.id).collect();
    eventually("a balance", || async { is_balanced(&counts(outbox, &ids).await) }).await;
    for (instance, count) in instances.iter().zip(counts(outbox, &ids).await) {
        instance.until_owned(count).await;
    }
}

/// How many partitions have another owner than before.
fn moved(before: &[Option<Bson>], after: &[Option<Bson>]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

fn instances(outbox: &TestOutbox) -> mongodb::Collection<Document> {
    outbox.collections.database().collection("outbox_instances")
}

/// MongoDB may be slow for the holder, which is meant to run next to the newcomer.
#[fixture::test]
async fn default_name_is_left_to_a_holder_that_answers_late() {
    let outbox = TestOutbox::new().await;
    let [holder, newcomer] = [InstanceId::fresh(), InstanceId::fresh()];
    let wanted = WantedName::Default("host".to_owned());
    let name = claim(&outbox.collections, holder, &wanted).await.unwrap().name;
    let answering = async {
        // Longer than the wait for an explicit name.
        tokio::time::sleep(ANSWER_TIMEOUT + Duration::from_millis(500)).await;
        answer_questions(outbox.collections.clone(), name, holder).await
    };

    let held = tokio::select! {
        held = claim(&outbox.collections, newcomer, &wanted) => held.unwrap(),
        replaced = answering => panic!("{replaced}"),
    };

    assert_eq!(held, HeldName { name: "host#2".to_owned(), predecessor: None });
}

#[fixture::test]
async fn instances_share_evenly_and_move_few_partitions() {
    let outbox = TestOutbox::new().await;
    let (sink, choice) = (TestSink::default(), Options::default());
    let start = || Instance::start(&outbox.collections, &sink, &choice);

    let one = start();
    one.until_owned(256).await;
    let first = assignments(&outbox).await;
    let (two, three) = (start(), start());
    until_balanced(&outbox, &[&one, &two, &three]).await;
    let second = assignments(&outbox).await;
    assert_eq!(moved(&first, &second), 170);
    two.stop().await;
    until_balanced(&outbox, &[&one, &three]).await;
    let third = assignments(&outbox).await;
    assert_eq!(moved(&second, &third), 85);
    let four = start();
    until_balanced(&outbox, &[&one, &three, &four]).await;
    let fourth = assignments(&outbox).await;
    assert_eq!(moved(&third, &fourth), 85);

    for instance in [one, three, four] {
        instance.stop().await;
    }
    assert!(assignments(&outbox).await.iter().all(Option::is_none));
    assert_eq!(instances(&outbox).count_documents(doc! {}).await.unwrap(), 0);
}

#[fixture::test]
async fn many_that_start_at_once_agree() {
    let outbox = TestOutbox::new().await;
    let (sink, choice) = (TestSink::default(), Options::default());

    let fleet: Vec<Instance> =
        (0..5).map(|_| Instance::start(&outbox.collections, &sink, &choice)).collect();

    until_balanced(&outbox, &fleet.iter().collect::<Vec<_>>()).await;
}

/// By the server's clock: not before `stale_after` has passed since its last heartbeat.
#[fixture::test]
async fn partitions_of_a_dead_instance_are_claimed_when_it_is_stale() {
    let outbox = TestOutbox::new().await;
    let (sink, choice) = (TestSink::default(), Options::default());
    let one = Instance::start(&outbox.collections, &sink, &choice);
    let two = Instance::start(&outbox.collections, &sink, &choice);
    until_balanced(&outbox, &[&one, &two]).await;
    let dead = two.id;

    drop(two);
    let last = instances(&outbox).find_one(doc! { "_id": Bson::from(dead) }).await.unwrap();
    one.until_owned(256).await;

    let last = last.unwrap().get_datetime("lastHeartbeat").unwrap().to_owned();
    let assignments =
        outbox.collections.database().collection::<Document>("outbox_partition_assignments");
    let latest = assignments.find(doc! {}).sort(doc! { "updatedAt": -1 }).limit(128);
    let taken: Vec<Document> = latest.await.unwrap().try_collect().await.unwrap();
    for assignment in &taken {
        let taken = assignment.get_datetime("updatedAt").unwrap();
        let after = taken.timestamp_millis() - last.timestamp_millis();
        assert!(after >= i64::try_from(choice.stale_after.as_millis()).unwrap(), "{after}");
    }
    eventually("its document to be removed", || async {
        instances(&outbox).count_documents(doc! {}).await.unwrap() == 1
    })
    .await;
}

#[fixture::test]
async fn a_peer_with_its_share_keeps_it() {
    let outbox = TestOutbox::new().await;
    let peer = Peer::beat(&outbox).await;
    peer.own(&outbox, 100..=227).await;
    let choice = Options { stale_after: Duration::from_secs(1), ..Options::default() };

    let one = Instance::start(&outbox.collections, &TestSink::default(), &choice);
    one.until_owned(128).await;

    // Another one starts, takes nothing by force, and stops: enough rounds to take too much.
    let two = Instance::start(&outbox.collections, &TestSink::default(), &Options::patient());
    two.until_owned(43).await;
    two.stop().await;
    one.until_owned(128).await;
    assert_eq!(counts(&outbox, &[peer.id]).await, [128]);
}

#[fixture::test]
async fn a_peer_that_releases_nothing_loses_the_excess() {
    let outbox = TestOutbox::new().await;
    let peer = Peer::beat(&outbox).await;
    peer.own(&outbox, 0..=255).await;
    let choice = Options { stale_after: Duration::from_secs(1), ..Options::default() };

    let one = Instance::start(&outbox.collections, &TestSink::default(), &choice);

    one.until_owned(128).await;
    assert_eq!(counts(&outbox, &[peer.id]).await, [128]);
}

/// It sends heartbeats, and neither claims nor asks.
#[fixture::test]
async fn partitions_that_a_peer_does_not_claim_get_an_owner() {
    let outbox = TestOutbox::new().await;
    let peer = Peer::beat(&outbox).await;
    let choice = Options { stale_after: Duration::from_secs(1), ..Options::default() };

    let one = Instance::start(&outbox.collections, &TestSink::default(), &choice);
    // First it keeps its share…
    one.until_owned(128).await;
    // … and then loses it, and gets nothing that it does not ask for.
    one.until_owned(256).await;
    let two = Instance::start(&outbox.collections, &TestSink::default(), &choice);
    two.until_owned(85).await;
    assert_eq!(one.owned(), 171);
    assert_eq!(counts(&outbox, &[peer.id]).await, [0]);
}

#[fixture::test]
async fn a_newcomer_with_another_configuration_claims_nothing() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let blocks = Options { block_on_dead: true, ..Options::default() };
    let old = Instance::start(&outbox.collections, &sink, &Options::default());
    old.until_owned(256).await;

    let new = Instance::start(&outbox.collections, &sink, &blocks);
    eventually("it to say so", || async { new.status.borrow().differs.is_some() }).await;
    let third = Instance::start(&outbox.collections, &sink, &Options::default());
    until_balanced(&outbox, &[&old, &third]).await;
    assert_eq!(new.owned(), 0);
    assert!(new.status.borrow().differs.as_ref().unwrap().contains("on_dead = \"skip\""));

    old.stop().await;
    third.stop().await;
    new.until_owned(256).await;
    assert!(new.status.borrow().differs.is_none());
}

/// Documents that no Postrider instance has written.
#[fixture::test]
async fn invalid_documents_do_not_disturb_instances() {
    let outbox = TestOutbox::new().await;
    let database = outbox.collections.database();
    instances(&outbox)
        .insert_many([
            doc! { "_id": "text", "lastHeartbeat": bson::DateTime::now() },
            doc! { "_id": bson::Uuid::new(), "lastHeartbeat": "soon" },
            doc! { "_id": bson::Uuid::new() },
        ])
        .await
        .unwrap();
    database
        .collection::<Document>("outbox_partition_assignments")
        .insert_many([
            doc! { "_id": 0, "instanceId": "somebody", "epoch": "first" },
            doc! { "_id": 1, "instanceId": bson::Uuid::new() },
            doc! { "_id": 2, "epoch": 7 },
            doc! { "_id": 3, "epoch": 7.5, "instanceId": Bson::Null },
            doc! { "_id": 900, "instanceId": Bson::Null },
            doc! { "_id": "x" },
        ])
        .await
        .unwrap();
    let control = database.collection::<Document>("outbox_control");
    control.insert_one(doc! { "_id": "relay", "paused": "perhaps" }).await.unwrap();

    let one = Instance::start(&outbox.collections, &TestSink::default(), &Options::default());

    one.until_owned(256).await;
    assert_eq!(counts(&outbox, &[one.id]).await, [256]);
}

/// Of a pod that was killed, and whose host name will not return.
#[fixture::test]
async fn names_of_vanished_instances_are_removed_after_an_hour() {
    let outbox = TestOutbox::new().await;
    let control = outbox.collections.database().collection::<Document>("outbox_control");
    let hours_ago = |hours: i64| {
        bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() - hours * 3_600_000)
    };
    let name = |name: &str, updated| {
        let holder = Bson::from(InstanceId::fresh());
        doc! { "_id": format!("name:{name}"), "holder": holder, "updatedAt": updated }
    };
    let names = [name("gone", hours_ago(2)), name("starting", hours_ago(0))];
    control.insert_many(names).await.unwrap();

    let one = Instance::start(&outbox.collections, &TestSink::default(), &Options::default());

    eventually("the old name to be removed", || async {
        control.count_documents(doc! { "_id": "name:gone" }).await.unwrap() == 0
    })
    .await;
    assert_eq!(control.count_documents(doc! {}).await.unwrap(), 1);
    one.stop().await;
}
