//! Members of pull subscriptions.

use std::time::Duration;

use postrider::events::subscriptions::{PulledEvents, SubscriptionError, SubscriptionState};

use crate::feed::lines;
use crate::support::outbox::eventually;
use crate::util::{TestSubscriptions, of, pull};

const LEASE: Duration = Duration::from_secs(30);

#[fixture::test]
async fn events_come_in_order_until_they_are_acknowledged() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2", "3"], "a").await;
    all.create(&pull("billing", LEASE)).await;

    let first = all.pull("billing", "a").await.unwrap();
    let again = all.pull("billing", "a").await.unwrap();
    assert_eq!(lines(&first.items), ["1 order/1@1#0", "2 order/2@1#0", "3 order/3@1#0"]);
    assert!(first.is_new_lease && !again.is_new_lease);
    // Also the lease, so that an answer that was lost is repeated whole.
    let again = PulledEvents { is_new_lease: true, ..again };
    assert_eq!(first, again);
    assert_eq!((first.next, first.head), (3, 3));

    all.subscriptions.acknowledge("billing", &first.lease, 2).await.unwrap();
    let rest = all.pull("billing", "a").await.unwrap();
    assert_eq!(lines(&rest.items), ["3 order/3@1#0"]);
    assert_eq!(rest.lease, first.lease);
    all.subscriptions.acknowledge("billing", &rest.lease, rest.next).await.unwrap();
    assert!(all.pull("billing", "a").await.unwrap().items.is_empty());
    all.stop().await;
}

#[fixture::test]
async fn acknowledgement_is_of_what_was_given_out() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2", "3"], "a").await;
    all.create(&pull("billing", LEASE)).await;
    let read = all.subscriptions.pull("billing", "a", 2).await.unwrap();
    assert_eq!(read.next, 2);
    let ack = |position| all.subscriptions.acknowledge("billing", &read.lease, position);

    let ahead = ack(3).await;
    assert!(
        matches!(ahead, Err(SubscriptionError::PositionAhead { position: 3, limit: 2, .. })),
        "{ahead:?}"
    );
    assert_eq!(ack(2).await.unwrap(), 2);
    assert_eq!(ack(2).await.unwrap(), 2, "a repetition");
    let behind = ack(1).await;
    assert!(
        matches!(behind, Err(SubscriptionError::PositionBehind { position: 1, acknowledged: 2 })),
        "{behind:?}"
    );
    assert_eq!(all.position("billing").await, 2);
    // A smaller page takes back nothing of what was given out.
    all.append("order", &["4"], "a").await;
    all.pull("billing", "a").await.unwrap();
    all.subscriptions.pull("billing", "a", 1).await.unwrap();
    assert_eq!(ack(4).await.unwrap(), 4);
    all.stop().await;
}

#[fixture::test]
async fn second_member_stands_by_and_takes_over_after_expiry() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.create(&pull("billing", Duration::from_secs(2))).await;
    let first = all.pull("billing", "a").await.unwrap();

    let refused = all.pull("billing", "b").await;
    let Err(SubscriptionError::MemberActive { member, remaining, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(member, "a");
    assert!(remaining <= Duration::from_secs(2) && !remaining.is_zero(), "{remaining:?}");
    all.subscriptions.acknowledge("billing", &first.lease, 1).await.unwrap();
    eventually("the takeover", || async { all.pull("billing", "b").await.is_ok() }).await;

    // Only what was not acknowledged comes again.
    let second = all.pull("billing", "b").await.unwrap();
    assert_eq!(lines(&second.items), ["2 order/2@1#0"]);
    for position in [1, 2] {
        let stale = all.subscriptions.acknowledge("billing", &first.lease, position).await;
        assert!(matches!(stale, Err(SubscriptionError::LeaseLost(_))), "{stale:?}");
        let stale = all.subscriptions.park("billing", &first.lease, position, "why").await;
        assert!(matches!(stale, Err(SubscriptionError::LeaseLost(_))), "{stale:?}");
    }
    assert_eq!(all.position("billing").await, 1);
    // A lease of the same member from before.
    eventually("the return", || async { all.pull("billing", "a").await.is_ok() }).await;
    let stale = all.subscriptions.acknowledge("billing", &first.lease, 2).await;
    assert!(matches!(stale, Err(SubscriptionError::LeaseLost(_))), "{stale:?}");
    all.stop().await;
}

/// Its lease has ended, and no other member has read: what it was given may be acknowledged.
#[fixture::test]
async fn expired_lease_is_valid_until_another_member_takes_over() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1"], "a").await;
    all.create(&pull("billing", Duration::from_secs(1))).await;
    let read = all.pull("billing", "a").await.unwrap();
    let is_over =
        || async { all.subscriptions.get("billing").await.unwrap().owned_until.is_none() };
    eventually("the end of the lease", is_over).await;

    all.subscriptions.acknowledge("billing", &read.lease, 1).await.unwrap();

    assert_eq!(all.position("billing").await, 1);
    all.stop().await;
}

/// Reads of several members at the same time: one of them gets the lease.
#[fixture::test]
async fn one_of_many_members_gets_the_lease() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1"], "a").await;
    all.create(&pull("billing", LEASE)).await;

    let members: Vec<String> = (0..10).map(|member| member.to_string()).collect();
    let reads = members.iter().map(|member| all.pull("billing", member));
    let reads = futures_util::future::join_all(reads).await;

    assert_eq!(reads.iter().filter(|read| read.is_ok()).count(), 1, "{reads:?}");
    all.stop().await;
}

#[fixture::test]
async fn position_advances_where_the_filter_matches_nothing() {
    let all = TestSubscriptions::new().await;
    all.append("customer", &["1", "2", "3"], "a").await;
    all.create(&of(pull("billing", LEASE), &["order"])).await;

    let read = all.pull("billing", "a").await.unwrap();

    assert!(read.items.is_empty());
    assert_eq!((read.next, all.position("billing").await), (3, 3));
    all.append("order", &["1"], "a").await;
    let read = all.pull("billing", "a").await.unwrap();
    assert_eq!(lines(&read.items), ["4 order/1@1#0"]);
    all.stop().await;
}

#[fixture::test]
async fn read_waits_for_new_events_and_keeps_the_lease() {
    let all = TestSubscriptions::new().await;
    all.create(&pull("billing", Duration::from_secs(1))).await;

    let reading = async {
        loop {
            let read = all.pull("billing", "a").await.unwrap();
            if !read.items.is_empty() {
                return read;
            }
            all.subscriptions.wait_after(&read, Duration::from_secs(40)).await;
        }
    };
    let appending = async {
        // The lease would have ended twice.
        for _ in 0..25 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if let Err(error) = all.pull("billing", "b").await {
                assert!(matches!(error, SubscriptionError::MemberActive { .. }), "{error}");
            } else {
                panic!("another member has the lease");
            }
        }
        all.append("order", &["1"], "a").await;
    };
    // (The member has the lease before another one asks.)
    let (read, ()) = tokio::join!(reading, appending);

    assert_eq!(lines(&read.items), ["1 order/1@1#0"]);
    all.stop().await;
}

#[fixture::test]
async fn pause_and_replay_are_noticed_by_members() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.create(&pull("billing", LEASE)).await;
    let read = all.pull("billing", "a").await.unwrap();

    all.subscriptions.pause("billing").await.unwrap();
    let refused = all.pull("billing", "a").await;
    assert!(matches!(refused, Err(SubscriptionError::Paused(_))), "{refused:?}");
    // What was given out may be acknowledged.
    all.subscriptions.acknowledge("billing", &read.lease, 1).await.unwrap();
    all.subscriptions.resume("billing").await.unwrap();
    all.subscriptions.replay("billing", 0).await.unwrap();

    let lost = async || {
        let stale = all.subscriptions.acknowledge("billing", &read.lease, 2).await;
        assert!(matches!(stale, Err(SubscriptionError::LeaseLost(_))), "{stale:?}");
    };
    lost().await;
    // A lease of the same member from before.
    let again = all.pull("billing", "a").await.unwrap();
    assert_eq!(again.items.len(), 2);
    lost().await;
    assert_eq!(all.position("billing").await, 0);
    let ahead = all.subscriptions.replay("billing", 3).await;
    assert!(
        matches!(ahead, Err(SubscriptionError::PositionAhead { position: 3, limit: 2, .. })),
        "{ahead:?}"
    );
    all.stop().await;
}

#[fixture::test]
async fn renewed_feed_stops_a_pull_until_it_is_replayed() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1"], "a").await;
    all.create(&pull("billing", LEASE)).await;
    all.pull("billing", "a").await.unwrap();
    all.test.feed.renew().await.unwrap();

    for _ in 0..2 {
        let refused = all.pull("billing", "a").await;
        assert!(matches!(refused, Err(SubscriptionError::WrongFeed { .. })), "{refused:?}");
    }
    let report = all.subscriptions.get("billing").await.unwrap();
    assert_eq!(report.state, SubscriptionState::WrongFeed);
    assert!(report.error.is_some() && report.lag_events.is_none(), "{report:?}");

    all.subscriptions.replay("billing", 0).await.unwrap();
    assert_eq!(all.pull("billing", "a").await.unwrap().items.len(), 1);
    all.stop().await;
}
