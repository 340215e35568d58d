//! Structured logs on stderr, without payloads or secrets.

use postrider_store::text::{LONGEST_NAME, bounded};
use std::borrow::Cow;
use std::fmt;
use std::io::IsTerminal;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Crates that say nothing here, whatever the level. What goes wrong in them reaches their sink,
/// which says it once and not at every try; below errors they show messages and credentials,
/// byte by byte.
const SILENT: [&str; 2] = ["lapin", "amq_protocol"];

/// A crate of which nothing but errors is logged, for the same sake.
const QUIET: &str = "mongodb";

fn is_fit_to_print(metadata: &Metadata<'_>) -> bool {
    let of = metadata.target().split("::").next().unwrap_or_default();
    let silent = SILENT.iter().any(|name| of.starts_with(name));
    !silent && (of != QUIET || *metadata.level() == Level::ERROR)
}

/// Whether a text is a level, or a filter by target.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_level(level: &str) -> Result<(), String> {
    filter(level).map(|_| ())
}

/// A filter of which every part is a level, or `target=level`. `EnvFilter` takes any other word for a
/// target, and so a misspelt level for a filter that lets nothing through.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let mut reaches_us = false;
    // A comma within brackets belongs to the fields of a span, and no bracket is a level.
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    for part in &parts {
        let (target, level) = part.rsplit_once('=').unwrap_or(("", part));
        if !LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known)) {
            return Err(format!("{level:?} is an unknown level"));
        }
        reaches_us |= target.is_empty() || target.starts_with(env!("CARGO_CRATE_NAME"));
    }
    if !reaches_us {
        return Err(format!("{text:?} logs nothing of Postrider: it names other targets alone"));
    }
    EnvFilter::try_new(parts.join(",")).map_err(|_| format!("{text:?} is an invalid filter"))
}

/// The levels, from the fewest lines to the most.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Fields that hold a list. `tracing` knows none, and records them as text.
const LISTS: [&str; 3] = ["sinks", "collections", "indexes"];

/// Fields that hold a name, which a producer, a broker or a caller chose.
const NAMES: [&str; 12] = [
    "id",
    "record_id",
    "key",
    "type",
    "destination",
    "exchange",
    "queue",
    "topic",
    "actor",
    "aggregate",
    "request",
    "request_id",
];

/// Characters of any other text, which is a sentence with such names in it.
const LONGEST: usize = 2_000;

/// Bytes up to which a line is left as it is.
const SHORT: usize = 1_000;

/// What a field may add to a line.
fn most(field: &str) -> usize {
    if NAMES.contains(&field) { LONGEST_NAME } else { LONGEST }
}

/// Fields in a line of text, each bounded.
struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = BoundedVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct BoundedVisitor<'writer>(DefaultVisitor<'writer>);

impl Visit for BoundedVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, &bounded(value, most(field.name())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.0.record_debug(field, &format_args!("{}", bounded(&text, most(field.name()))));
    }
}

/// JSON with lists as lists, and each field bounded.
struct Json<F>(F);

impl<S, N, F> FormatEvent<S, N> for Json<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let has_list = event.metadata().fields().iter().any(|field| LISTS.contains(&field.name()));
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        if !has_list && line.len() <= SHORT {
            return writer.write_str(&line);
        }
        writeln!(writer, "{}", tidy(&line))
    }
}

/// The line with each field bounded, and each list as a list where it is in JSON's form.
fn tidy(line: &str) -> String {
    let Ok(mut fields) = serde_json::from_str::<Value>(line) else {
        return bounded(line.trim_end(), LONGEST).into_owned();
    };
    bound(&mut fields, LONGEST);
    for name in LISTS {
        let list = fields[name].as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(list) = list {
            fields[name] = list;
        }
    }
    fields.to_string()
}

/// Bounds every text: that of a field by its name.
fn bound(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shorter) = bounded(text, longest) {
                *text = shorter;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| bound(item, longest)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, field)| bound(field, most(name)));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What writes the lines.
fn layer<S, W>(json: bool, ansi: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(ansi);
    if json {
        layer.json().flatten_event(true).map_event_format(Json).boxed()
    } else {
        layer.with_target(false).fmt_fields(Fields).boxed()
    }
}

/// Starts logging to stderr. `json` of `None` means text on a terminal, JSON elsewhere.
///
/// # Errors
///
/// A level that is no filter of `tracing` (`info`, `postrider=debug,info`, …).
pub fn init(json: Option<bool>, level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    let terminal = std::io::stderr().is_terminal();
    let json = json.unwrap_or(!terminal);
    let layer = layer(json, terminal, std::io::stderr);
    // Apart from the level: a filter of the operator's could name a module more closely. Both for
    // all and not for the layer: those lost lines while librdkafka's threads logged beside ours.
    let subscriber = tracing_subscriber::registry().with(layer);
    let subscriber = subscriber.with(filter_fn(is_fit_to_print)).with(filter);
    subscriber.try_init().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

    use super::*;

    #[test]
    fn a_level_is_a_known_one_for_everything_or_for_a_target() {
        for level in [
            "info",
            "WARN",
            "off",
            "postrider=debug,info",
            "info, postrider::relay=trace",
            "postrider=debug",
        ] {
            assert_eq!(check_level(level), Ok(()), "{level}");
        }
        for level in [
            "warning",
            "",
            "loud",
            "information,info",
            "postrider=verbose,info",
            "info,",
            "postrider",
            "postridr=debug",
            "info,postrider=",
            "loud=very",
        ] {
            assert!(check_level(level).is_err(), "{level}");
        }
    }

    #[test]
    fn a_list_in_json_is_a_list_and_nothing_else_changes() {
        let line =
            r#"{"message":"[\"x\"]","sinks":"[\"a\", \"b\"]","indexes":"[]","collections":"[odd"}"#;

        let fields: Value = serde_json::from_str(&tidy(line)).unwrap();

        assert_eq!(fields["sinks"], serde_json::json!(["a", "b"]));
        assert_eq!(fields["indexes"], serde_json::json!([]));
        assert_eq!(
            (&fields["message"], &fields["collections"]),
            (&"[\"x\"]".into(), &"[odd".into())
        );
    }

    /// Where a test's lines go.
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(json: bool, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = layer(json, false, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn whatever_the_fields_hold_a_line_is_bounded_and_says_how_long_they_were() {
        let key = "ß".repeat(5_000_000);
        for json in [true, false] {
            let line = logged(json, || {
                let span = tracing::info_span!("publish", record_id = key);
                let _within = span.enter();
                tracing::warn!(id = %key, key, reason = key, blocks = ?[&key], short = "x", "{key}");
            });

            assert!(line.len() < 20_000, "{}", line.len());
            let beginning = "ß".repeat(LONGEST_NAME);
            let name = format!("{beginning}… (5000000 characters)");
            assert!(line.matches(&name).count() >= 3, "{line}");
            assert!(!line.contains(&"ß".repeat(LONGEST + 1)), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
        let short = logged(true, || tracing::warn!(id = "a", "told"));
        let fields: Value = serde_json::from_str(&short).unwrap();
        assert_eq!((&fields["id"], &fields["message"]), (&"a".into(), &"told".into()));
        let short = logged(false, || tracing::warn!(id = "a", n = 7, text = %"b", "told"));
        assert!(short.ends_with(" WARN told id=\"a\" n=7 text=b\n"), "{short}");
    }
}
