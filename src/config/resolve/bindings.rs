//! Bindings that bind less than they seem to: `*` is a word in AMQP, and no glob.

use std::collections::BTreeMap;

use postrider_sinks::declare::Declare;

use crate::config::tree::Sink;

/// A warning for each routing key that, at a topic exchange declared beside it, matches itself alone.
pub(super) fn warnings(sinks: &BTreeMap<String, Sink>) -> impl Iterator<Item = String> {
    let declared = sinks.iter().filter_map(|(name, sink)| Some((name, sink.declare.as_ref()?)));
    declared.flat_map(|(name, declare)| {
        let keys = declare.bindings.iter().filter(|binding| is_topic(declare, &binding.exchange));
        let literal = keys.map(|binding| &binding.routing_key).filter(|key| seems_a_glob(key));
        literal.map(move |key| {
            format!(
                "sinks.{name}.declare.bindings: the routing key {key:?} matches nothing but itself: at a \
                 topic exchange * is a whole word between dots, and # any number of them"
            )
        })
    })
}

fn is_topic(declare: &Declare, exchange: &str) -> bool {
    declare.exchanges.iter().any(|it| it.name == exchange && it.kind == "topic")
}

/// Whether `*` or `#` stands in a word of more.
fn seems_a_glob(routing_key: &str) -> bool {
    routing_key.split('.').any(|word| word.len() > 1 && word.contains(['*', '#']))
}
