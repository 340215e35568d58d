//! A broker that refuses the relay: another password, a vhost that is gone.

use bson::doc;

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{
    Outage, all_settled, has_no_error, logged, many, no_errors, until_down_with, until_well,
};
use crate::support::outbox::eventually;
use crate::support::process::Postrider;
use crate::support::rabbitmq::vhost::PASSWORD;

const COUNT: usize = 30;

/// The end of all these outages: everything waited without an attempt, one line down and one line
/// up.
async fn assert_all_went_well(outage: &Outage, postrider: &Postrider) {
    outage.outbox.until_count(doc! { "status": "done" }, COUNT as u64).await;
    until_well(postrider).await;
    let (done, dead) = all_settled(&outage.outbox).await;
    assert!(dead.is_empty() && done.iter().all(has_no_error), "{done:#?}");
    assert_eq!(logged(postrider), (1, 2), "{}", postrider.stderr());
    no_errors(postrider);
    is_whole_and_clean(postrider, &["rabbit"], Settled::done(COUNT as u64)).await;
}

#[fixture::test]
async fn records_wait_without_attempts_while_the_password_is_wrong() {
    let outage = Outage::new().await;
    outage.amqp.classic("durable").await;
    let user = format!("{}-relay", outage.vhost.name);
    outage.vhost.add_user(&user, ".*").await;
    let uri = outage.vhost.uri_of(&user, PASSWORD);
    let postrider = outage.start(&uri, &["relay.max_attempts=1"]).await;

    outage.vhost.set_password(&user, "another").await;
    eventually("the relay's connection is listed", async || {
        !outage.vhost.connections_of(&user).await.is_empty()
    })
    .await;
    outage.vhost.close_connections(&outage.vhost.connections_of(&user).await).await;
    // Some are published before the relay notices.
    outage.outbox.insert(many("durable", "record", COUNT)).await;
    until_down_with(&postrider, "check the user and password").await;
    outage.vhost.set_password(&user, PASSWORD).await;

    assert_all_went_well(&outage, &postrider).await;
    assert_eq!(outage.amqp.take_ids("durable").await.len(), COUNT);
    outage.vhost.drop_user(&user).await;
    outage.end(postrider).await;
}

#[fixture::test]
async fn records_wait_without_attempts_while_the_vhost_is_gone() {
    let outage = Outage::new().await;
    let postrider = outage.start(&outage.vhost.uri(), &["relay.max_attempts=1"]).await;

    outage.vhost.delete().await;
    // Some are published before the relay notices.
    outage.outbox.insert(many("durable", "record", COUNT)).await;
    until_down_with(&postrider, "add_vhost").await;
    // The relay's own user gets its rights last: not before the queue is there.
    let amqp = outage.vhost.make_again(async |amqp| amqp.classic("durable").await).await;

    assert_all_went_well(&outage, &postrider).await;
    assert_eq!(amqp.take_ids("durable").await.len(), COUNT);
    outage.end(postrider).await;
}
