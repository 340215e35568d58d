"""The hook for OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from pymongo.database import Database

from postrider_outbox import Record
from postrider_outbox.opentelemetry import trace_headers

from .sides import AsyncSide, SyncSide
from .support import uri_of


def test_current_span_becomes_headers_of_the_record(
    side_type: type[SyncSide | AsyncSide], database: Database[Any]
) -> None:
    side = side_type(uri_of(database.name), hook=trace_headers)

    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        side.transact([Record("T", 1, headers={"source": "shop"})])

    context = span.get_span_context()
    flags = f"{context.trace_flags:02x}"
    [stored] = database.outbox_records.find()
    assert stored["headers"] == {
        "traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}",
        "source": "shop",
    }


def test_trace_state_is_passed_on() -> None:
    context = SpanContext(1, 2, False, TraceFlags(0), TraceState([("vendor", "x")]))

    with trace.use_span(NonRecordingSpan(context)):
        headers = trace_headers()

    assert headers == {"traceparent": f"00-{1:032x}-{2:016x}-00", "tracestate": "vendor=x"}


def test_there_are_no_headers_without_a_span() -> None:
    assert trace_headers() == {}


def test_library_needs_no_opentelemetry() -> None:

    code = "import sys; sys.modules['opentelemetry'] = None; import postrider_outbox"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
