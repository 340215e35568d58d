//! How far the positions are behind 5,000 appends a second of another program.

use std::time::{Duration, Instant};

use postrider::context::CollectionKind;
use postrider::events::feed::Feed;

use crate::{Sequencing, context, stream, support};

const PER_SECOND: usize = 5_000;

/// The appends of one insert.
const GROUP: usize = 100;

pub async fn measure() {
    let collections = support::outbox().await;
    let context = context(&collections);
    let streams = context.ready(CollectionKind::Events, "order").await.unwrap();
    let feed = Feed::new(context);
    let running = Sequencing::start(&feed);
    let (sender, mut inserted) = tokio::sync::mpsc::unbounded_channel::<(i64, Instant)>();
    let total = support::seconds() * PER_SECOND;
    let inserting = tokio::spawn(async move {
        let period = Duration::from_secs_f64(GROUP as f64 / PER_SECOND as f64);
        let mut tick = tokio::time::interval(period);
        let began = Instant::now();
        for begin in (0..total).step_by(GROUP) {
            tick.tick().await;
            let group = (begin..begin + GROUP).map(|number| stream("order", number, 10_000));
            streams.insert_many(group).await.unwrap();
            sender.send(((begin + GROUP) as i64, Instant::now())).unwrap();
        }
        total as f64 / began.elapsed().as_secs_f64()
    });
    let mut lags = Vec::new();
    while let Some((position, at)) = inserted.recv().await {
        feed.wait_beyond(position - 1).await;
        lags.push(at.elapsed().as_secs_f64() * 1e3);
    }
    let rate = inserting.await.unwrap();
    lags.sort_by(f64::total_cmp);
    println!(
        "\nlag at {rate:.0} appends/s of another program: p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms",
        support::at(&lags, 0.5),
        support::at(&lags, 0.99),
        support::at(&lags, 1.0)
    );
    running.stop().await;
    support::drop(collections).await;
}
