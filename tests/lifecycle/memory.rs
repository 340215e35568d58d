//! Memory stays bounded by `relay.batch_bytes`, whatever the outbox holds.

use std::process::Stdio;

use bson::doc;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::support::sizes::incompressible;
use crate::util::with;

/// Bytes of a payload.
const LARGE: usize = 1 << 20;

/// The most memory that the process ever had, in bytes, without that of its program, which is 50 MB in a
/// debug build.
fn peak(postrider: &Postrider) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", postrider.id())).unwrap();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    };
    bytes("VmHWM:") - bytes("RssFile:")
}

/// Twenty lanes that ask for more at once, and rotations at the same time.
#[fixture::test(long)]
async fn batch_bytes_limits_all_reads_together() {
    let outbox = TestOutbox::new().await;
    let payload =
        bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: incompressible(LARGE) };
    for number in 0..15 {
        let records = (0..20).map(|key| {
            let mut record = record(&format!("{key} {number}"), &format!("k{key}"));
            record.insert("payload", payload.clone());
            record
        });
        outbox.insert(records).await;
    }
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut command = run_with(&with(settings, &["relay.batch_bytes=8MiB"]));
    command.stdout(Stdio::null());

    let mut postrider = Postrider::of(command);
    outbox.until_count(doc! { "status": "done" }, 300).await;
    let peak = peak(&postrider);
    postrider.stop().await;

    // Memory for MongoDB's answers and the broker's frames is in addition to the limit.
    assert!(peak < 110 << 20, "{} MiB", peak >> 20);
}
