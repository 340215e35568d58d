//! Finds the sink and the destination of a record, and whether both are available.

use postrider_outbox::content::Content;
use postrider_outbox::fields::TYPE;
use postrider_outbox::reason::DeadReason;
use postrider_outbox::record::Record;

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::context::{RelayContext, SinkHandle};
use crate::plan::Availability;
use crate::routing::{RouteInput, Routed};
use crate::sink::{Address, HeaderValue, Message, Sink};

/// Returns the name of the record's sink, if the record can be delivered at all.
pub(super) fn sink_name<'a, S>(context: &'a RelayContext<S>, record: &Record) -> Option<&'a str> {
    let kind = record.raw.get_str(TYPE).ok()?;
    context.router.sink(kind).map(|name| name.as_str())
}

/// Returns the record's sink, if the record can be delivered at all.
pub(super) fn sink_of<'a, S>(
    context: &'a RelayContext<S>,
    record: &Record,
) -> Option<&'a SinkHandle<S>> {
    context.sinks.get(sink_name(context, record)?)
}

/// Returns the record's destination within its sink; `None` if the record cannot be delivered.
pub(super) fn destination_of<S: Sink>(
    context: &RelayContext<S>,
    handle: &SinkHandle<S>,
    record: &Record,
) -> Option<Address> {
    let (_, message) = message_of(context, record).ok()?;
    Some(handle.sink.destination(&message))
}

/// Builds the message of a record, and returns it with the name of its sink.
///
/// # Errors
///
/// Why the record can never be delivered.
pub(super) fn message_of<S>(
    context: &RelayContext<S>,
    record: &Record,
) -> Result<(String, Message), DeadReason> {
    let content = record.content().map_err(DeadReason::Malformed)?;
    let routed = context.router.address(&RouteInput::from(&content))?;
    let sink = routed.sink.to_string();
    Ok((sink, message(content, routed)))
}

/// Builds the message from a record's content and its route.
pub(super) fn message(content: Content, routed: Routed) -> Message {
    let Content { id, key, kind, content_type, payload, mut headers, tenant_id, timestamp, .. } =
        content;
    for (name, value) in routed.headers {
        // A header of the record overrides the same header of its route.
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

/// Returns whether the record's sink and destination are available.
pub(super) fn availability<S: Sink>(context: &RelayContext<S>, record: &Record) -> Availability {
    // Only its dead letter will be sent.
    if context.state.pending_deaths.reason(record).is_some() {
        return Availability::Available;
    }
    let Some(handle) = sink_of(context, record) else { return Availability::Available };
    if !handle.circuit.is_closed() {
        // An undeliverable record does not wait for its sink. (Checked last: it reads the payload.)
        let is_deliverable = message_of(context, record).is_ok();
        let down = Availability::Down(BlockReason::SinkDown);
        return if is_deliverable { down } else { Availability::Available };
    }
    if handle.destinations.all_closed() {
        return Availability::Available;
    }
    let Some(destination) = destination_of(context, handle, record) else {
        return Availability::Available;
    };
    match handle.destinations.open_until(&destination) {
        None => Availability::Available,
        Some(_) if handle.destinations.wants_probe(&destination) => Availability::Probe,
        Some(_) => Availability::Down(BlockReason::DestinationDown),
    }
}

/// Blocks a key whose destination does not confirm, until it confirms or the key may probe it.
pub(super) fn block_for_destination<S: Sink>(context: &RelayContext<S>, head: &Record) {
    let Some(sink) = sink_name(context, head) else { return };
    let Some(handle) = context.sinks.get(sink) else { return };
    let Some(destination) = destination_of(context, handle, head) else { return };
    let block =
        KeyBlock::for_destination(Blocker::of(head), None, sink.into(), destination.clone());
    let key_table = &context.state.key_table;
    key_table.block(head.lane.clone(), block);
    // It may have confirmed meanwhile, which unblocked only the keys that waited before.
    if handle.destinations.open_until(&destination).is_none() {
        key_table.unblock(&head.lane);
    }
}
