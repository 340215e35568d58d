//! From settings to what the parts are built from, by the rules that span several keys.

mod api;
mod bindings;
mod names_of_mongodb;
mod sinks;

use std::collections::BTreeMap;
use std::time::Duration;

use mongodb::options::ConnectionString;
use postrider_settings::quoted;
use postrider_settings::secret::SecretUri;

use crate::config::load::Loaded;
use crate::config::problem::Problem;
use crate::config::tree::{BackoffKind, Config, LogFormat, OnDead, Ordering, Partitions};
use crate::context::ContextSettings;
use crate::ids::SinkName;
use crate::outbox::fields::ATTEMPT_LIMIT;
use crate::partition::coordinator::{self, Source};
use crate::partition::fingerprint::Fingerprint;
use crate::partition::fleet;
use crate::partition::heartbeat::Profile;
use crate::partition::names::MAX_NAME_LENGTH;
use crate::partition::set::partition_set;
use crate::relay::backoff::{Backoff, Kind};
use crate::relay::settings::{DeadLetters, Settings};
use crate::routing::{Glob, Route, Router, Template};
use crate::schema::SchemaOptions;
use crate::schema::access::{Part, Wanted};
use crate::schema::roles::Places;
use crate::store::words;

pub use api::{ApiPlan, TlsFiles};
pub use sinks::SinkPlan;

/// How the problem of a key begins that names no sink.
const NO_SINK: &str = "must be the name of a sink";

/// The longest retention: MongoDB keeps `expireAfterSeconds` in an int32.
const LONGEST_RETENTION: Duration = Duration::from_secs(i32::MAX as u64);

/// Everything the parts need, checked.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The URI of MongoDB.
    pub mongo: SecretUri,
    /// The outbox's database.
    pub database: String,
    /// In front of the collections' names.
    pub prefix: String,
    /// Whether `run` creates the schema.
    pub auto_init_schema: bool,
    /// What the schema depends on: how long a done record stays, what the validator does.
    pub schema: SchemaOptions,
    /// Whether this process relays.
    pub relay_enabled: bool,
    /// Whether a change stream wakes it.
    pub follow: bool,
    /// The relay's own settings.
    pub relay: Settings,
    /// Which sink and where.
    pub router: Router,
    /// The sinks by name.
    pub sinks: BTreeMap<SinkName, SinkPlan>,
    /// How partitions come to this instance.
    pub fleet: coordinator::Settings,
    /// What this instance tells of itself; its name is not known before the start.
    pub profile: Profile,
    /// The name that the operator gave this instance.
    pub instance_name: Option<String>,
    /// How often it tells that it lives.
    pub heartbeat: Duration,
    /// Whether the API of this process hosts the append path.
    pub events_enabled: bool,
    /// Where events, snapshots and prepare keys live.
    pub context: ContextSettings,
    /// The HTTP API, where this process hosts it.
    pub api: Option<ApiPlan>,
    /// Where liveness, readiness and metrics are served.
    pub ops_listen: String,
    /// What an operator should know, though it stops nothing.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// What the user of `mongo.uri` must be allowed for a part of the work.
    pub fn wanted<'a>(&'a self, part: Part<'a>) -> Wanted<'a> {
        let places =
            Places { outbox: &self.database, prefix: &self.prefix, context: &self.context };
        Wanted { places, retention: self.schema.retention, part }
    }
}

/// `true` for JSON, `false` for text, `None` for whichever fits the output.
pub fn log_as_json(format: LogFormat) -> Option<bool> {
    match format {
        LogFormat::Auto => None,
        LogFormat::Json => Some(true),
        LogFormat::Text => Some(false),
    }
}

/// Applies every rule.
///
/// # Errors
///
/// The rules that are broken, all of them, each with its key, its place and what to do.
pub fn resolve(loaded: &Loaded) -> Result<Resolved, Vec<Problem>> {
    let resolved = judge(&loaded.config).map_err(|problems| {
        problems.into_iter().map(|problem| loaded.located(problem)).collect::<Vec<_>>()
    })?;
    let warnings = [loaded.warnings.clone(), resolved.warnings].concat();
    Ok(Resolved { warnings, ..resolved })
}

/// The rules that are broken beyond what could not be read: by values that were written, and do not
/// depend on one of those that could not.
pub fn beyond(unread: &[Problem], rest: &Loaded) -> Vec<Problem> {
    let Err(problems) = resolve(rest) else { return Vec::new() };
    problems.into_iter().filter(|broken| rest.sets(&broken.key) && stands(broken, unread)).collect()
}

/// Whether a broken rule is broken whatever stands in the place of what could not be read.
fn stands(broken: &Problem, unread: &[Problem]) -> bool {
    let is_within = |key: &str, of: &str| {
        key.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    unread.iter().all(|unread| {
        // A rule of several keys names the others.
        let named = broken.detail.contains(&unread.key) && unread.key.contains('.');
        let of_sinks = unread.key.starts_with("sink") && broken.detail.starts_with(NO_SINK);
        let same = is_within(&unread.key, &broken.key) || is_within(&broken.key, &unread.key);
        !(named || of_sinks || same)
    })
}

fn judge(config: &Config) -> Result<Resolved, Vec<Problem>> {
    let mut rules = Rules::default();
    let mongo = rules.mongo(config);
    let database = rules.database(config, mongo.as_ref());
    let context = database.as_deref().map(|outbox| rules.context(config, mongo.as_ref(), outbox));
    rules.instance(config);
    rules.outbox(config, database.as_deref());
    rules.relay(config);
    let sinks = rules.sinks(config);
    let routes = rules.routes(config);
    let source = rules.partitions(config);
    rules.log(config);
    let dead_letter = rules.dead_letter(config);
    let warnings = warnings(config);
    let api = rules.api(config);
    let (Some((_, mongo)), Some(database), Some(context)) = (mongo, database, context) else {
        return Err(rules.problems);
    };
    if !rules.problems.is_empty() {
        return Err(rules.problems);
    }
    let default_sink = config.relay.default_sink.as_deref().map(SinkName::from);
    let addresses = sinks.iter().map(|(name, (_, rules))| (name.clone(), rules.clone())).collect();
    Ok(Resolved {
        mongo,
        database,
        prefix: config.outbox.collection_prefix.clone(),
        auto_init_schema: config.outbox.auto_init_schema,
        schema: config.outbox.schema_options(),
        relay_enabled: config.relay.enabled,
        follow: config.relay.follow,
        relay: Settings { dead_letter, ..settings(config) },
        router: Router::new(routes, addresses, default_sink),
        sinks: sinks.into_iter().map(|(name, (plan, _))| (name, plan)).collect(),
        fleet: coordinator::Settings {
            source,
            stale_after: config.partitions.stale_after,
            rebalance: config.partitions.rebalance,
        },
        profile: profile(config),
        instance_name: config.instance.name.clone(),
        heartbeat: config.partitions.heartbeat,
        events_enabled: config.events.enabled && config.api.enabled,
        context,
        api,
        ops_listen: config.ops.listen.clone(),
        warnings,
    })
}

fn settings(config: &Config) -> Settings {
    let relay = &config.relay;
    Settings {
        batch_size: relay.batch_size,
        batch_bytes: usize::try_from(relay.batch_bytes).unwrap_or(usize::MAX),
        poll_interval: relay.poll_interval,
        lease: relay.lease,
        max_attempts: u32::try_from(relay.max_attempts).unwrap_or(u32::MAX),
        ordered: relay.ordering == Ordering::Key,
        block_on_dead: relay.on_dead == OnDead::Block,
        backoff: Backoff {
            kind: match relay.backoff.kind {
                BackoffKind::Fixed => Kind::Fixed,
                BackoffKind::Linear => Kind::Linear,
                BackoffKind::Exponential => Kind::Exponential,
            },
            initial: relay.backoff.initial,
            factor: relay.backoff.factor,
            max: relay.backoff.max,
            jitter: relay.backoff.jitter,
        },
        shutdown_timeout: relay.shutdown_timeout,
        probe_max: relay.probe_max,
        audit_interval: relay.audit_interval,
        dead_letter: None,
        key_windows: config
            .sinks
            .iter()
            .filter(|(_, sink)| sink.key_window > 1)
            .map(|(name, sink)| (name.clone(), sink.key_window))
            .collect(),
    }
}

fn profile(config: &Config) -> Profile {
    let partitions = match (&config.partitions.fixed, config.relay.enabled) {
        (_, false) => fleet::NONE,
        (Some(text), true) => text,
        (None, true) => fleet::ASSIGNED,
    };
    let fingerprint = Fingerprint {
        ordered: config.relay.ordering == Ordering::Key,
        block_on_dead: config.relay.on_dead == OnDead::Block,
        prefix: config.outbox.collection_prefix.clone(),
    };
    Profile { fingerprint, partitions: partitions.to_owned(), name: None }
}

fn warnings(config: &Config) -> Vec<String> {
    let relay = &config.relay;
    let mut warnings = Vec::new();
    if relay.ordering == Ordering::None && relay.on_dead == OnDead::Block {
        warnings.push(
            "relay.on_dead = \"block\" has no effect with relay.ordering = \"none\"".to_owned(),
        );
    }
    warnings.extend(bindings::warnings(&config.sinks));
    warnings
}

#[derive(Default)]
struct Rules {
    problems: Vec<Problem>,
}

impl Rules {
    fn wrong(&mut self, key: impl Into<String>, detail: impl Into<String>) {
        self.problems.push(Problem::new(key, detail));
    }

    fn unless(&mut self, right: bool, key: impl Into<String>, detail: impl Into<String>) {
        if !right {
            self.wrong(key, detail);
        }
    }

    /// The URI, and the key that has it.
    fn mongo(&mut self, config: &Config) -> Option<(String, SecretUri)> {
        let mongo = &config.mongo;
        let source = quoted(&mongo.source);
        let of_source = || {
            let of_source = mongo.sources.get(&mongo.source)?;
            Some((format!("mongo.sources.{source}.uri"), &of_source.uri))
        };
        let of_string = || {
            let uri = config.connection_strings.get(&mongo.source)?;
            Some((format!("connection_strings.{source}"), uri))
        };
        let own = mongo.uri.as_ref().map(|uri| ("mongo.uri".to_owned(), uri));
        let Some((key, uri)) = own.or_else(of_source).or_else(of_string) else {
            let detail = format!(
                "is not set; set it, or mongo.sources.{source}.uri, or connection_strings.{source}"
            );
            self.wrong("mongo.uri", detail);
            return None;
        };
        if let Err(detail) = uri.check(parse_mongo) {
            self.wrong(&key, format!("is not a MongoDB URI: {detail}"));
        }
        Some((key, uri.clone()))
    }

    fn database(&mut self, config: &Config, uri: Option<&(String, SecretUri)>) -> Option<String> {
        let own = config.outbox.database.clone().map(|name| ("outbox.database".to_owned(), name));
        let Some((key, name)) = own.or_else(|| common_database(config, uri)) else {
            if uri.is_some() {
                let detail = "is not set, and the URI names no database; set it, or write the URI as \
                              mongodb://host/database";
                self.wrong("mongo.database", detail);
            }
            return None;
        };
        self.database_name(&key, &name);
        Some(name)
    }

    fn database_name(&mut self, key: &str, name: &str) {
        let Err(detail) = names_of_mongodb::check_database(name) else { return };
        let is_uri = ["mongo.uri", "mongo.sources.", "connection_strings."]
            .iter()
            .any(|of_uri| key.starts_with(of_uri));
        let detail = match is_uri {
            // Without the name: of a broken URI it may be a part of the password.
            true => format!("the database in it {detail}, or set mongo.database"),
            false => detail,
        };
        self.wrong(key, detail);
    }

    /// Each part's own database, else that of all, else the outbox's.
    fn context(
        &mut self,
        config: &Config,
        uri: Option<&(String, SecretUri)>,
        outbox: &str,
    ) -> ContextSettings {
        let common = common_database(config, uri);
        // Otherwise it was judged as the outbox's, or is not used.
        if let Some((key, name)) = &common
            && config.outbox.database.is_some()
            && config.api.enabled
        {
            self.database_name(key, name);
        }
        let all = common.map_or_else(|| outbox.to_owned(), |(_, name)| name);
        let mut own = |key, name: &Option<String>| match name {
            Some(name) => {
                self.database_name(key, name);
                name.clone()
            }
            None => all.clone(),
        };
        let (events, snapshots, prepare) = (
            own("events.database", &config.events.database),
            own("snapshots.database", &config.snapshots.database),
            own("prepare.database", &config.prepare.database),
        );
        let name = config.events.context.clone();
        self.unless(!name.is_empty(), "events.context", "is empty; name the bounded context");
        let request_ids = config.events.request_id_unique;
        let auto_init_schema = config.outbox.auto_init_schema;
        ContextSettings { name, events, snapshots, prepare, request_ids, auto_init_schema }
    }

    fn outbox(&mut self, config: &Config, database: Option<&str>) {
        let prefix = &config.outbox.collection_prefix;
        if let Err(detail) = names_of_mongodb::check_prefix(prefix, database.unwrap_or_default()) {
            self.wrong("outbox.collection_prefix", detail);
        }
        self.unless(
            config.outbox.retention <= LONGEST_RETENTION,
            "outbox.retention",
            "is above 68 years, MongoDB's limit",
        );
    }

    fn relay(&mut self, config: &Config) {
        let relay = &config.relay;
        self.unless(
            (1..=10_000).contains(&relay.batch_size),
            "relay.batch_size",
            "must be between 1 and 10000",
        );
        self.unless(relay.batch_bytes > 0, "relay.batch_bytes", "must be above 0");
        self.unless(
            relay.poll_interval >= Duration::from_millis(10),
            "relay.poll_interval",
            "must be at least 10ms",
        );
        self.unless(
            relay.lease >= Duration::from_secs(1),
            "relay.lease",
            "must be at least 1s: shorter than MongoDB's answer under load it would expire unused",
        );
        let limit = u64::from(ATTEMPT_LIMIT.unsigned_abs());
        self.unless(
            (1..=limit).contains(&relay.max_attempts),
            "relay.max_attempts",
            format!("must be between 1 and {limit}"),
        );
        self.unless(
            relay.probe_max >= Duration::from_millis(100),
            "relay.probe_max",
            "must be at least 100ms",
        );
        self.unless(
            relay.audit_interval >= Duration::from_secs(1),
            "relay.audit_interval",
            "must be at least 1s",
        );
        let backoff = &relay.backoff;
        self.unless(
            backoff.factor.is_finite() && backoff.factor >= 1.0,
            "relay.backoff.factor",
            "must be at least 1.0",
        );
        self.unless(
            (0.0..=1.0).contains(&backoff.jitter),
            "relay.backoff.jitter",
            "must be between 0.0 and 1.0",
        );
        self.unless(
            backoff.max >= backoff.initial,
            "relay.backoff.max",
            "is below relay.backoff.initial",
        );
        if let Some(sink) = &relay.default_sink {
            self.is_sink(config, "relay.default_sink", sink);
        }
    }

    fn routes(&mut self, config: &Config) -> Vec<Route> {
        let mut routes = Vec::new();
        for (at, route) in config.routes.iter().enumerate() {
            let key = |key: &str| format!("routes.{at}.{key}");
            if let Some(sink) = &route.sink {
                self.is_sink(config, &key("sink"), sink);
            }
            let mut parse = |name: &str, text: &str| match Template::parse(text) {
                Ok(template) => Some(template),
                Err(error) => {
                    self.wrong(key(name), error.to_string());
                    None
                }
            };
            let headers = route.headers.iter().filter_map(|(name, text)| {
                Some((name.clone(), parse(&format!("headers.{}", quoted(name)), text)?))
            });
            let headers = headers.collect();
            routes.push(Route {
                kind: route.kind.as_deref().map(Glob::new),
                sink: route.sink.as_deref().map(SinkName::from),
                destination: route
                    .destination
                    .as_deref()
                    .and_then(|text| parse("destination", text)),
                key: route.key.as_deref().and_then(|text| parse("key", text)),
                headers,
            });
        }
        routes
    }

    fn dead_letter(&mut self, config: &Config) -> Option<DeadLetters> {
        let wanted = config.relay.dead_letter.as_ref()?;
        self.is_sink(config, "relay.dead_letter.sink", &wanted.sink);
        match Template::parse(&wanted.destination) {
            Ok(destination) => Some(DeadLetters { sink: wanted.sink.as_str().into(), destination }),
            Err(error) => {
                self.wrong("relay.dead_letter.destination", error.to_string());
                None
            }
        }
    }

    fn partitions(&mut self, config: &Config) -> Source {
        let Partitions { heartbeat, stale_after, rebalance, fixed } = &config.partitions;
        let least = Duration::from_millis(100);
        self.unless(*heartbeat >= least, "partitions.heartbeat", "must be at least 100ms");
        self.unless(*rebalance >= least, "partitions.rebalance", "must be at least 100ms");
        self.unless(
            *stale_after >= *heartbeat * 2,
            "partitions.stale_after",
            "must be at least twice partitions.heartbeat: one late heartbeat is no death",
        );
        let Some(text) = fixed else { return Source::Assigned };
        match partition_set(text) {
            Ok(partitions) => Source::Static(partitions),
            Err(detail) => {
                self.wrong("partitions.static", detail);
                Source::Assigned
            }
        }
    }

    fn instance(&mut self, config: &Config) {
        let Some(name) = &config.instance.name else { return };
        let length = name.chars().count();
        let is_right = (1..=MAX_NAME_LENGTH).contains(&length) && name.trim() == name;
        let detail = format!(
            "has {length} characters; must have 1 to {MAX_NAME_LENGTH}, without spaces at its ends"
        );
        self.unless(is_right, "instance.name", detail);
    }

    fn log(&mut self, config: &Config) {
        if let Err(error) = crate::telemetry::check_level(&config.log.level) {
            let detail = format!(
                "{error}; set error, warn, info, debug, trace, off, or a filter such as \
                 postrider=debug,info"
            );
            self.wrong("log.level", detail);
        }
        self.host("ops.listen", &config.ops.listen);
    }

    /// The host of an address to listen on.
    fn host<'a>(&mut self, key: &str, address: &'a str) -> Option<&'a str> {
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Some(host),
            _ => {
                self.wrong(key, "must be host:port, such as 127.0.0.1:8080");
                None
            }
        }
    }
}

/// Parses a URI as the driver does, but for what the driver panics on: a `%` of user or password
/// with a character behind it that is not ASCII.
fn parse_mongo(uri: &str) -> Result<(), String> {
    let is_escape = |behind: &str| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !uri.split('%').skip(1).all(is_escape) {
        return Err("it has a % that begins no escape; write %25".to_owned());
    }
    ConnectionString::parse(uri).map(drop).map_err(|error| words(&error))
}

/// The database of everything that names none of its own, and the key that has it.
fn common_database(config: &Config, uri: Option<&(String, SecretUri)>) -> Option<(String, String)> {
    let all = config.mongo.database.clone().map(|name| ("mongo.database".to_owned(), name));
    let of_uri = || {
        let (key, uri) = uri?;
        Some((key.clone(), database_in(uri.expose())?))
    };
    all.or_else(of_uri)
}

/// The database in a MongoDB URI: what stands between the hosts and the options.
fn database_in(uri: &str) -> Option<String> {
    let rest = uri.split_once("://")?.1;
    let rest = rest.split('?').next()?;
    // Behind the last @: a password may hold a slash that should have been escaped.
    let hosts = rest.rsplit('@').next()?;
    let (_, name) = hosts.split_once('/')?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{Inputs, load};

    fn loaded(settings: &[&str]) -> Loaded {
        let set = settings.iter().map(|setting| (*setting).to_owned()).collect();
        load(&Inputs { set, ..Inputs::default() }).unwrap()
    }

    fn with(more: &[&str]) -> Result<Resolved, Vec<Problem>> {
        let least = ["mongo.uri=mongodb://h/db", "sinks.out.kind=stdout"];
        resolve(&loaded(&[&least[..], more].concat()))
    }

    #[test]
    fn the_uri_comes_from_its_own_key_then_the_source_then_the_connection_string() {
        let string = "connection_strings.mongo=mongodb://third/db";
        let source = "mongo.sources.mongo.uri=mongodb://second/db";
        let uri = "mongo.uri=mongodb://first/db";
        for (settings, expected) in [
            (vec![string], "mongodb://third/db"),
            (vec![string, source], "mongodb://second/db"),
            (vec![string, source, uri], "mongodb://first/db"),
        ] {
            let settings = [&settings[..], &["sinks.out.kind=stdout"]].concat();

            let resolved = resolve(&loaded(&settings)).unwrap();

            assert_eq!(resolved.mongo.expose(), expected);
            assert_eq!(resolved.database, "db");
        }
    }

    #[test]
    fn without_a_uri_or_a_database_the_error_says_where_to_put_it() {
        let nothing =
            resolve(&loaded(&["sinks.out.kind=stdout", "mongo.source=other"])).unwrap_err();
        let no_database =
            resolve(&loaded(&["sinks.out.kind=stdout", "mongo.uri=mongodb://h:1/?w=1"]))
                .unwrap_err();

        assert_eq!(nothing[0].key, "mongo.uri");
        assert!(nothing[0].detail.contains("connection_strings.other"), "{}", nothing[0]);
        assert_eq!(no_database[0].key, "mongo.database");
    }

    #[test]
    fn a_uri_that_is_none_is_told_without_any_part_of_its_password() {
        for uri in [
            "mongodb://u:hush/hush@h:1/db",
            "mongodb://u:hush?hush@h:1/db",
            "mongodb://:hush@h:1/db",
            "mongodb://:hush%&é@h:1/db",
            "hush:hush@h:1",
        ] {
            let set = format!("mongo.uri={uri}");
            let problems = resolve(&loaded(&["sinks.out.kind=stdout", &set])).unwrap_err();

            assert_eq!(problems[0].key, "mongo.uri");
            let shown = format!("{problems:?}").replace("hush:***", "");
            assert!(!shown.contains("hush"), "{uri}: {shown}");
        }
        let escape = with(&["mongo.uri=mongodb://u:p%é@h/db"]).unwrap_err();
        assert!(escape[0].detail.contains("must be escaped"), "{}", escape[0]);
        let option = with(&["mongo.uri=mongodb://u:p@h/db?tls=perhaps"]).unwrap_err();
        assert!(!option[0].detail.contains("must be escaped"), "{}", option[0]);
    }

    #[test]
    fn the_outboxs_own_database_beats_the_common_one_and_that_the_uris() {
        let common = with(&["mongo.database=common"]).unwrap();
        let own = with(&["mongo.database=common", "outbox.database=own"]).unwrap();

        assert_eq!(common.database, "common");
        assert_eq!(own.database, "own");
    }

    #[test]
    fn each_broken_rule_names_its_key() {
        for (setting, key) in [
            ("relay.batch_size=0", "relay.batch_size"),
            ("relay.max_attempts=0", "relay.max_attempts"),
            ("relay.lease=10ms", "relay.lease"),
            ("relay.poll_interval=1ms", "relay.poll_interval"),
            ("relay.backoff.jitter=1.5", "relay.backoff.jitter"),
            ("relay.backoff.factor=0.5", "relay.backoff.factor"),
            ("relay.backoff.max=1ms", "relay.backoff.max"),
            ("relay.default_sink=nope", "relay.default_sink"),
            ("outbox.collection_prefix=a/b", "outbox.collection_prefix"),
            ("outbox.retention=100years", "outbox.retention"),
            ("partitions.static=5-300", "partitions.static"),
            ("sinks.out.timeout=30s", "sinks.out.timeout"),
            ("sinks.out.uri=amqp://h", "sinks.out.uri"),
            ("sinks.out.key_window=0", "sinks.out.key_window"),
            ("relay.dead_letter={sink = \"nope\", destination = \"d\"}", "relay.dead_letter.sink"),
            ("routes=[{sink = \"nope\"}]", "routes.0.sink"),
            ("routes=[{destination = \"{nope}\"}]", "routes.0.destination"),
            ("ops.listen=9464", "ops.listen"),
            ("log.level=loud=very", "log.level"),
            ("mongo.database=a.b", "mongo.database"),
            ("mongo.database=admin", "mongo.database"),
            ("outbox.database=Config", "outbox.database"),
            ("events.database=local", "events.database"),
            ("outbox.collection_prefix=system.", "outbox.collection_prefix"),
            ("outbox.collection_prefix=..", "outbox.collection_prefix"),
            ("relay.max_attempts=4294967297", "relay.max_attempts"),
        ] {
            let problems = with(&[setting]).unwrap_err();

            let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
            assert!(keys.contains(&key), "{setting}: {keys:?}");
        }
    }

    #[test]
    fn database_of_mongodbs_own_is_refused_where_it_is_used() {
        let admin = "mongo.uri=mongodb://u:hush@h/admin";

        let named = with(&[admin]).unwrap_err();
        let source = with(&[admin, "mongo.database=app"]);
        let events = with(&[admin, "outbox.database=app", "api.enabled=true"]).unwrap_err();

        assert_eq!((named.len(), named[0].key.as_str()), (1, "mongo.uri"));
        assert!(named[0].detail.ends_with("or set mongo.database"), "{}", named[0]);
        assert!(source.is_ok(), "it may be the one to log in to");
        assert_eq!((events.len(), events[0].key.as_str()), (1, "mongo.uri"));
        assert!(with(&[admin, "outbox.database=app"]).is_ok(), "nothing uses it");
    }

    #[test]
    fn uri_of_a_source_is_told_by_its_own_key() {
        let source = "mongo.sources.\"a.b\".uri=http://h/db";
        let settings = ["sinks.out.kind=stdout", "mongo.source=a.b", source];

        let problems = resolve(&loaded(&settings)).unwrap_err();

        assert_eq!(problems[0].key, "mongo.sources.\"a.b\".uri");
        assert_eq!(problems[0].origin, crate::config::Origin::Set);
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let problems = resolve(&loaded(&["relay.batch_size=0", "relay.lease=1ms"])).unwrap_err();

        assert!(problems.len() >= 4, "{problems:?}");
    }

    #[test]
    fn a_set_of_partitions_has_ranges_and_single_ones() {
        assert_eq!(partition_set("3,7-9, 0").unwrap(), [0, 3, 7, 8, 9]);
        assert_eq!(partition_set("0-255").unwrap().len(), 256);
        for wrong in ["", "9-3", "256", "a"] {
            assert!(partition_set(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let warnings = with(&["relay.ordering=none", "relay.on_dead=block"]).unwrap().warnings;

        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(with(&[]).unwrap().warnings.is_empty());
    }

    #[test]
    fn a_binding_that_looks_like_a_glob_and_is_none_is_said() {
        let warned = |key: &str, kind: &str| {
            let declare = format!(
                "sinks.r.declare={{exchanges=[{{name=\"e\",type=\"{kind}\"}}],queues=[{{name=\"q\"}}],\
                 bindings=[{{exchange=\"e\",queue=\"q\",routing_key=\"{key}\"}}]}}"
            );
            let sink = ["sinks.r.kind=rabbitmq", "sinks.r.uri=amqp://h", "relay.default_sink=r"];
            with(&[&sink[..], &[declare.as_str()]].concat()).unwrap().warnings
        };

        for literal in ["Order*", "order.#more", "a.*b.c"] {
            let warnings = warned(literal, "topic");
            assert!(warnings.len() == 1 && warnings[0].contains(literal), "{warnings:?}");
        }
        for meant in ["#", "*", "order.*", "#.created", "OrderCreated", ""] {
            assert_eq!(warned(meant, "topic"), [""; 0], "{meant}");
        }
        assert_eq!(warned("Order*", "direct"), [""; 0], "where nothing is a pattern");
    }
}
