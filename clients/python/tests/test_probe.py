"""The probe finds what makes an outbox impossible, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from postrider_outbox import ProbeError

from .proxy import NOTHING, Replacement, proxy
from .sides import AsyncSide, SyncSide
from .support import uri_of, variable, wait_until

Side = SyncSide | AsyncSide
Documents = Database[dict[str, Any]]


def test_probe_passes_and_leaves_nothing_behind(side: Side, database: Documents) -> None:
    side.probe()

    assert list(database.outbox_records.find()) == []


def test_probe_creates_no_collection(side_type: type[Side], empty_database: Documents) -> None:
    side_type(uri_of(empty_database.name)).probe()

    assert empty_database.list_collection_names() == []


def test_probe_passes_whatever_the_clients_options(
    side_type: type[Side], database: Documents
) -> None:
    side_type(uri_of(database.name), readPreference="secondary", w=1, journal=False).probe()


@pytest.mark.parametrize(
    ("in_requests", "in_answers", "problem"),
    [
        # A driver that writes the zero as a date.
        ((rb"\x11seq\0\0{8}", b"\x09seq\0" + bytes(8)), NOTHING, "seq came back as datetime"),
        # A mapper that drops it.
        ((rb"\x11seq\0\0{8}", b"\x11xeq\0" + bytes(8)), NOTHING, "seq is absent"),
        # A service that stores it as it is.
        (NOTHING, (rb"\x11seq\0.{8}", b"\x11seq\0" + bytes(8)), "seq is still zero"),
    ],
    ids=["another type", "dropped", "zero"],
)
def test_probe_names_what_happened_to_seq(
    client: MongoClient[Any],
    side_type: type[Side],
    database: Documents,
    in_requests: Replacement,
    in_answers: Replacement,
    problem: str,
) -> None:
    primary = client.primary
    assert primary is not None
    assert primary[1] is not None
    target = (primary[0], primary[1])
    with proxy(target, in_requests=in_requests, in_answers=in_answers) as port:
        uri = f"mongodb://127.0.0.1:{port}/{database.name}?directConnection=true"

        with pytest.raises(ProbeError, match=f"{problem}.*connect to MongoDB itself"):
            side_type(uri).probe()

    assert list(database.outbox_records.find()) == []


def test_other_errors_of_the_probe_are_the_drivers_own(
    client: MongoClient[Any], side_type: type[Side], empty_database: Documents
) -> None:
    empty_database.create_collection("outbox_records", validator={"never": {"$exists": True}})

    with pytest.raises(OperationFailure) as caught:
        side_type(uri_of(empty_database.name)).probe()

    assert caught.value.code == 121


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A mongod that is not a replica set."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [variable("POSTRIDER_TEST_MONGOD"), "--dbpath", str(tmp_path), "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        mongod = subprocess.Popen([*command, "--bind_ip", "127.0.0.1"], stdout=log, stderr=log)
    uri = f"mongodb://127.0.0.1:{port}/shop"
    try:
        with MongoClient[Any](uri, serverSelectionTimeoutMS=200) as client:
            wait_until("the standalone mongod answers", lambda: answers(client))
        yield uri
    finally:
        mongod.kill()
        mongod.wait()


def answers(client: MongoClient[Any]) -> bool:
    try:
        return bool(client.admin.command("ping")["ok"])
    except PyMongoError:
        return False


def test_probe_says_that_a_standalone_has_no_transactions(
    side_type: type[Side], standalone: str
) -> None:
    with pytest.raises(ProbeError, match=r"no transactions here.*make it one"):
        side_type(standalone).probe()
