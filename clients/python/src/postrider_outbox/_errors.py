"""What this package raises itself. The driver's own errors pass through unchanged."""

from __future__ import annotations


class OutboxError(Exception):
    """The base of all errors of this package."""


class RecordError(OutboxError, ValueError):
    """A field of a record is invalid. Nothing was sent to MongoDB."""

    #: Where the value is, as in the stored document: ``contentType``, ``payload.items.2.price``.
    field: str

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"record: {field}: {problem}")
        self.field = field


class TransactionError(OutboxError):
    """The session has no running transaction. Nothing was sent to MongoDB."""

    #: What is invalid.
    field = "session"


class ProbeError(OutboxError):
    """This deployment cannot carry an outbox; the message names the cause and the remedy."""
