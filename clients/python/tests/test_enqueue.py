"""What enqueue stores, when it stores nothing, and that it leaves the caller's values alone."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import pytest
from bson import Binary, Decimal128, Int64, Timestamp
from bson.codec_options import CodecOptions, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, InvalidOperation

from postrider_outbox import AsyncOutbox, Outbox, Record

from .sides import AbortError, AsyncSide, SyncSide
from .support import uri_of, variable

Side = SyncSide | AsyncSide
Documents = Database[dict[str, Any]]


def only_record(database: Documents) -> dict[str, Any]:
    [record] = database.outbox_records.find()
    return record


def test_record_with_all_fields_is_stored_in_the_fixed_order(
    side: Side, database: Documents
) -> None:
    created = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)
    visible = created + timedelta(days=1)
    record = Record(
        "OrderCreated",
        {"order": 7},
        key="order-123",
        id="id-1",
        headers={"source": "shop"},
        content_type="application/json",
        destination="orders",
        tenant_id="t",
        created_at=created,
        visible_at=visible,
        dedup_key="once",
    )

    assert side.transact([record]) == ["id-1"]

    stored = only_record(database)
    seq = stored.pop("seq")
    assert seq != Timestamp(0, 0)
    assert list(stored.items()) == [
        ("_id", "id-1"),
        ("key", "order-123"),
        ("type", "OrderCreated"),
        ("payload", {"order": 7}),
        ("contentType", "application/json"),
        ("headers", {"source": "shop"}),
        ("destination", "orders"),
        ("tenantId", "t"),
        ("status", "scheduled"),
        ("createdAt", created),
        ("visibleAt", visible),
        ("dedupKey", "once"),
        ("partition", 189),
    ]


def test_record_with_nothing_but_type_and_payload_has_no_other_fields(
    side: Side, database: Documents
) -> None:
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)

    [id] = side.transact([Record("Ping", None)])

    stored = only_record(database)
    assert list(stored) == ["_id", "type", "payload", "status", "seq", "createdAt"]
    assert stored["_id"] == id
    assert isinstance(id, UUID)
    assert id.version == 4
    assert stored["payload"] is None
    assert stored["status"] == "pending"
    assert before <= stored["createdAt"] <= datetime.now(timezone.utc)


def test_records_of_one_transaction_have_rising_seqs(side: Side, database: Documents) -> None:
    ids = side.transact([Record("T", n, key="k") for n in range(5)])

    stored = list(database.outbox_records.find(sort=[("seq", 1)]))
    assert [record["_id"] for record in stored] == ids
    assert len({record["seq"] for record in stored}) == 5


@pytest.mark.parametrize(
    "representation", ["unspecified", "standard", "pythonLegacy", "javaLegacy", "csharpLegacy"]
)
def test_uuids_are_of_subtype_4_whatever_the_client_says(
    side_type: type[Side], database: Documents, raw_records: Any, representation: str
) -> None:
    side = side_type(uri_of(database.name), uuidRepresentation=representation)
    id, inner, header = uuid4(), uuid4(), uuid4()

    side.transact([Record("T", {"list": [inner]}, id=id, headers={"h": header})])

    [stored] = raw_records.find()
    assert stored["_id"] == Binary(id.bytes, 4)
    assert stored["payload"]["list"][0] == Binary(inner.bytes, 4)
    assert stored["headers"]["h"] == Binary(header.bytes, 4)


class Color(str, Enum):
    RED = "red"


def test_payload_is_stored_with_its_types_and_order(side: Side, raw_records: Any) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    payload = {
        "z": 1,
        "a": 2**31,
        "long": Int64(3),
        "double": 4.0,
        "decimal": Decimal128("5.10"),
        "bytes": b"\0\xff",
        "date": moment,
        "none": None,
        "tuple": (1, [True, {}]),
        "unicode": "größe-\U0001f600",
        "enum": Color.RED,
        "raw": RawBSONDocument(b"\x05\0\0\0\0"),
        "$dollar": {"dotted.name": 1},
    }
    side.transact([Record("T", payload)])

    [stored] = raw_records.aggregate(
        [
            {
                "$set": {
                    "types": {
                        "$map": {
                            "input": {"$objectToArray": "$payload"},
                            "in": {"$concat": ["$$this.k", ":", {"$type": "$$this.v"}]},
                        }
                    }
                }
            }
        ]
    )
    assert stored["types"] == [
        *("z:int", "a:long", "long:long", "double:double", "decimal:decimal", "bytes:binData"),
        *("date:date", "none:null", "tuple:array", "unicode:string", "enum:string", "raw:object"),
        "$dollar:object",
    ]
    assert stored["payload"]["date"] == moment.astimezone(timezone.utc).replace(tzinfo=None)
    assert stored["payload"]["enum"] == "red"


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_type_registry_of_the_client_is_used(database: Documents) -> None:
    def encode(value: Any) -> Any:
        return value.cents if isinstance(value, Money) else value

    options = CodecOptions[Any](type_registry=TypeRegistry(fallback_encoder=encode))
    with MongoClient[Any](uri_of(database.name)) as client, client.start_session() as session:
        own = client.get_database(database.name, codec_options=options)
        with session.start_transaction():
            Outbox(own).enqueue(session, Record("T", {"paid": Money(120)}))

    assert only_record(database)["payload"] == {"paid": 120}


def test_values_of_the_caller_are_not_changed(side: Side) -> None:
    payload = {"list": [uuid4(), {"n": 1}], "at": datetime.now(timezone.utc)}
    headers = {"source": "shop"}
    record = Record("T", payload, headers=headers, key="k")
    fields = {name: getattr(record, name) for name in Record.__slots__}
    copies = copy.deepcopy((payload, headers))

    side.transact([record])

    assert (payload, headers) == copies
    assert {name: getattr(record, name) for name in Record.__slots__} == fields
    assert record.payload is payload


def test_nothing_is_stored_when_the_transaction_aborts(side: Side, database: Documents) -> None:
    with pytest.raises(AbortError):
        side.transact([Record("T", 1)], abort=True)

    assert list(database.outbox_records.find()) == []


def test_session_of_another_client_is_refused_by_the_driver(database: Documents) -> None:
    uri = uri_of(database.name)
    with (
        MongoClient[Any](uri) as one,
        MongoClient[Any](uri) as other,
        other.start_session() as session,
        session.start_transaction(),
        pytest.raises(InvalidOperation),
    ):
        Outbox(one.get_default_database()).enqueue(session, Record("T", 1))


def test_sync_and_async_are_not_mixed_up() -> None:
    uri = variable("POSTRIDER_TEST_MONGODB_URI")
    sync = MongoClient[Any](uri, connect=False)
    with pytest.raises(TypeError, match="for a Database use Outbox"):
        AsyncOutbox(sync.shop)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="for an AsyncDatabase use AsyncOutbox"):
        Outbox(AsyncMongoClient[Any](uri, connect=False).shop)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a pymongo ClientSession, not object"):
        Outbox(sync.shop).enqueue(object(), Record("T", 1))  # type: ignore[arg-type]
    sync.close()


@pytest.mark.parametrize(("value", "kind"), [({"type": "T", "payload": 1}, "dict"), (None, "None")])
def test_enqueue_takes_nothing_but_a_record(database: Documents, value: Any, kind: str) -> None:
    with MongoClient[Any](uri_of(database.name)) as client, client.start_session() as session:
        outbox = Outbox(client.get_default_database())
        with (
            session.start_transaction(),
            pytest.raises(
                TypeError, match=rf"^record must be a postrider_outbox\.Record, not {kind}$"
            ),
        ):
            outbox.enqueue(session, value)


def test_prefix_is_in_front_of_the_collection(
    side_type: type[Side], empty_database: Documents
) -> None:
    side_type(uri_of(empty_database.name), prefix="shop_").transact([Record("T", 1)])

    assert empty_database.list_collection_names() == ["shop_outbox_records"]


def test_unacknowledged_database_still_enqueues(database: Documents) -> None:
    # In a transaction the write concern is that of the commit.
    with MongoClient[Any](uri_of(database.name)) as client, client.start_session() as session:
        own = client.get_database(database.name, write_concern=WriteConcern(w=0))
        with session.start_transaction():
            Outbox(own).enqueue(session, Record("T", 1, id="a"))
        with pytest.raises(DuplicateKeyError), session.start_transaction():
            Outbox(own).enqueue(session, Record("T", 2, id="a"))

    assert only_record(database)["payload"] == 1


def test_hook_adds_headers_and_those_of_the_record_win(
    side_type: type[Side], database: Documents
) -> None:
    side = side_type(uri_of(database.name), hook=lambda: {"a": "hook", "b": "hook"})

    side.transact([Record("T", 1, headers={"b": "own", "c": "own"})])

    assert only_record(database)["headers"] == {"a": "hook", "b": "own", "c": "own"}


@pytest.mark.parametrize("returned", [None, {}])
def test_hook_may_have_nothing_to_add(
    side_type: type[Side], database: Documents, returned: Any
) -> None:
    side_type(uri_of(database.name), hook=lambda: returned).transact([Record("T", 1)])

    assert "headers" not in only_record(database)


def test_repr_of_a_record_has_no_payload() -> None:
    record = Record("T", {"card": "4111"}, key="k", id="i", headers={"token": "secret"})

    assert repr(record) == "Record(type='T', key='k', id='i')"
