//! Structured logs on stderr, without payloads or secrets. What producers, brokers and clients chose is escaped.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::IsTerminal;
use std::sync::OnceLock;

use postrider_store::text::{MAX_NAME_CHARS, bounded, printable, printable_json};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, error};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Crates without log lines at any level. Their sink logs their errors, once and not at every try; below
/// errors they log messages and credentials, byte by byte.
const SILENT_CRATES: [&str; 2] = ["lapin", "amq_protocol"];

/// A crate of which only errors are logged, for the same reason.
const ERRORS_ONLY_CRATE: &str = "mongodb";

fn is_permitted(metadata: &Metadata<'_>) -> bool {
    let of = metadata.target().split("::").next().unwrap_or_default();
    let silent = SILENT_CRATES.iter().any(|name| of.starts_with(name));
    !silent && (of != ERRORS_ONLY_CRATE || *metadata.level() == Level::ERROR)
}

/// Whether a text is a level, or a filter by target.
///
/// # Errors
///
/// The reason.
pub fn check_level(level: &str) -> Result<(), String> {
    filter(level).map(|_| ())
}

/// Parses a filter of which every part is a level, or `target=level`. `EnvFilter` takes any other word,
/// such as a misspelt level, for a target, and then logs nothing.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let mut logs_postrider = false;
    // A filter by the fields of a span, in brackets, is not a level.
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    for part in &parts {
        let (target, level) = part.rsplit_once('=').unwrap_or(("", part));
        if !LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known)) {
            return Err(format!("unknown level {level:?}"));
        }
        logs_postrider |= target.is_empty() || target.starts_with(env!("CARGO_CRATE_NAME"));
    }
    if !logs_postrider {
        return Err("logs nothing of Postrider, since it contains only other targets".to_owned());
    }
    EnvFilter::try_new(parts.join(",")).map_err(|_| "invalid filter".to_owned())
}

/// The levels, from the fewest lines to the max_chars.
pub(super) const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Fields with lists, which `tracing` records as text.
const LIST_FIELDS: [&str; 3] = ["sinks", "collections", "indexes"];

/// Fields with names that a producer, broker or client chose.
const NAME_FIELDS: [&str; 12] = [
    "id",
    "record.id",
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

/// The field of a backtrace.
const BACKTRACE: &str = "backtrace";

/// The longest text of other fields, which are sentences with such names.
const MAX_TEXT_CHARS: usize = 2_000;

/// The longest line that is not bounded.
const SHORT_LINE_BYTES: usize = 1_000;

/// The longest backtrace, which is there only with `RUST_BACKTRACE`.
const MAX_BACKTRACE_CHARS: usize = 50_000;

/// The most characters of a field.
fn max_chars(field: &str) -> usize {
    match field {
        BACKTRACE => MAX_BACKTRACE_CHARS,
        name if NAME_FIELDS.contains(&name) => MAX_NAME_CHARS,
        _ => MAX_TEXT_CHARS,
    }
}

/// Fields in a line of text, each bounded and escaped.
struct BoundedFields;

impl<'writer> FormatFields<'writer> for BoundedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = BoundedVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct BoundedVisitor<'writer>(DefaultVisitor<'writer>);

impl Visit for BoundedVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // The quotes of other texts escape what is in them.
        if field.name() == "message" {
            return self.record_debug(field, &format_args!("{value}"));
        }
        self.0.record_str(field, &bounded(value, max_chars(field.name())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        let text = bounded(&text, max_chars(field.name()));
        self.0.record_debug(field, &format_args!("{}", printable(&text)));
    }
}

/// JSON with lists as lists, each field bounded, and the whole escaped.
struct BoundedJson<F>(F);

impl<S, N, F> FormatEvent<S, N> for BoundedJson<F>
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
        let has_list =
            event.metadata().fields().iter().any(|field| LIST_FIELDS.contains(&field.name()));
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        if has_list || line.len() > SHORT_LINE_BYTES {
            line = bound_line(&line);
        }
        writeln!(writer, "{}", printable_json(line.trim_end()))
    }
}

/// The line with each field bounded, and lists in the form of JSON as lists.
fn bound_line(line: &str) -> String {
    let Ok(mut fields) = serde_json::from_str::<Value>(line) else {
        return bounded(line, MAX_TEXT_CHARS).into_owned();
    };
    bound(&mut fields, MAX_TEXT_CHARS);
    for name in LIST_FIELDS {
        let list = fields[name].as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(list) = list {
            fields[name] = list;
        }
    }
    fields.to_string()
}

/// Bounds every text, by the name of its field.
fn bound(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shorter) = bounded(text, longest) {
                *text = shorter;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| bound(item, longest)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, field)| bound(field, max_chars(name)));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The layer that writes the lines.
fn layer<S, W>(json: bool, ansi: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(ansi);
    // A report that stderr is closed would be a panic.
    let layer = layer.log_internal_errors(false);
    if json {
        layer.json().flatten_event(true).map_event_format(BoundedJson).boxed()
    } else {
        layer.with_target(false).fmt_fields(BoundedFields).boxed()
    }
}

/// Whether the log of this process is JSON; `false` before [`init`].
static IS_JSON: OnceLock<bool> = OnceLock::new();

/// Whether this process logs JSON. Other lines on stderr would be none of the log.
pub fn is_json() -> bool {
    IS_JSON.get().is_some_and(|json| *json)
}

/// Makes each panic a line of the log, unless the filter has no errors.
fn log_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !tracing::enabled!(Level::ERROR) {
            return print(panic);
        }
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let reason = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        let thread = std::thread::current();
        error!(
            reason,
            place = panic.location().map(tracing::field::display),
            thread = thread.name(),
            backtrace = backtrace.as_ref().map(tracing::field::display),
            "a thread panicked"
        );
    }));
}

/// Starts logging to stderr, panics too. `json` of `None` means text on a terminal, JSON elsewhere.
///
/// # Errors
///
/// An invalid filter (valid: `info`, `postrider=debug,info`, …).
pub fn init(json: Option<bool>, level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    let terminal = std::io::stderr().is_terminal();
    let json = json.unwrap_or(!terminal);
    let layer = layer(json, terminal, std::io::stderr);
    // Apart from the level, since an operator's filter could name a module more specifically. Both are
    // global: as filters of the layer they lost lines while librdkafka's threads were logging.
    let subscriber = tracing_subscriber::registry().with(layer);
    let subscriber = subscriber.with(filter_fn(is_permitted)).with(filter);
    subscriber.try_init().map_err(|error| error.to_string())?;
    IS_JSON.get_or_init(|| json);
    log_panics();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

    use super::*;

    #[test]
    fn level_is_known_and_applies_to_postrider() {
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
    fn lists_become_lists_and_other_fields_are_kept() {
        let line =
            r#"{"message":"[\"x\"]","sinks":"[\"a\", \"b\"]","indexes":"[]","collections":"[odd"}"#;

        let fields: Value = serde_json::from_str(&bound_line(line)).unwrap();

        assert_eq!(fields["sinks"], serde_json::json!(["a", "b"]));
        assert_eq!(fields["indexes"], serde_json::json!([]));
        assert_eq!(
            (&fields["message"], &fields["collections"]),
            (&"[\"x\"]".into(), &"[odd".into())
        );
    }

    /// The lines of a test.
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
    fn no_field_forges_a_line_or_reaches_the_terminal() {
        let forged =
            "x\u{1b}[31m\r\n2026 ERROR forged\u{7}\u{7f}\u{9b}1m\u{202e}\u{2028}\u{200f}\u{e0041}é";
        let log = || {
            let span = tracing::info_span!("lane", record.id = forged, key = %forged);
            let _within = span.enter();
            tracing::warn!(id = %forged, key = forged, list = ?[forged], "{forged}");
            tracing::warn!(message = forged, error = %forged);
        };

        let (text, json) = (logged(false, log), logged(true, log));

        for lines in [&text, &json] {
            assert_eq!(lines.lines().count(), 2, "{lines:?}");
            let is_shown =
                |one: char| one == '\n' || one == 'é' || one.is_ascii_graphic() || one == ' ';
            assert_eq!(lines.chars().find(|one| !is_shown(*one)), None, "{lines:?}");
        }
        assert!(text.contains("id=x\\u{1b}[31m\\r\\n2026 ERROR forged"), "{text}");
        for line in json.lines() {
            let fields: Value = serde_json::from_str(line).unwrap();
            assert_eq!(fields["message"], forged, "{line}");
        }
    }

    #[test]
    fn line_is_bounded_whatever_its_fields_contain() {
        let key = "ß".repeat(5_000_000);
        for json in [true, false] {
            let line = logged(json, || {
                let span = tracing::info_span!("publish", record.id = key);
                let _within = span.enter();
                tracing::warn!(id = %key, key, reason = key, blocks = ?[&key], short = "x", "{key}");
            });

            assert!(line.len() < 20_000, "{}", line.len());
            let beginning = "ß".repeat(MAX_NAME_CHARS);
            let name = format!("{beginning}… (5000000 characters)");
            assert!(line.matches(&name).count() >= 3, "{line}");
            assert!(!line.contains(&"ß".repeat(MAX_TEXT_CHARS + 1)), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
        let short = logged(true, || tracing::warn!(id = "a", "told"));
        let fields: Value = serde_json::from_str(&short).unwrap();
        assert_eq!((&fields["id"], &fields["message"]), (&"a".into(), &"told".into()));
        let short = logged(false, || tracing::warn!(id = "a", n = 7, text = %"b", "told"));
        assert!(short.ends_with(" WARN told id=\"a\" n=7 text=b\n"), "{short}");
    }
}
