//! How fast what was appended before the feed gets its positions.

use std::time::Instant;

use postrider::events::feed::Feed;

use crate::{Sequencing, context, fill, support};

pub async fn measure() {
    println!("backfill: {} appends of before, in 1 and in 5 aggregate names", support::records());
    for names in [1, 5] {
        let collections = support::outbox().await;
        let context = context(&collections);
        for name in 0..names {
            fill(&context, &format!("order{name}"), support::records() / names).await;
        }
        let feed = Feed::new(context);
        let began = Instant::now();
        let running = Sequencing::start(&feed);
        let total = i64::try_from(support::records() / names * names).unwrap();
        feed.wait_beyond(total - 1).await;
        let rate = total as f64 / began.elapsed().as_secs_f64();
        println!("{names} names: {rate:>8.0} appends/s, with the creation of the index");
        running.stop().await;
        support::drop(collections).await;
    }
}
