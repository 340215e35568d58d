//! Describes metrics: name, kind, unit and help text, in one line where the metric is counted.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// One metric, as the page of metrics describes it.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    kind: MetricKind,
    unit: Unit,
    help: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl Description {
    /// A counter.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, unit: Unit::Count, help }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, unit: Unit::Count, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram, unit: Unit::Count, help }
    }

    /// Sets the unit to seconds.
    #[must_use]
    pub const fn in_seconds(self) -> Self {
        Self { unit: Unit::Seconds, ..self }
    }

    /// Sets the unit to bytes.
    #[must_use]
    pub const fn in_bytes(self) -> Self {
        Self { unit: Unit::Bytes, ..self }
    }

    /// Registers the description with the recorder of this process.
    pub fn register(&self) {
        let Self { name, kind, unit, help } = *self;
        match kind {
            MetricKind::Counter => describe_counter!(name, unit, help),
            MetricKind::Gauge => describe_gauge!(name, unit, help),
            MetricKind::Histogram => describe_histogram!(name, unit, help),
        }
    }
}
