//! The rules of `[sinks.<name>]`.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_settings::quoted;
use postrider_sinks::declare::Declare;

use crate::config::resolve::{NO_SINK, Rules, list};
use crate::config::tree::{Config, Sink, SinkKind};
use crate::ids::SinkName;
use crate::routing::{Glob, SinkRules, Template};
use crate::sink::cloud_events::CloudEvents;
use crate::sink::kafka::{self, KafkaSettings};
use crate::sink::rabbitmq::{RabbitMq, RabbitMqSettings};

/// What a name in AMQP has at most, in bytes; Kafka's are shorter still.
const LONGEST_NAME: usize = 255;

/// How to make one sink.
#[derive(Clone, Debug)]
pub enum SinkPlan {
    /// RabbitMQ.
    RabbitMq(RabbitMqSettings),
    /// Kafka.
    Kafka(KafkaSettings),
    /// Standard output, with this limit for a line.
    Stdout(Duration),
}

impl SinkPlan {
    /// The same for a person who looks: it declares nothing, and waits no longer than this.
    pub fn for_a_look(&self, patience: Duration) -> Self {
        let mut plan = self.clone();
        let timeout = match &mut plan {
            Self::RabbitMq(settings) => {
                settings.declare = Declare::default();
                &mut settings.timeout
            }
            Self::Kafka(settings) => {
                settings.topics.clear();
                &mut settings.timeout
            }
            Self::Stdout(timeout) => timeout,
        };
        *timeout = patience.min(*timeout);
        plan
    }
}

pub(super) type Sinks = BTreeMap<SinkName, (SinkPlan, SinkRules)>;

impl Rules {
    pub(super) fn is_sink(&mut self, config: &Config, key: &str, sink: &str) {
        let names: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
        self.unless(
            config.sinks.contains_key(sink),
            key,
            format!("{NO_SINK}; there is {}", list(&names)),
        );
    }

    pub(super) fn sinks(&mut self, config: &Config) -> Sinks {
        if config.relay.enabled {
            let detail = "there is no sink; add one, such as [sinks.orders] with kind = \
                          \"rabbitmq\" and uri, or set relay.enabled = false";
            self.unless(!config.sinks.is_empty(), "sinks", detail);
        }
        let mut sinks = Sinks::new();
        for (name, sink) in &config.sinks {
            let mut rules = SinkRulesOf { all: self, name, sink };
            rules.common(config);
            rules.declared();
            let address = rules.address();
            let plan = rules.plan();
            if let (Some(address), Some(plan)) = (address, plan) {
                sinks.insert(SinkName::from(name.as_str()), (plan, address));
            }
        }
        sinks
    }
}

/// The rules of one sink.
struct SinkRulesOf<'a> {
    all: &'a mut Rules,
    name: &'a str,
    sink: &'a Sink,
}

impl SinkRulesOf<'_> {
    fn wrong(&mut self, key: &str, detail: impl Into<String>) {
        self.all.wrong(format!("sinks.{}.{key}", quoted(self.name)), detail);
    }

    fn common(&mut self, config: &Config) {
        let sink = self.sink;
        if sink.timeout.is_zero() || sink.timeout >= config.relay.lease {
            self.wrong(
                "timeout",
                "must be above 0 and below relay.lease: a publish that outlives its lease is \
                 repeated",
            );
        }
        if !(1..=1_000).contains(&sink.key_window) {
            self.wrong("key_window", "must be between 1 and 1000");
        }
        let own = |wanted: SinkKind| sink.kind == wanted;
        let declares = |list: fn(&Declare) -> bool| sink.declare.as_ref().is_some_and(list);
        let (rabbitmq, kafka) = (own(SinkKind::Rabbitmq), own(SinkKind::Kafka));
        for (key, is_set, fits) in [
            ("uri", sink.uri.is_some(), rabbitmq),
            ("exchange", sink.exchange.is_some(), rabbitmq),
            ("routing_key", sink.routing_key.is_some(), rabbitmq),
            ("mandatory", sink.mandatory.is_some(), rabbitmq),
            ("declare.exchanges", declares(|all| !all.exchanges.is_empty()), rabbitmq),
            ("declare.queues", declares(|all| !all.queues.is_empty()), rabbitmq),
            ("declare.bindings", declares(|all| !all.bindings.is_empty()), rabbitmq),
            ("brokers", sink.brokers.is_some(), kafka),
            ("topic", sink.topic.is_some(), kafka),
            ("properties", sink.properties.is_some(), kafka),
            ("declare.topics", declares(|all| !all.topics.is_empty()), kafka),
            ("cloudevents", sink.cloudevents, rabbitmq || kafka),
            ("cloudevents_source", sink.cloudevents_source.is_some(), rabbitmq || kafka),
            ("cloudevents_prefix", sink.cloudevents_prefix.is_some(), rabbitmq || kafka),
        ] {
            if is_set && !fits {
                let kind = match sink.kind {
                    SinkKind::Rabbitmq => "rabbitmq",
                    SinkKind::Kafka => "kafka",
                    SinkKind::Stdout => "stdout",
                };
                self.wrong(key, format!("is not for a sink of kind {kind:?}; leave it out"));
            }
        }
        for (key, value) in [
            ("cloudevents_prefix", &sink.cloudevents_prefix),
            ("cloudevents_source", &sink.cloudevents_source),
        ] {
            if value.as_ref().is_some_and(|value| value.is_empty()) {
                self.wrong(key, "is empty; leave it out for the usual one");
            }
        }
    }

    /// Names that no broker takes are found here rather than at every connection.
    fn declared(&mut self) {
        let sink = self.sink;
        let Some(declare) = &sink.declare else { return };
        let exchanges = declare.exchanges.iter().map(|exchange| ("exchanges", &exchange.name));
        let queues = declare.queues.iter().map(|queue| ("queues", &queue.name));
        let topics = declare.topics.iter().map(|topic| ("topics", &topic.name));
        let bound = declare.bindings.iter().flat_map(|bound| [&bound.queue, &bound.exchange]);
        let bindings = bound.map(|name| ("bindings", name));
        for (list, name) in exchanges.chain(queues).chain(topics).chain(bindings) {
            if name.is_empty() || name.len() > LONGEST_NAME {
                let detail =
                    format!("{name:?} is an invalid name: it must have 1 to {LONGEST_NAME} bytes");
                self.wrong(&format!("declare.{list}"), detail);
            }
        }
        if declare.bindings.iter().any(|binding| binding.routing_key.len() > LONGEST_NAME) {
            let detail = format!("a routing_key has more than {LONGEST_NAME} bytes");
            self.wrong("declare.bindings", detail);
        }
        for topic in &declare.topics {
            if topic.partitions.is_some_and(|count| count < 1)
                || topic.replication.is_some_and(|count| count < 1)
            {
                let detail = "partitions and replication must be at least 1; leave them out for \
                              the broker's own";
                self.wrong("declare.topics", detail);
            }
        }
    }

    /// Where its records go, for what neither record nor route says.
    fn address(&mut self) -> Option<SinkRules> {
        let sink = self.sink;
        let (destination, key) = match sink.kind {
            SinkKind::Rabbitmq | SinkKind::Stdout => {
                let destination = self.template("exchange", sink.exchange.as_deref(), "");
                let key = self.template("routing_key", sink.routing_key.as_deref(), "{type}");
                (destination?, Some(key?))
            }
            // Without a key of the route's the record's own is Kafka's.
            SinkKind::Kafka => (self.template("topic", sink.topic.as_deref(), "{type}")?, None),
        };
        let source = match sink.cloudevents {
            true => {
                let source = sink.cloudevents_source.as_deref();
                Some(self.template("cloudevents_source", source, "postrider")?)
            }
            false => None,
        };
        let allow = sink.allow.iter().map(|glob| Glob::new(glob)).collect();
        Some(SinkRules { destination, key, allow, source })
    }

    fn template(&mut self, key: &str, text: Option<&str>, default: &str) -> Option<Template> {
        match Template::parse(text.unwrap_or(default)) {
            Ok(template) => Some(template),
            Err(error) => {
                self.wrong(key, error.to_string());
                None
            }
        }
    }

    fn plan(&mut self) -> Option<SinkPlan> {
        match self.sink.kind {
            SinkKind::Rabbitmq => self.rabbitmq(),
            SinkKind::Kafka => self.kafka(),
            SinkKind::Stdout => Some(SinkPlan::Stdout(self.sink.timeout)),
        }
    }

    fn rabbitmq(&mut self) -> Option<SinkPlan> {
        let sink = self.sink;
        let Some(uri) = sink.uri.clone() else {
            self.wrong("uri", "is not set; write it as amqp://user:password@host:5672/vhost");
            return None;
        };
        let settings = RabbitMqSettings {
            name: SinkName::from(self.name),
            uri,
            mandatory: sink.mandatory.unwrap_or(true),
            timeout: sink.timeout,
            declare: sink.declare.clone().unwrap_or_default(),
            cloud_events: self.cloud_events("cloudEvents_"),
            replaces: sink.key_window == 1,
        };
        if let Err(error) = RabbitMq::new(settings.clone()) {
            self.wrong("uri", format!("is not an AMQP URI: {error}"));
        }
        Some(SinkPlan::RabbitMq(settings))
    }

    fn kafka(&mut self) -> Option<SinkPlan> {
        let sink = self.sink;
        let Some(brokers) = sink.brokers.as_ref().map(|brokers| brokers.joined()) else {
            self.wrong("brokers", "is not set; write it as host:9092, or a list of such");
            return None;
        };
        if brokers.trim_matches([',', ' ']).is_empty() {
            self.wrong("brokers", "is empty; write it as host:9092, or a list of such");
            return None;
        }
        let settings = KafkaSettings {
            name: SinkName::from(self.name),
            brokers,
            properties: sink.properties.clone().unwrap_or_default(),
            timeout: sink.timeout,
            topics: sink.declare.clone().unwrap_or_default().topics,
            cloud_events: self.cloud_events("ce_"),
            gathers: sink.key_window == 1,
        };
        for property in kafka::wrong_properties(&settings) {
            self.wrong(&property.key, property.detail);
        }
        Some(SinkPlan::Kafka(settings))
    }

    fn cloud_events(&self, usual: &str) -> Option<CloudEvents> {
        let prefix = self.sink.cloudevents_prefix.as_deref().unwrap_or(usual);
        self.sink.cloudevents.then(|| CloudEvents { prefix: prefix.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{Inputs, load};
    use crate::config::resolve::{Problem, Resolved, resolve};

    fn with(settings: &[&str]) -> Result<Resolved, Vec<Problem>> {
        let settings = ["mongo.uri=mongodb://h/db"].iter().chain(settings);
        let set = settings.map(|setting| (*setting).to_owned()).collect();
        resolve(&load(&Inputs { set, ..Inputs::default() }).unwrap())
    }

    #[track_caller]
    fn only_problem(settings: &[&str]) -> Problem {
        let problems = with(settings).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].clone()
    }

    #[test]
    fn a_rabbitmq_sink_needs_a_uri_that_is_one() {
        let kind = "sinks.r.kind=rabbitmq";

        let without = only_problem(&[kind]);
        let wrong = only_problem(&[kind, "sinks.r.uri=http://u:secret@h"]);

        assert_eq!(without.key, "sinks.r.uri");
        assert_eq!(wrong.key, "sinks.r.uri");
        assert!(!format!("{wrong:?}").contains("secret"));
    }

    #[test]
    fn a_kafka_sink_needs_brokers() {
        let without = only_problem(&["sinks.k.kind=kafka"]);
        assert_eq!(without.key, "sinks.k.brokers");
        assert!(without.detail.starts_with("is not set"), "{without}");
        for brokers in ["[]", "", "[\"\"]"] {
            let brokers = format!("sinks.k.brokers={brokers}");
            let empty = only_problem(&["sinks.k.kind=kafka", &brokers]);
            assert!(empty.detail.starts_with("is empty"), "{empty}");
        }
        for brokers in ["a:9092,b:9092", "\"a:9092,b:9092\"", "[\"a:9092\", \"b:9092\"]"] {
            let brokers = format!("sinks.k.brokers={brokers}");
            let resolved = with(&["sinks.k.kind=kafka", &brokers]).unwrap();
            let SinkPlan::Kafka(settings) = &resolved.sinks[&"k".into()] else { panic!() };
            assert_eq!(settings.brokers, "a:9092,b:9092");
        }
    }

    #[test]
    fn a_wrong_property_is_named_and_a_secret_one_not_shown() {
        let kafka = ["sinks.k.kind=kafka", "sinks.k.brokers=h"];
        for (property, key, words) in [
            ("\"no.such\"=1", "no.such", "No such configuration property"),
            ("\"linger.ms\"=soon", "linger.ms", "Invalid value"),
            ("acks=1", "acks", "must be all"),
            ("\"enable.idempotence\"=false", "enable.idempotence", "must be true"),
            ("\"metadata.broker.list\"=h", "metadata.broker.list", "sinks.<name>.brokers"),
            ("\"delivery.timeout.ms\"=5", "delivery.timeout.ms", "sinks.<name>.timeout"),
            ("\"transactional.id\"=a", "transactional.id", "leave it out"),
        ] {
            let setting = format!("sinks.k.properties.{property}");

            let problem = only_problem(&[kafka[0], kafka[1], &setting]);

            assert!(problem.key.starts_with("sinks.k.properties"), "{problem}");
            assert!(problem.to_string().contains(key), "{problem}");
            assert!(problem.detail.contains(words), "{problem}");
        }
        let file = "sinks.k.properties.\"ssl.ca.location\"=/no/such/file";
        let tls = "sinks.k.properties.\"security.protocol\"=ssl";
        let problem = only_problem(&[kafka[0], kafka[1], tls, file]);
        assert!(problem.key.contains("ssl.ca.location"), "{problem}");
        let secret = "sinks.k.properties.\"ssl.key.pem\"=hush";
        let problem = only_problem(&[kafka[0], kafka[1], tls, secret]);
        assert!(!format!("{problem:?}").contains("hush"), "{problem}");
    }

    #[test]
    fn property_that_breaks_a_promise_is_refused_by_any_of_its_names() {
        for (property, words) in [
            ("\"delivery.report.only.error\"=true", "no record is ever confirmed"),
            ("\"topic.blacklist\"=orders", "no record to such a topic"),
            ("\"topic.acks\"=1", "must be all"),
            ("\"topic.request.required.acks\"=1", "must be all"),
            ("\"topic.delivery.timeout.ms\"=5", "sinks.<name>.timeout"),
            ("\"message.send.max.retries\"=0", "at least 1"),
            ("\"max.in.flight.requests.per.connection\"=6", "at most 5"),
            ("\"topic.queuing.strategy\"=lifo", "must be fifo"),
            ("\"queue.buffering.backpressure.threshold\"=2", "must be 1"),
            ("\"topic.partitioner\"=random", "have no order"),
            ("\"enable.gapless.guarantee\"=true", "must be false"),
            ("\"api.version.request\"=false", "must be true"),
            ("\"socket.max.fails\"=0", "must be 1"),
            ("\"log.connection.close\"=false", "must be true"),
            ("\"internal.termination.signal\"=15", "must be 0"),
            ("\"request.timeout.ms\"=9000", "below message.timeout.ms"),
            ("\"socket.timeout.ms\"=4500", "above request.timeout.ms"),
            ("\"queue.buffering.max.ms\"=9000", "below message.timeout.ms"),
            ("\"topic.metadata.propagation.max.ms\"=10000", "below sinks.<name>.timeout"),
            ("\"queue.buffering.max.kbytes\"=976", "message.max.bytes"),
            ("dr_msg_cb=x", "dr_msg_cb"),
        ] {
            let setting = format!("sinks.k.properties.{property}");

            let problem = only_problem(&["sinks.k.kind=kafka", "sinks.k.brokers=h", &setting]);

            assert!(problem.to_string().contains(words), "{setting}: {problem}");
        }
        for property in [
            "acks=all",
            "\"topic.acks\"=-1",
            "retries=1",
            "\"max.in.flight\"=5",
            "\"request.timeout.ms\"=8999",
            "\"socket.timeout.ms\"=4501",
            "\"linger.ms\"=0.5",
            "\"queue.buffering.max.kbytes\"=977",
            "partitioner=fnv1a",
        ] {
            let setting = format!("sinks.k.properties.{property}");
            let judged = with(&["sinks.k.kind=kafka", "sinks.k.brokers=h", &setting]);
            assert!(judged.is_ok(), "{property}: {judged:?}");
        }
    }

    #[test]
    fn every_wrong_property_is_named_with_its_place_and_value() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[mongo]\nuri = \"mongodb://h/db\"\n[sinks.\"k.k\"]\nkind = \"kafka\"\n\
                    brokers = \"h\"\n[sinks.\"k.k\".properties]\nacks = 1\nlinger.ms = \"soon\"\n\
                    \"security.protocol\" = \"ssl\"\n\"ssl.ca.location\" = \"/no/such/ca\"\n\
                    ssl.key.location = \"/no/such/key\"\n";
        std::fs::write(file.path(), text).unwrap();
        let set = vec!["sinks.\"k.k\".properties.\"no.such\"=1".to_owned()];
        let inputs = Inputs { file: Some(file.path().to_owned()), set, ..Inputs::default() };

        let problems = resolve(&load(&inputs).unwrap()).unwrap_err();

        let path = file.path().display();
        let expected = [
            format!("{path}:7: sinks.\"k.k\".properties.acks = \"1\": must be all"),
            format!("{path}:8: sinks.\"k.k\".properties.\"linger.ms\" = \"soon\": Invalid value"),
            "--set: sinks.\"k.k\".properties.\"no.such\" = \"1\": No such".to_owned(),
            format!("{path}:10: sinks.\"k.k\".properties.\"ssl.ca.location\" = \"/no/such/ca\": "),
            format!(
                "{path}:11: sinks.\"k.k\".properties.\"ssl.key.location\" = \"/no/such/key\": "
            ),
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            let told = problem.to_string();
            assert!(told.starts_with(&expected), "{told}");
            assert!(!told.contains(['\n']) && !told.ends_with("\\n"), "{told:?}");
        }
    }

    #[test]
    fn an_empty_source_or_prefix_of_cloud_events_is_told() {
        for key in ["cloudevents_source", "cloudevents_prefix"] {
            let setting = format!("sinks.k.{key}=");
            let sink = ["sinks.k.kind=kafka", "sinks.k.brokers=h", "sinks.k.cloudevents=true"];

            let problem = only_problem(&[&sink[..], &[&setting]].concat());

            assert_eq!(problem.key, format!("sinks.k.{key}"));
        }
    }

    #[test]
    fn what_is_for_another_kind_is_told() {
        for (setting, key) in [
            ("sinks.out.uri=amqp://h", "uri"),
            ("sinks.out.brokers=h", "brokers"),
            ("sinks.out.cloudevents=true", "cloudevents"),
            ("sinks.out.cloudevents_source=x", "cloudevents_source"),
            ("sinks.out.declare={topics = [{name = \"t\"}]}", "declare.topics"),
            ("sinks.out.declare={queues = [{name = \"q\"}]}", "declare.queues"),
        ] {
            let problem = only_problem(&["sinks.out.kind=stdout", setting]);
            assert_eq!(problem.key, format!("sinks.out.{key}"));
        }
    }
}
