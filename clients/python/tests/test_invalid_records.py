"""Invalid fields are refused with their path, before MongoDB is asked."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from datetime import date, datetime, timezone
from typing import Any
from uuid import uuid4

import pytest
from bson import Binary, Int64, Regex, Timestamp
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from postrider_outbox import Outbox, OutboxError, Record, RecordError

NAIVE = datetime(2026, 1, 1)
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.fixture(scope="module")
def away() -> Iterator[tuple[Outbox, ClientSession]]:
    """An outbox and a session of a server that is not there: what asks it fails otherwise."""
    with MongoClient[Any](
        "mongodb://127.0.0.1:9/shop", connect=False, serverSelectionTimeoutMS=200
    ) as client:
        session = client.start_session()
        session.start_transaction()
        yield Outbox(client.get_default_database()), session


@pytest.mark.parametrize(
    ("fields", "path", "problem"),
    [
        ({"id": True}, "id", "must be a UUID, an ObjectId, a str or an int, not bool"),
        ({"id": 1.0}, "id", "not float"),
        ({"id": b"x"}, "id", "not bytes"),
        ({"id": {}}, "id", "not dict"),
        ({"id": ""}, "id", "must not be empty"),
        ({"id": 2**63}, "id", "beyond 64 bits"),
        ({"id": -(2**63) - 1}, "id", "beyond 64 bits"),
        ({"id": "\udfff"}, "id", "lone surrogate"),
        ({"id": Binary(uuid4().bytes, 3)}, "id", "a Binary of subtype 3; give it as a uuid.UUID"),
        ({"id": Binary(b"short", 4)}, "id", "a Binary of subtype 4"),
        ({"key": 7}, "key", "must be a str, not int"),
        ({"key": b"k"}, "key", "must be a str, not bytes"),
        ({"key": "a\ud800b"}, "key", "lone surrogate at character 1"),
        ({"type": None}, "type", "must be a str, not None"),
        ({"type": ""}, "type", "must not be empty"),
        ({"type": 1}, "type", "must be a str"),
        ({"content_type": 1}, "contentType", "must be a str"),
        ({"destination": ["a"]}, "destination", "must be a str, not list"),
        ({"tenant_id": uuid4()}, "tenantId", "must be a str, not UUID"),
        ({"dedup_key": 5}, "dedupKey", "must be a str"),
        ({"created_at": NAIVE}, "createdAt", "without a time zone; give it one"),
        ({"created_at": "2026-01-01"}, "createdAt", "must be a datetime, not str"),
        ({"created_at": date(2026, 1, 1)}, "createdAt", "must be a datetime, not date"),
        ({"created_at": 1.5}, "createdAt", "must be a datetime, not float"),
        ({"visible_at": NAIVE}, "visibleAt", "without a time zone"),
        ({"visible_at": Timestamp(1, 1)}, "visibleAt", "must be a datetime, not Timestamp"),
        ({"headers": [("a", 1)]}, "headers", "must be a mapping, not list"),
        ({"headers": {1: "a"}}, "headers", "a name that is not a str but int"),
        ({"headers": {"a\0": 1}}, "headers", "NUL"),
        ({"headers": {"a": {}}}, "headers.a", "must be a scalar or bytes, not dict"),
        ({"headers": {"a": [1]}}, "headers.a", "must be a scalar or bytes, not list"),
        ({"headers": {"a": Regex("x")}}, "headers.a", "not Regex"),
        ({"headers": {"a": Timestamp(1, 1)}}, "headers.a", "not Timestamp"),
        ({"headers": {"a": NAIVE}}, "headers.a", "without a time zone"),
        ({"headers": {"a": 2**63}}, "headers.a", "beyond 64 bits"),
        ({"headers": {"a": Int64(2**63)}}, "headers.a", "beyond 64 bits"),
        ({"payload": {"a": Int64(2**63)}}, "payload.a", "beyond 64 bits"),
        ({"headers": {"a": "\ud800"}}, "headers.a", "lone surrogate"),
        ({"payload": NAIVE}, "payload", "without a time zone"),
        ({"payload": {"a": [1, {"at": NAIVE}]}}, "payload.a.1.at", "without a time zone"),
        ({"payload": {"a": (0, 2**63)}}, "payload.a.1", "beyond 64 bits"),
        ({"payload": {"a": "\ud800"}}, "payload.a", "lone surrogate"),
        ({"payload": {"\ud800": 1}}, "payload", "lone surrogate"),
        ({"payload": {"a": {1: 2}}}, "payload.a", "a name that is not a str but int"),
        ({"payload": {"a": {"b\0": 2}}}, "payload.a", "NUL"),
        ({"payload": {"a": decimal.Decimal(1)}}, "payload.a", "the type Decimal, which BSON"),
        ({"payload": {"a": date(2026, 1, 1)}}, "payload.a", "the type date"),
        ({"payload": [{1, 2}]}, "payload.0", "the type set"),
        ({"payload": object()}, "payload", "the type object"),
        ({"payload": ITSELF}, "payload", "nested deeper than 100 levels, or refers to itself"),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, dict) else "",
)
def test_invalid_field_is_refused_with_its_path(
    away: tuple[Outbox, ClientSession], fields: dict[str, Any], path: str, problem: str
) -> None:
    outbox, session = away
    record = Record(**{"type": "T", "payload": 1, **fields})

    with pytest.raises(RecordError) as caught:
        outbox.enqueue(session, record)

    assert caught.value.field == path
    assert str(caught.value).startswith(f"record: {path}: ")
    assert problem in str(caught.value)
    assert isinstance(caught.value, OutboxError)
    assert isinstance(caught.value, ValueError)


def test_invalid_header_of_the_hook_is_refused(away: tuple[Outbox, ClientSession]) -> None:
    outbox, session = away
    with_hook = Outbox(outbox._records.database, header_hook=lambda: {"a": []})  # type: ignore[dict-item]

    with pytest.raises(RecordError, match=r"headers\.a"):
        with_hook.enqueue(session, Record("T", 1))


def test_date_with_any_time_zone_is_accepted(away: tuple[Outbox, ClientSession]) -> None:
    from postrider_outbox._document import document_of

    outbox, _ = away
    local = datetime.now(timezone.utc).astimezone()
    record = Record("T", {"at": local}, created_at=local, visible_at=local)

    document = document_of(record, None, outbox._records.codec_options)

    assert document["visibleAt"] == local
