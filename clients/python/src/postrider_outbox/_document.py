"""The stored document of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import Timestamp
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions

from . import _values
from ._errors import RecordError
from ._partition import partition_of
from ._record import HeaderValue, Record

#: The name of the collection, after the prefix.
RECORDS = "outbox_records"

#: MongoDB replaces it by its cluster time at the insertion; the order of a key rests on it.
NO_SEQ = Timestamp(0, 0)


def codec_options(options: CodecOptions[Any]) -> CodecOptions[Any]:
    """The options of the application's database, but with UUIDs as subtype 4.

    Without this, a client without ``uuidRepresentation`` refuses them, and one with a legacy
    representation stores a subtype that the relay cannot read.
    """
    return options.with_options(uuid_representation=UuidRepresentation.STANDARD)


def document_of(
    record: Record,
    extra_headers: Mapping[str, HeaderValue] | None,
    options: CodecOptions[Any],
) -> dict[str, Any]:
    """Checks a record and returns its document, a new one whose fields are in a fixed order.

    :param extra_headers: headers of the hook; those of the record win.
    :raises RecordError: for the first field that is invalid.
    """
    if not isinstance(record, Record):
        raise TypeError(f"record must be a postrider_outbox.Record, not {_values.kind_of(record)}")
    _values.check_id(record.id)
    document: dict[str, Any] = {"_id": record.id}

    def add_text(field: str, value: str | None) -> None:
        if value is not None:
            _values.check_text(field, value)
            document[field] = value

    add_text("key", record.key)
    _values.check_text("type", record.type)
    if not record.type:
        raise RecordError("type", "must not be empty; routes match on it")
    document["type"] = record.type
    _values.check_value("payload", record.payload, options)
    document["payload"] = record.payload
    add_text("contentType", record.content_type)
    headers = _headers_of(record, extra_headers, options)
    if headers:
        document["headers"] = headers
    add_text("destination", record.destination)
    add_text("tenantId", record.tenant_id)
    document["status"] = "pending" if record.visible_at is None else "scheduled"
    document["seq"] = NO_SEQ
    _values.check_date("createdAt", record.created_at)
    document["createdAt"] = record.created_at
    if record.visible_at is not None:
        _values.check_date("visibleAt", record.visible_at)
        document["visibleAt"] = record.visible_at
    add_text("dedupKey", record.dedup_key)
    if record.key is not None:
        document["partition"] = partition_of(record.key)
    return document


def _headers_of(
    record: Record,
    extra_headers: Mapping[str, HeaderValue] | None,
    options: CodecOptions[Any],
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for more in (record.headers, extra_headers):
        if more is not None:
            _values.check_headers(more, options)
            for name, value in more.items():
                headers.setdefault(name, value)
    return headers
