//! What producers write: mostly plain records, and some of every kind that makes trouble.

use std::sync::Arc;
use std::time::Duration;

use bson::{DateTime, doc};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::plan::Plan;
use crate::support::outbox::record;
use crate::support::producers::Make;

/// A type that the broker always takes.
pub const PLAIN: &str = "T";
/// One that it returns for a while now and then.
pub const FLAKY: &str = "Flaky";
/// One that it returns until an operator mends it.
pub const DOOMED: &str = "Doomed";

/// What no sink of these histories lets a record name.
const FORBIDDEN: &str = "forbidden";

/// Makes records of which the plan's seed and the id decide what they are.
pub fn make(plan: &Plan) -> Make {
    let (seed, blocks) = (plan.seed, plan.setup.blocks);
    Arc::new(move |id, key| {
        let mut rng = StdRng::seed_from_u64(seed ^ hash(id));
        let mut made = record(id, key);
        // Where death blocks, a little of it is enough to hold every key.
        let deadly = if blocks { 2 } else { 10 };
        match rng.random_range(0..500) {
            0..25 => {
                let later = Duration::from_millis(rng.random_range(0..3000));
                let later = DateTime::now().saturating_add_duration(later);
                made.extend(doc! { "status": "scheduled", "visibleAt": later });
            }
            25..55 => _ = made.insert("type", FLAKY),
            55..75 => {
                made.remove("key");
                made.remove("partition");
            }
            75..85 => _ = made.remove("partition"),
            n if (100..100 + deadly).contains(&n) => _ = made.insert("type", DOOMED),
            n if (200..200 + deadly).contains(&n) => _ = made.insert("destination", FORBIDDEN),
            _ => {}
        }
        made
    })
}

/// FNV-1a: the same in every process, unlike the standard library's.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
