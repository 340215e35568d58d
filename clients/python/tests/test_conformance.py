"""Runs the conformance cases of all client libraries against MongoDB, sync and async."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import bson
import pytest
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from jsonschema import Draft202012Validator
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandListener

from postrider_outbox import Record, RecordError, TransactionError, partition_of

from .cases import CASES, SCHEMA, record_of, section, text_of, values
from .conftest import apply_schema
from .sides import AbortError, AsyncSide, SyncSide
from .support import uri_of

Side = SyncSide | AsyncSide

COLLECTION = CASES["collection"]

#: Cases of `refused` that the signature of Record excludes: a TypeError names the field.
#: The first two are required parameters; content_type is the parameter's name for contentType.
UNKNOWN = ("status", "seq", "partition", "_id", "attempt", "content_type")
EXCLUDED = {"no type", "no payload", *(f"{n} is not a field of a client's record" for n in UNKNOWN)}

RAW = CodecOptions[Any](
    document_class=RawBSONDocument, uuid_representation=UuidRepresentation.STANDARD, tz_aware=True
)


def name_of(case: Any) -> str:
    return str(case["name"])


class Commands(CommandListener):
    """The names of the commands that a client has sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: Any) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: Any) -> None: ...
    def failed(self, event: Any) -> None: ...


@pytest.fixture(scope="module", params=["setup", "schema apply"])
def module_database(
    request: pytest.FixtureRequest, client: MongoClient[Any]
) -> Iterator[Database[Any]]:
    """Made by the commands of the cases, or by Postrider."""
    database = client.get_database(f"client_python_{uuid4().hex[:20]}")
    for prefix in ("", "shop_"):
        if request.param == "schema apply":
            apply_schema(database.name, prefix)
            continue
        for command in values(CASES["setup"]):
            verb = next(iter(command))
            database.command({**command, verb: prefix + command[verb]})
    yield database
    client.drop_database(database.name)


@pytest.fixture
def records(module_database: Database[Any]) -> Database[Any]:
    for name in (COLLECTION, "shop_" + COLLECTION):
        module_database[name].delete_many({})
    return module_database


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in BSON: type, value and order."""
    options = CodecOptions[Any](uuid_representation=UuidRepresentation.STANDARD)
    first, second = (bson.encode({"": value}, codec_options=options) for value in (one, other))
    return first == second


@pytest.mark.parametrize("case", section("partitions"), ids=name_of)
def test_partitions(case: Any) -> None:
    key = text_of(case["units"]) if "units" in case else case["key"]

    if "refused" in case:
        with pytest.raises(RecordError) as caught:
            partition_of(key)
        assert caught.value.field == case["refused"]
    else:
        assert partition_of(key) == case["partition"]


@pytest.mark.parametrize("case", section("enqueued"), ids=name_of)
def test_enqueued(side_type: type[Side], records: Database[Any], case: Any) -> None:
    prefix = case.get("collectionPrefix", "")
    hook = values(case.get("hook"))
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    record = record_of(case["record"])
    fields = {name: getattr(record, name) for name in Record.__slots__}
    copies = copy.deepcopy((fields, hook))
    side = side_type(uri_of(records.name), prefix=prefix, hook=lambda: hook)

    [id] = side.transact([record])

    after = datetime.now(timezone.utc)
    collection = records.get_collection(prefix + COLLECTION, codec_options=RAW)
    [stored] = collection.find()
    assert list(stored) == case["fields"]
    for path, expected in case["types"].items():
        [found] = collection.aggregate([{"$project": {"t": {"$type": f"${path}"}}}])
        assert found["t"] == expected, path
    for name, expected in values(case["stored"]).items():
        assert same(stored[name], expected), name
    assert stored["seq"].time > 0
    assert same(stored["_id"], id)
    assert same(id, record.id)
    if case["record"].get("id") is None:
        assert isinstance(id, UUID)
        assert id.version == 4
    if case["record"].get("createdAt") is None:
        assert before <= stored["createdAt"] <= after
    assert ({name: getattr(record, name) for name in Record.__slots__}, hook) == copies


@pytest.mark.parametrize("case", section("refused"), ids=name_of)
def test_refused(side_type: type[Side], records: Database[Any], case: Any) -> None:
    if case["name"] in EXCLUDED:
        with pytest.raises(TypeError, match=case["field"]):
            record_of(case["record"])
        return

    assert_refused(side_type, records, record_of(case["record"]), case["field"], case.get("hook"))


def test_excluded_cases_exist() -> None:
    assert EXCLUDED.issubset(case["name"] for case in section("refused"))


@pytest.mark.parametrize("case", section("loneSurrogates"), ids=name_of)
def test_lone_surrogates(side_type: type[Side], records: Database[Any], case: Any) -> None:
    text = text_of(case["units"])
    field, _, header = case["field"].partition(".")
    # In JSON a lone surrogate is an escape, which Python's parser keeps.
    record = record_of({**case["record"], field: {header: text} if header else text})

    assert_refused(side_type, records, record, case["field"], None)


def assert_refused(
    side_type: type[Side], records: Database[Any], record: Record, field: str, hook: Any
) -> None:
    commands = Commands()
    side = side_type(uri_of(records.name), hook=lambda: values(hook), event_listeners=[commands])

    with pytest.raises(RecordError) as caught:
        side.transact([record])

    assert caught.value.field == field
    assert field in str(caught.value)
    assert "insert" not in commands.names
    assert records[COLLECTION].count_documents({}) == 0


@pytest.mark.parametrize("case", section("transactions"), ids=name_of)
def test_transactions(side_type: type[Side], records: Database[Any], case: Any) -> None:
    run = {
        "commit": run_commit,
        "abort": run_abort,
        "repeat": run_repeat,
        "refuse": run_refuse,
        "twice": run_twice,
        "order": run_order,
    }[case["does"]]

    run(side_type, records, case)

    assert records[COLLECTION].count_documents({}) == case["records"]


def run_commit(side_type: type[Side], records: Database[Any], case: Any) -> None:
    side_type(uri_of(records.name)).transact([record_of(case["record"])])


def run_abort(side_type: type[Side], records: Database[Any], case: Any) -> None:
    with pytest.raises(AbortError):
        side_type(uri_of(records.name)).transact([record_of(case["record"])], abort=True)


def run_repeat(side_type: type[Side], records: Database[Any], case: Any) -> None:
    # The fail point is one of the whole server: the test of another client may replace it.
    for _ in range(5):
        records[COLLECTION].delete_many({})
        record = record_of(case["record"])
        app = uuid4().hex
        # Code 91 makes the driver ask the server again, at the end of a heartbeat.
        side = side_type(uri_of(records.name), appname=app, heartbeatFrequencyMS=500)
        fail_point = values(case["failPoint"])
        fail_point["data"]["appName"] = app
        admin = records.client.admin
        admin.command(fail_point)
        try:
            side.transact([record])
        finally:
            admin.command({**fail_point, "mode": "off", "data": {}})
        if side.calls >= case["calls"]:
            break
    assert side.calls == case["calls"]
    assert records[COLLECTION].distinct("_id") == [record.id]


def run_refuse(side_type: type[Side], records: Database[Any], case: Any) -> None:
    commands = Commands()
    side = side_type(uri_of(records.name), event_listeners=[commands])

    with pytest.raises(TransactionError) as caught:
        side.enqueue_outside(record_of(case["record"]), case["session"])

    assert caught.value.field == case["field"]
    assert "insert" not in commands.names
    assert ("find" in commands.names) == (case["session"] in ("committed", "aborted"))


def run_twice(side_type: type[Side], records: Database[Any], case: Any) -> None:
    first, second = record_of(case["first"]), record_of(case["second"])
    side = side_type(uri_of(records.name))
    if not case["oneTransaction"]:
        side.transact([first])

    with pytest.raises(PyMongoError) as caught:
        side.transact([first, second] if case["oneTransaction"] else [second])

    assert getattr(caught.value, "code", None) == case["code"]


def run_order(side_type: type[Side], records: Database[Any], case: Any) -> None:
    entries = [record_of(entry) for entry in case["entries"]]
    side = side_type(uri_of(records.name))
    for part in [entries] if case["oneTransaction"] else [[entry] for entry in entries]:
        side.transact(part)

    stored = {record["_id"]: record["seq"] for record in records[COLLECTION].find()}
    seqs = [stored[entry.id] for entry in entries]
    assert seqs == sorted(set(seqs))


@pytest.mark.parametrize(
    ("case", "accepted"),
    [(case, True) for case in section("enqueued")]
    + [(case, False) for case in section("refused") if "hook" not in case],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_published_schema_agrees(case: Any, accepted: bool) -> None:
    assert Draft202012Validator(SCHEMA).is_valid(case["record"]) == accepted
