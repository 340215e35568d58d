"""The hook for OpenTelemetry: ``pip install postrider-outbox[opentelemetry]``.

>>> outbox = Outbox(database, header_hook=trace_headers)
"""

from __future__ import annotations

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


def trace_headers() -> dict[str, str]:
    """Returns ``traceparent``, and ``tracestate`` if there is one, of the current span.

    Without a current span it returns nothing.
    """
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers)
    return headers
