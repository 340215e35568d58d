use bson::doc;

use super::*;

fn instance(started: i64, more: Document) -> Document {
    let mut document = doc! {
        "_id": Bson::from(InstanceId::fresh()),
        "status": "active",
        "startedAt": DateTime::from_millis(started),
        FRESH: true,
    };
    document.extend(more);
    document
}

fn id(document: &Document) -> InstanceId {
    InstanceId::read(document.get("_id").unwrap()).unwrap()
}

fn fingerprint(on_dead: &str) -> Document {
    doc! { "fingerprint": { "ordering": "key", "onDead": on_dead, "prefix": "" } }
}

fn view(instances: &[&Document], assignments: &[Document]) -> FleetView {
    let mut view = FleetView::default();
    instances.iter().for_each(|document| view.note_instance(document, &mut Vec::new()));
    for document in assignments {
        let raw = RawDocumentBuf::try_from(document).unwrap();
        view.note_assignment(&raw, document, &mut Vec::new());
    }
    view
}

#[test]
fn live_assigned_instances_that_do_not_stop_share() {
    let plain = instance(0, doc! {});
    let context = instance(1, doc! { "partitions": "assigned" });
    let leaving = instance(2, doc! { "status": "draining" });
    let fixed = instance(3, doc! { "partitions": "0-127" });
    let idle = instance(4, doc! { "partitions": "none" });
    let stale = instance(5, doc! { FRESH: false });

    let view = view(&[&plain, &context, &leaving, &fixed, &idle, &stale], &[]);

    let mut sharing = vec![id(&plain), id(&context)];
    sharing.sort();
    assert_eq!(view.sharing(), sharing);
    assert_eq!(view.members.len(), 5);
    assert!(view.some_stale);
}

#[test]
fn instance_that_differs_from_the_longest_running_has_no_share() {
    let old = instance(1, fingerprint("block"));
    let silent = instance(0, doc! {});
    let new = instance(2, fingerprint("skip"));

    let both = view(&[&old, &silent, &new], &[]);

    let own = |on_dead: &str| {
        Fingerprint::read(fingerprint(on_dead).get_document("fingerprint").unwrap()).unwrap()
    };
    let mut sharing = vec![id(&old), id(&silent)];
    sharing.sort();
    assert_eq!(both.sharing(), sharing);
    assert_eq!(both.differs(&own("skip")), Some(&own("block")));
    assert_eq!(both.differs(&own("block")), None);
    let alone = view(&[&silent, &new], &[]);
    assert_eq!(alone.differs(&own("skip")), None);
}

#[test]
fn partition_of_a_stale_instance_is_unowned() {
    let alive = instance(0, doc! {});
    let gone = InstanceId::fresh();
    let assignments = [
        doc! { "_id": 0, "instanceId": Bson::from(id(&alive)), "epoch": 3_i64 },
        doc! { "_id": 1, "instanceId": Bson::from(gone), "epoch": 1_i64 },
        doc! { "_id": 2_i64, "instanceId": Bson::Null, "epoch": 9_i64 },
        doc! { "_id": 3.0, "instanceId": "text" },
        doc! { "_id": 256, "instanceId": Bson::from(id(&alive)) },
        doc! { "_id": "x", "instanceId": Bson::from(id(&alive)) },
    ];

    let view = view(&[&alive], &assignments);

    assert_eq!(view.owners(), BTreeMap::from([(0, id(&alive))]));
    assert_eq!(view.owned_by(id(&alive)), [0]);
    assert_eq!(view.unassigned(), 255);
    assert_eq!(view.assignments.len(), 4);
    let unreadable = view.assignments.iter().filter(|(_, assignment)| assignment.is_unreadable);
    assert_eq!(unreadable.map(|(partition, _)| *partition).collect::<Vec<_>>(), [3]);
    assert!(view.moves().iter().all(|moved| moved.from.is_none() && moved.to == id(&alive)));
}

#[test]
fn stopping_instance_owns_its_partitions_until_release() {
    let leaving = instance(0, doc! { "status": "draining" });
    let stays = instance(1, doc! {});
    let owned = doc! { "_id": 7, "instanceId": Bson::from(id(&leaving)), "epoch": 1_i64 };

    let moves = view(&[&leaving, &stays], &[owned]).moves();

    let moved = moves.iter().find(|moved| moved.partition == 7).unwrap();
    assert_eq!((moved.from, moved.to), (Some(id(&leaving)), id(&stays)));
}

#[test]
fn instance_with_unreadable_heartbeat_gets_no_partitions() {
    let doubtful = instance(0, doc! { FRESH: false, "lastHeartbeat": "soon" });
    let other = instance(1, doc! {});
    let owned = doc! { "_id": 7, "instanceId": Bson::from(id(&doubtful)), "epoch": 1_i64 };

    let view = view(&[&doubtful, &other], &[owned]);

    assert_eq!(view.sharing(), [id(&other)]);
    assert_eq!(view.owners(), BTreeMap::from([(7, id(&doubtful))]));
    assert!(!view.some_stale);
    let mut lost = Vec::new();
    FleetView::default().note_instance(&doubtful, &mut lost);
    assert_eq!(lost, ["lastHeartbeat"]);
}
