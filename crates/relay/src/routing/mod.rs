//! Which sink a record goes to, and where within it.

mod input;
mod template;

use std::collections::BTreeMap;

pub use input::RouteInput;
pub use template::{Missing, Template, TemplateError};

use postrider_outbox::ids::SinkName;
use postrider_outbox::reason::DeadReason;
use postrider_settings::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sink::Address;

/// A sink's own answer to "where to", for what neither record nor route says.
#[derive(Clone, Debug)]
pub struct SinkRules {
    /// `exchange` or `topic`.
    pub destination: Template,
    /// `routing_key`; `None` where the record's key is the message's.
    pub key: Option<Template>,
    /// The destinations that a record may name itself.
    pub allowed_destinations: Vec<Glob>,
    /// The CloudEvents source; `None` where the sink doesn't speak CloudEvents.
    pub source: Option<Template>,
}

/// One table `[[routes]]`. The first route whose `type` matches wins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// A glob of message types: `*` matches any characters, `?` one character. By default: all types.
    #[serde(rename = "type")]
    #[schemars(example = &"Order*")]
    pub kind: Option<Glob>,
    /// The sink. By default: `relay.default_sink`.
    #[schemars(example = &"orders")]
    pub sink: Option<SinkName>,
    /// Template of the exchange or topic. By default: that of the sink. A destination that the record names takes precedence.
    #[schemars(example = &"orders")]
    pub destination: Option<Template>,
    /// Template of the routing key, or of the record key in Kafka. By default: the `routing_key` of the sink, or the key of the record.
    #[schemars(example = &"{type}")]
    pub key: Option<Template>,
    /// Templates of headers to add. A header of the record with the same name takes precedence.
    #[schemars(extend("x-multiline" = true), example = example_headers())]
    pub headers: BTreeMap<String, Template>,
}

fn example_headers() -> BTreeMap<String, String> {
    [("source".to_owned(), "shop".to_owned())].into()
}

/// A record's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The sink.
    pub sink: SinkName,
    /// Where within it.
    pub address: Address,
    /// The route's headers, rendered; the record's own win over them.
    pub headers: Vec<(String, String)>,
    /// The CloudEvents source.
    pub source: Option<String>,
}

/// An address before a record fills it in.
#[derive(Clone, Debug)]
pub struct ConfiguredAddress<'a> {
    /// The type of all records that it is for; `None` if there may be several.
    pub kind: Option<String>,
    /// The exchange or topic.
    pub destination: &'a Template,
    /// The routing key; `None` where the record's key is the message's.
    pub key: Option<&'a Template>,
}

impl ConfiguredAddress<'_> {
    /// Returns the key if it is the same for all records.
    pub fn fixed_key(&self) -> Option<String> {
        let key = self.key?;
        match &self.kind {
            Some(kind) if *key == Template::message_type() => Some(kind.clone()),
            _ => key.literal().map(str::to_owned),
        }
    }
}

/// The records that no sink takes: each is dead at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnroutableRecords {
    /// None.
    None,
    /// Those whose type matches no route.
    Unmatched,
    /// All: there are several sinks, and neither a default one nor a route to one.
    All,
}

/// Routes records to sinks.
#[derive(Clone, Debug)]
pub struct Router {
    routes: Vec<Route>,
    sinks: BTreeMap<SinkName, SinkRules>,
    default_sink: Option<SinkName>,
}

impl Router {
    /// A router over `sinks`; without `default_sink` the only sink is the default.
    pub fn new(
        routes: Vec<Route>,
        sinks: BTreeMap<SinkName, SinkRules>,
        default_sink: Option<SinkName>,
    ) -> Self {
        let only = match sinks.len() {
            1 => sinks.keys().next().cloned(),
            _ => None,
        };
        Self { routes, sinks, default_sink: default_sink.or(only) }
    }

    /// The way of one record. First match wins; the record's own destination beats the
    /// route's, which beats the sink's.
    ///
    /// # Errors
    ///
    /// Why the record can never be delivered: [`DeadReason::Unroutable`], [`DeadReason::Template`] or
    /// [`DeadReason::Refused`].
    pub fn address(&self, input: &RouteInput<'_>) -> Result<Routed, DeadReason> {
        let (route, sink) = self.choose(input.kind);
        let Some((sink, rules)) = sink.and_then(|sink| self.sinks.get_key_value(sink)) else {
            let detail = "no route matches its type, and relay.default_sink is not set";
            return Err(DeadReason::Unroutable(detail.into()));
        };
        let render = |template: &Template| {
            template.render(input).map_err(|missing| DeadReason::Template(missing.to_string()))
        };
        let destination = match input.destination {
            Some(named) if rules.allowed_destinations.iter().any(|glob| glob.matches(named)) => {
                named.to_owned()
            }
            Some(_) => {
                let detail =
                    format!("its destination is not among sinks.{sink}.allowed_destinations");
                return Err(DeadReason::Refused(detail));
            }
            None => {
                let of_route = route.and_then(|route| route.destination.as_ref());
                render(of_route.unwrap_or(&rules.destination))?
            }
        };
        let key = route.and_then(|route| route.key.as_ref()).or(rules.key.as_ref());
        let key = key.map(render).transpose()?;
        let headers = route.into_iter().flat_map(|route| &route.headers);
        let headers = headers
            .map(|(name, template)| Ok((name.clone(), render(template)?)))
            .collect::<Result<Vec<_>, DeadReason>>()?;
        let source = rules.source.as_ref().map(render).transpose()?;
        Ok(Routed { sink: sink.clone(), address: Address { destination, key }, headers, source })
    }
}

impl Router {
    /// The sink of records of this type: all that it takes to know where they wait.
    pub fn sink(&self, kind: &str) -> Option<&SinkName> {
        self.choose(kind).1
    }

    /// Every address that the configuration names for this sink: its own, then its routes'.
    pub fn addresses(&self, sink: &SinkName) -> impl Iterator<Item = ConfiguredAddress<'_>> {
        let rules = self.sinks.get(sink);
        let own = rules.map(|rules| ConfiguredAddress {
            kind: None,
            destination: &rules.destination,
            key: rules.key.as_ref(),
        });
        let routes = self
            .routes
            .iter()
            .filter(move |route| route.sink.as_ref().or(self.default_sink.as_ref()) == Some(sink));
        let of_routes = rules.into_iter().flat_map(move |rules| {
            routes.clone().map(|route| ConfiguredAddress {
                kind: route.kind.as_ref().and_then(Glob::literal),
                destination: route.destination.as_ref().unwrap_or(&rules.destination),
                key: route.key.as_ref().or(rules.key.as_ref()),
            })
        });
        own.into_iter().chain(of_routes)
    }

    /// Returns which records no sink takes.
    pub fn unroutable(&self) -> UnroutableRecords {
        let is_catch_all = |route: &Route| {
            route.kind.as_ref().is_none_or(Glob::matches_all) && route.sink.is_some()
        };
        if self.default_sink.is_some() || self.routes.iter().any(is_catch_all) {
            UnroutableRecords::None
        } else if self.routes.iter().any(|route| route.sink.is_some()) {
            UnroutableRecords::Unmatched
        } else {
            UnroutableRecords::All
        }
    }

    fn choose(&self, kind: &str) -> (Option<&Route>, Option<&SinkName>) {
        let matches = |route: &&Route| route.kind.as_ref().is_none_or(|glob| glob.matches(kind));
        let route = self.routes.iter().find(matches);
        let sink = route.and_then(|route| route.sink.as_ref()).or(self.default_sink.as_ref());
        (route, sink)
    }

    /// A record's way within a sink that was chosen otherwise than by route: by the sink's own
    /// rules, without a destination.
    ///
    /// # Errors
    ///
    /// [`Missing`]: what a template of the sink's names.
    pub fn within(&self, sink: &SinkName, input: &RouteInput<'_>) -> Result<Routed, Missing> {
        let rules = self.sinks.get(sink);
        let render = |template: &Template| template.render(input);
        let key = rules.and_then(|rules| rules.key.as_ref()).map(render).transpose()?;
        let source = rules.and_then(|rules| rules.source.as_ref()).map(render).transpose()?;
        let address = Address { destination: String::new(), key };
        Ok(Routed { sink: sink.clone(), address, headers: Vec::new(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(destination: &str, key: Option<&str>, allowed_destinations: &str) -> SinkRules {
        SinkRules {
            destination: Template::parse(destination).unwrap(),
            key: key.map(|key| Template::parse(key).unwrap()),
            allowed_destinations: vec![Glob::new(allowed_destinations)],
            source: None,
        }
    }

    fn router(routes: Vec<Route>, default_sink: Option<&str>) -> Router {
        let sinks = BTreeMap::from([
            ("rabbit".into(), rules("", Some("{type}"), "*")),
            ("kafka".into(), rules("{type}", None, "orders.*")),
        ]);
        Router::new(routes, sinks, default_sink.map(SinkName::from))
    }

    fn route(kind: &str, sink: &str, destination: Option<&str>) -> Route {
        Route {
            kind: Some(Glob::new(kind)),
            sink: Some(sink.into()),
            destination: destination.map(|text| Template::parse(text).unwrap()),
            key: None,
            headers: [("via".into(), Template::parse("{type}").unwrap())].into(),
        }
    }

    fn input<'a>(kind: &'a str, destination: Option<&'a str>) -> RouteInput<'a> {
        RouteInput { kind, key: Some("k"), destination, tenant_id: None, headers: &[] }
    }

    #[test]
    fn the_first_route_that_matches_wins_and_adds_its_headers() {
        let routes =
            vec![route("Order*", "kafka", Some("orders.{key}")), route("*", "rabbit", None)];

        let routed = router(routes, None).address(&input("OrderCreated", None)).unwrap();

        assert_eq!(routed.sink, "kafka".into());
        assert_eq!(routed.address, Address { destination: "orders.k".into(), key: None });
        assert_eq!(routed.headers, [("via".to_owned(), "OrderCreated".to_owned())]);
    }

    #[test]
    fn without_a_match_the_default_sink_takes_it_and_without_one_it_is_unroutable() {
        let routed = router(vec![], Some("rabbit")).address(&input("T", None)).unwrap();
        let nowhere = router(vec![], None).address(&input("T", None)).unwrap_err();

        let address = Address { destination: String::new(), key: Some("T".into()) };
        assert_eq!(routed.address, address);
        assert!(matches!(nowhere, DeadReason::Unroutable(_)));
    }

    #[test]
    fn a_record_names_its_destination_where_its_sink_allows_it() {
        let routes = || vec![route("*", "kafka", Some("by-route"))];

        let allowed = router(routes(), None).address(&input("T", Some("orders.eu"))).unwrap();
        let refused = router(routes(), None).address(&input("T", Some("secret"))).unwrap_err();

        assert_eq!(allowed.address.destination, "orders.eu");
        assert!(matches!(refused, DeadReason::Refused(_)));
    }
}
