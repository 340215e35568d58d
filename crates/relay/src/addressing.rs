//! Where a record goes: its sink, its destination, and whether both take records.

use postrider_outbox::content::Content;
use postrider_outbox::fields::TYPE;
use postrider_outbox::reason::DeadReason;
use postrider_outbox::record::Record;

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::context::{RelayContext, SinkHandle};
use crate::plan::Availability;
use crate::routing::{RouteInput, Routed};
use crate::sink::{Address, HeaderValue, Message, Sink};

/// The name of the sink that a record goes to, if it can be delivered at all.
pub(super) fn sink_name<'a, S>(context: &'a RelayContext<S>, record: &Record) -> Option<&'a str> {
    let kind = record.raw.get_str(TYPE).ok()?;
    context.router.sink(kind).map(|name| name.as_str())
}

/// The sink that a record goes to, if it can be delivered at all.
pub(super) fn sink_of<'a, S>(
    context: &'a RelayContext<S>,
    record: &Record,
) -> Option<&'a SinkHandle<S>> {
    context.sinks.get(sink_name(context, record)?)
}

/// The destination of a record within its sink; `None` if it cannot be delivered.
pub(super) fn destination_of<S: Sink>(
    context: &RelayContext<S>,
    handle: &SinkHandle<S>,
    record: &Record,
) -> Option<Address> {
    let (_, message) = message_of(context, record).ok()?;
    Some(handle.sink.destination(&message))
}

/// The message that a record makes, and the name of its sink.
///
/// # Errors
///
/// Why it can never be delivered.
pub(super) fn message_of<S>(
    context: &RelayContext<S>,
    record: &Record,
) -> Result<(String, Message), DeadReason> {
    let content = record.content().map_err(DeadReason::Malformed)?;
    let routed = context.router.address(&RouteInput::from(&content))?;
    let sink = routed.sink.to_string();
    Ok((sink, message(content, routed)))
}

/// A record's content on its route.
pub(super) fn message(content: Content, routed: Routed) -> Message {
    let Content { id, key, kind, content_type, payload, mut headers, tenant_id, timestamp, .. } =
        content;
    for (name, value) in routed.headers {
        // A record's own header wins over its route's.
        if !headers.iter().any(|(own, _)| *own == name) {
            headers.push((name, HeaderValue::String(value)));
        }
    }
    Message {
        id,
        key,
        kind,
        content_type,
        payload,
        headers,
        tenant_id,
        timestamp,
        source: routed.source,
        address: routed.address,
        is_urgent: false,
    }
}

/// Whether the sink and the destination of a record take records.
pub(super) fn availability<S: Sink>(context: &RelayContext<S>, record: &Record) -> Availability {
    // Only its dead letter is sent.
    if context.state.pending_deaths.reason(record).is_some() {
        return Availability::Available;
    }
    let Some(handle) = sink_of(context, record) else { return Availability::Available };
    if !handle.circuit.is_closed() {
        // A record that will be dead does not wait for its sink. (Asked last: it reads the payload.)
        let is_deliverable = message_of(context, record).is_ok();
        let paused = Availability::Paused(BlockReason::SinkPaused);
        return if is_deliverable { paused } else { Availability::Available };
    }
    if handle.destinations.all_closed() {
        return Availability::Available;
    }
    let Some(destination) = destination_of(context, handle, record) else {
        return Availability::Available;
    };
    match handle.destinations.waits(&destination) {
        None => Availability::Available,
        Some(_) if handle.destinations.wants_probe(&destination) => Availability::Probe,
        Some(_) => Availability::Paused(BlockReason::DestinationPaused),
    }
}

/// Blocks a key whose destination does not confirm: until it does, or until the key is called to
/// probe it.
pub(super) fn block_for_destination<S: Sink>(context: &RelayContext<S>, head: &Record) {
    let Some(sink) = sink_name(context, head) else { return };
    let Some(handle) = context.sinks.get(sink) else { return };
    let Some(destination) = destination_of(context, handle, head) else { return };
    let block =
        KeyBlock::for_destination(Blocker::of(head), None, sink.into(), destination.clone());
    let key_table = &context.state.key_table;
    key_table.block(head.lane.clone(), block);
    // It may have confirmed meanwhile, and unblocked the keys that waited before.
    if handle.destinations.waits(&destination).is_none() {
        key_table.unblock(&head.lane);
    }
}
