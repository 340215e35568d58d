//! The rules of more than one section, and what the parts are built from.

use std::collections::BTreeMap;

use postrider_events::context::ContextSettings;
use postrider_events::feed::FeedConfig;
use postrider_events::query::QuerySettings;
use postrider_outbox::ids::SinkName;
use postrider_outbox::schema::options::SchemaOptions;
use postrider_relay::partition::config::PartitionsConfig;
use postrider_relay::partition::fingerprint::Fingerprint;
use postrider_relay::partition::fleet;
use postrider_relay::partition::heartbeat::InstanceInfo;
use postrider_relay::settings::Settings;
use postrider_settings::secret::{check_hosts, shown_name};
use postrider_settings::{Rules, Violation, did_you_mean, quoted};
use postrider_sinks::configured::ConfiguredSink;
use postrider_sinks::registry::KindConfig;
use postrider_store::config::{ChosenUri, check_database_name};
use postrider_store::connect::MongoEndpoint;

use crate::config::load::LoadedConfig;
use crate::config::problem::ConfigProblem;
use crate::config::sections::Config;
use crate::http::auth::Tokens;
use crate::http::config::ApiConfig;
use crate::ops::config::listen_host;
use crate::routing::Router;

/// The start of the detail of a key that must name a sink and does not.
const NO_SINK: &str = "unknown sink";

/// Everything that the parts are built from, checked.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// MongoDB, and how to log in.
    pub mongo: MongoEndpoint,
    /// The outbox's database.
    pub database: String,
    /// The prefix of the collections' names.
    pub prefix: String,
    /// Whether `run` creates the schema.
    pub auto_init_schema: bool,
    /// The settings that the schema depends on.
    pub schema: SchemaOptions,
    /// The relay.
    pub relay: Settings,
    /// How records are routed.
    pub router: Router,
    /// The sinks by name.
    pub sinks: BTreeMap<SinkName, ConfiguredSink>,
    /// How partitions are assigned.
    pub partitions: PartitionsConfig,
    /// The document of this instance, without its name, which is not known before the start.
    pub profile: InstanceInfo,
    /// The name that the operator gave this instance.
    pub instance_name: Option<String>,
    /// Whether the API of this process serves the append path.
    pub events_enabled: bool,
    /// The databases of events, snapshots and prepare keys.
    pub context: ContextSettings,
    /// The limits of queries.
    pub queries: QuerySettings,
    /// The feed, where this process may assign its positions.
    pub feed: Option<FeedConfig>,
    /// The HTTP API and its tokens, where this process serves it.
    pub api: Option<(ApiConfig, Tokens)>,
    /// The address of the ops server.
    pub ops_listen: String,
    /// What an operator should know, though it prevents nothing.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// The databases that this process uses; the outbox's is the first.
    pub fn databases(&self) -> Vec<&str> {
        let ContextSettings { events, snapshots, prepare, .. } = &self.context;
        let of_events = [events, snapshots, prepare].map(String::as_str);
        let is_used = self.events_enabled || self.feed.is_some();
        let mut databases = vec![self.database.as_str()];
        for name in of_events.into_iter().filter(|_| is_used) {
            if !databases.contains(&name) {
                databases.push(name);
            }
        }
        databases
    }
}

/// Applies every rule.
///
/// # Errors
///
/// The broken rules, all of them, each with its key, its place and what to do.
pub fn resolve(loaded: &LoadedConfig) -> Result<Resolved, Vec<ConfigProblem>> {
    let mut problems = loaded.broken.clone();
    let resolved = match check(&loaded.config) {
        Ok(resolved) if problems.is_empty() => resolved,
        Ok(_) => return Err(problems),
        Err(violations) => {
            let found = violations.into_iter().map(|one| loaded.located(ConfigProblem::from(one)));
            problems.extend(found);
            return Err(problems);
        }
    };
    let warnings = [loaded.warnings.clone(), resolved.warnings].concat();
    Ok(Resolved { warnings, ..resolved })
}

/// The broken rules of values that could be read, and that do not depend on a value that could not.
pub fn beyond(unread: &[ConfigProblem], rest: &LoadedConfig) -> Vec<ConfigProblem> {
    let Err(problems) = resolve(rest) else { return Vec::new() };
    let is_independent =
        |broken: &ConfigProblem| unread.iter().all(|unread| !depends(broken, unread));
    problems.into_iter().filter(|broken| rest.sets(&broken.key) && is_independent(broken)).collect()
}

/// Whether a rule may be broken only because another value could not be read.
fn depends(broken: &ConfigProblem, unread: &ConfigProblem) -> bool {
    let is_within = |key: &str, of: &str| {
        key.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    // A rule of several keys names the others.
    let names = broken.detail.contains(&unread.key) && unread.key.contains('.');
    let is_of_sinks = unread.key.starts_with("sink") && broken.detail.starts_with(NO_SINK);
    names
        || is_of_sinks
        || is_within(&unread.key, &broken.key)
        || is_within(&broken.key, &unread.key)
}

fn check(config: &Config) -> Result<Resolved, Vec<Violation>> {
    let mut rules = Rules::default();
    let uri = config.mongo.choose_uri(&config.connection_strings, &mut rules);
    let endpoint = uri.as_ref().map(|uri| config.mongo.endpoint(uri, &mut rules));
    let database = outbox_database(config, uri.as_ref(), &mut rules);
    let context =
        database.as_deref().map(|outbox| context(config, uri.as_ref(), outbox, &mut rules));
    rules.within("instance", |rules| config.instance.validate(rules));
    rules.within("outbox", |rules| {
        config.outbox.validate(database.as_deref().unwrap_or_default(), rules);
    });
    rules.within("relay", |rules| config.relay.validate(rules));
    check_sinks(config, &mut rules);
    rules.within("partitions", |rules| config.partitions.validate(rules));
    rules.within("log", |rules| config.log.validate(rules));
    for (key, listen) in [("ops.listen", &config.ops.listen), ("api.listen", &config.api.listen)] {
        if let Err(detail) = check_hosts(listen) {
            rules.wrong(key, detail);
        }
    }
    if let Err(detail) = listen_host(&config.ops.listen) {
        rules.wrong("ops.listen", detail);
    }
    let detail = "requires the event store; set events.enabled = true, or feed.enabled = false";
    rules.require(!config.feed.enabled || config.events.enabled, "feed.enabled", detail);
    let api = config
        .api
        .enabled
        .then(|| (config.api.clone(), rules.within("api", |rules| config.api.validate(rules))));
    let (Some(mongo), Some(database), Some(context)) = (endpoint, database, context) else {
        return Err(rules.into());
    };
    if !rules.violations().is_empty() {
        return Err(rules.into());
    }
    let sinks: BTreeMap<SinkName, ConfiguredSink> =
        config.sinks.iter().map(|(name, sink)| (name.as_str().into(), sink.clone())).collect();
    let addresses = sinks.iter().map(|(name, sink)| (name.clone(), sink.rules())).collect();
    let key_windows = config.sinks.iter().map(|(name, sink)| (name, sink.delivery.key_window));
    let key_windows = key_windows.filter(|(_, window)| *window > 1);
    Ok(Resolved {
        mongo,
        database,
        prefix: config.outbox.collection_prefix.clone(),
        auto_init_schema: config.outbox.auto_init_schema,
        schema: config.outbox.schema_options(),
        relay: Settings {
            key_windows: key_windows.map(|(name, window)| (name.clone(), window)).collect(),
            ..config.relay.clone()
        },
        router: Router::new(config.routes.clone(), addresses, config.relay.default_sink.clone()),
        sinks,
        partitions: config.partitions.clone(),
        profile: profile(config),
        instance_name: config.instance.name.clone(),
        events_enabled: config.events.enabled && config.api.enabled,
        context,
        queries: config.queries.clone(),
        feed: config.feed.enabled.then(|| config.feed.clone()),
        api,
        ops_listen: config.ops.listen.clone(),
        warnings: uri.and_then(|uri| uri.warning()).into_iter().chain(warnings(config)).collect(),
    })
}

fn profile(config: &Config) -> InstanceInfo {
    let partitions = match &config.partitions.fixed {
        _ if !config.relay.enabled => fleet::NONE.to_owned(),
        Some(fixed) => fixed.to_string(),
        None => fleet::ASSIGNED.to_owned(),
    };
    let fingerprint = Fingerprint {
        ordered: config.relay.is_ordered(),
        block_on_dead: config.relay.blocks_on_dead(),
        prefix: config.outbox.collection_prefix.clone(),
    };
    InstanceInfo { fingerprint, partitions, name: None }
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if !config.relay.is_ordered() && config.relay.blocks_on_dead() {
        warnings.push(
            "relay.on_dead = \"block\" has no effect with relay.ordering = \"none\"".to_owned(),
        );
    }
    for (name, sink) in &config.sinks {
        let of_sink = sink.kind.warnings();
        warnings.extend(of_sink.into_iter().map(|warning| format!("sinks.{name}.{warning}")));
    }
    warnings
}

fn check_sinks(config: &Config, rules: &mut Rules) {
    let relay = &config.relay;
    if relay.enabled {
        let detail = "no sink is configured; add one, for example [sinks.orders] with kind = \
                      \"rabbitmq\" and uri, or set relay.enabled = false";
        rules.require(!config.sinks.is_empty(), "sinks", detail);
    }
    let mut files = BTreeMap::new();
    for (name, sink) in &config.sinks {
        let detail =
            "a sink's name is in logs and metrics, and this one may be a secret; rename it";
        rules.require(shown_name(name) == name, format!("sinks.{}", quoted(name)), detail);
        rules.within("sinks", |rules| sink.validate(name, rules));
        if let KindConfig::File(own) = &sink.kind
            && let Some(path) = own.comparable_path()
            && let Some(other) = files.insert(path, quoted(name))
        {
            let detail = format!("is also the file of sinks.{other}.path; set another file");
            rules.wrong(format!("sinks.{}.path", quoted(name)), detail);
        }
        let key = format!("sinks.{}.timeout", quoted(name));
        let detail = "must be below relay.lease, since a publish that outlives its lease is \
                      repeated";
        rules.require(sink.delivery.timeout < relay.lease, key, detail);
    }
    let of_routes = config
        .routes
        .iter()
        .enumerate()
        .filter_map(|(at, route)| Some((format!("routes.{at}.sink"), route.sink.as_ref()?)));
    let default = relay.default_sink.iter().map(|sink| ("relay.default_sink".to_owned(), sink));
    let dead = relay.dead_letter.iter().map(|it| ("relay.dead_letter.sink".to_owned(), &it.sink));
    for (key, sink) in default.chain(of_routes).chain(dead) {
        let names: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
        let shown: Vec<&str> = names.iter().copied().map(shown_name).collect();
        let there_is = if names.is_empty() { "none".to_owned() } else { shown.join(", ") };
        let nearest = did_you_mean(sink.as_str(), shown);
        let is_known = config.sinks.contains_key(sink.as_str());
        rules.require(
            is_known,
            key,
            format!("{NO_SINK}; the configured sinks are {there_is}{nearest}"),
        );
    }
}

/// The database of the parts that name none, and the key that sets it.
fn common_database(config: &Config, uri: Option<&ChosenUri>) -> Option<(String, String)> {
    let own = config.mongo.database.clone().map(|name| ("mongo.database".to_owned(), name));
    own.or_else(|| uri.and_then(|uri| Some((uri.key.clone(), uri.database()?.to_owned()))))
}

fn outbox_database(config: &Config, uri: Option<&ChosenUri>, rules: &mut Rules) -> Option<String> {
    let own = config.outbox.database.clone().map(|name| ("outbox.database".to_owned(), name));
    let Some((key, name)) = own.or_else(|| common_database(config, uri)) else {
        let detail = "is not set, and the URI contains no database; set it, or write the URI as \
                      mongodb://host:27017/database";
        // An invalid URI is reported, and its database is unknown.
        let is_invalid =
            rules.violations().iter().any(|one| uri.is_some_and(|uri| one.key == uri.key));
        rules.require(uri.is_none() || is_invalid, "mongo.database", detail);
        return None;
    };
    check_database(&key, &name, rules);
    Some(name)
}

fn check_database(key: &str, name: &str, rules: &mut Rules) {
    let Err(detail) = check_database_name(name) else { return };
    let of_uri = ["mongo.uri", "mongo.sources.", "connection_strings."];
    let detail = if of_uri.iter().any(|uri| key.starts_with(uri)) {
        // Without the name: of an invalid URI it may be a part of the password.
        format!("its database {detail}, or set mongo.database")
    } else {
        detail
    };
    rules.wrong(key, detail);
}

/// The event store: each part's own database, else that of all, else the outbox's.
fn context(
    config: &Config,
    uri: Option<&ChosenUri>,
    outbox: &str,
    rules: &mut Rules,
) -> ContextSettings {
    let common = common_database(config, uri);
    // Otherwise it was checked as the outbox's, or is not used.
    if let Some((key, name)) = &common
        && config.outbox.database.is_some()
        && config.api.enabled
    {
        check_database(key, name, rules);
    }
    config.events.check(rules);
    let all = common.map_or_else(|| outbox.to_owned(), |(_, name)| name);
    let mut own = |key, name: &Option<String>| {
        if let Some(name) = name {
            check_database(key, name, rules);
        }
        name.clone().unwrap_or_else(|| all.clone())
    };
    ContextSettings {
        name: config.events.context.clone(),
        events: own("events.database", &config.events.database),
        snapshots: own("snapshots.database", &config.snapshots.database),
        prepare: own("prepare.database", &config.prepare.database),
        request_ids: config.events.request_id_unique,
        auto_init_schema: config.outbox.auto_init_schema,
        feed: config.feed.enabled,
        names: config.events.aggregates.clone(),
    }
}

#[cfg(test)]
mod tests;
