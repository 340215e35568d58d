//! A broker that lets the relay in no more: another password, a vhost that is gone.

use bson::doc;

use crate::night::{Night, all_settled, many, no_errors, told, until_down, until_well, went_well};
use crate::page::{Settled, is_whole_and_clean};
use crate::support::outbox::eventually;
use crate::support::process::Postrider;
use crate::support::rabbitmq::vhost::PASSWORD;

const COUNT: usize = 30;

/// What all these nights come to: everything waited uncharged, one line down and one line up.
async fn all_went_well(night: &Night, postrider: &Postrider) {
    night.outbox.until_count(doc! { "status": "done" }, COUNT as u64).await;
    until_well(postrider).await;
    let (done, dead) = all_settled(&night.outbox).await;
    assert!(dead.is_empty() && done.iter().all(went_well), "{done:#?}");
    assert_eq!(told(postrider), (1, 2), "{}", postrider.stderr());
    no_errors(postrider);
    is_whole_and_clean(postrider, &["rabbit"], Settled::done(COUNT as u64)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_password_is_another_one_everything_waits_uncharged() {
    let night = Night::new().await;
    night.hand.classic("durable").await;
    let user = format!("{}-relay", night.vhost.name);
    night.vhost.add_user(&user, ".*").await;
    let uri = night.vhost.uri_of(&user, PASSWORD);
    let postrider = night.start(&uri, &["relay.max_attempts=1"]).await;

    night.vhost.set_password(&user, "another").await;
    eventually("the relay's connection is listed", async || {
        !night.vhost.connections_of(&user).await.is_empty()
    })
    .await;
    night.vhost.close_connections(&night.vhost.connections_of(&user).await).await;
    // Some are published before the end is noticed.
    night.outbox.insert(many("durable", "record", COUNT)).await;
    let words = "check user and password";
    let says = |report: &serde_json::Value| {
        report["parts"]["sink rabbit"]["detail"].as_str().unwrap().contains(words)
    };
    until_down(&postrider, "rabbit").await;
    postrider.until_report(words, says).await;
    night.vhost.set_password(&user, PASSWORD).await;

    all_went_well(&night, &postrider).await;
    assert_eq!(night.hand.take_ids("durable").await.len(), COUNT);
    night.vhost.drop_user(&user).await;
    night.end(postrider).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_vhost_is_gone_everything_waits_uncharged() {
    let night = Night::new().await;
    let postrider = night.start(&night.vhost.uri(), &["relay.max_attempts=1"]).await;

    night.vhost.delete().await;
    // Some are published before the end is noticed.
    night.outbox.insert(many("durable", "record", COUNT)).await;
    let words = "add_vhost";
    let says = |report: &serde_json::Value| {
        report["parts"]["sink rabbit"]["detail"].as_str().unwrap().contains(words)
    };
    until_down(&postrider, "rabbit").await;
    postrider.until_report(words, says).await;
    // The relay's own user may use it last: not before the queue is there.
    let hand = night.vhost.make_again(async |hand| hand.classic("durable").await).await;

    all_went_well(&night, &postrider).await;
    assert_eq!(hand.take_ids("durable").await.len(), COUNT);
    night.end(postrider).await;
}
