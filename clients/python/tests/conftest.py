"""Fixtures: a database of its own for each test, with the collections as Postrider makes them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.database import Database

from .sides import SIDES, AsyncSide, SyncSide
from .support import uri_of, variable

# The examples and other programs that tests start use this library too.
SOURCES = Path(__file__).resolve().parents[1] / "src"
os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="session")
def client() -> Iterator[MongoClient[dict[str, Any]]]:
    # Aware dates and subtype 4, so that what is read can be compared with what was written.
    with MongoClient[dict[str, Any]](
        variable("POSTRIDER_TEST_MONGODB_URI"), uuidRepresentation="standard", tz_aware=True
    ) as client:
        yield client


@pytest.fixture
def empty_database(client: MongoClient[dict[str, Any]]) -> Iterator[Database[dict[str, Any]]]:
    """A database without any collection, dropped afterwards."""
    database = client.get_database(f"client_python_{uuid4().hex[:20]}")
    yield database
    client.drop_database(database.name)


@pytest.fixture
def database(empty_database: Database[dict[str, Any]]) -> Database[dict[str, Any]]:
    """A database with Postrider's collections: validator, indexes and all."""
    apply_schema(empty_database.name)
    return empty_database


def apply_schema(database: str, prefix: str = "") -> None:
    settings = [
        *(f"mongo.uri={uri_of(database)}", "sinks.none.kind=stdout"),
        f"outbox.collection_prefix={prefix}",
    ]
    subprocess.run(
        [
            *(variable("POSTRIDER_BIN"), "schema", "apply"),
            *(word for setting in settings for word in ("--set", setting)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture(params=SIDES)
def side_type(request: pytest.FixtureRequest) -> type[SyncSide | AsyncSide]:
    """Each of the two clients of pymongo."""
    return SIDES[request.param]


@pytest.fixture
def side(
    side_type: type[SyncSide | AsyncSide], database: Database[dict[str, Any]]
) -> SyncSide | AsyncSide:
    return side_type(uri_of(database.name))


@pytest.fixture
def raw_records(database: Database[dict[str, Any]]) -> Any:
    """The stored records, their field order and BSON types kept."""
    return database.get_collection(
        "outbox_records", codec_options=CodecOptions(document_class=RawBSONDocument)
    )
