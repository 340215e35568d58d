"""The helper for tests of applications."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from postrider_outbox import Outbox, Record
from postrider_outbox.testing import Relay, RelayError

from .programs import EXAMPLES
from .support import TIMEOUT, uri_of


def enqueue(database: Database[Any], *records: Record, prefix: str = "") -> None:
    with MongoClient[Any](uri_of(database.name)) as client, client.start_session() as session:
        outbox = Outbox(client.get_default_database(), collection_prefix=prefix)
        with session.start_transaction():
            for record in records:
                outbox.enqueue(session, record)


def test_recipe_passes_as_it_is_documented(empty_database: Database[Any]) -> None:
    command = [sys.executable, "-S", "-m", "pytest", "-q", str(EXAMPLES / "test_recipe.py")]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        env={**os.environ, "MONGODB_URI": uri_of(empty_database.name)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )

    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_messages_are_returned_by_key_and_type_in_their_order(
    empty_database: Database[Any],
) -> None:
    id = uuid4()
    with Relay(uri_of(empty_database.name)) as relay:
        enqueue(
            empty_database,
            Record("A", {"n": 1}, key="a", id=id, headers={"h": 5}, tenant_id="t"),
            Record("B", "text", key="b"),
            Record("B", b"\0\xff", key="a"),
            Record("C", None),
        )
        everything = relay.wait_for(4)
        [first, second] = relay.wait_for(2, key="a")
        texts = relay.messages(type="B")

    assert {message.type for message in everything} == {"A", "B", "C"}
    assert (first.id, first.key, first.type, first.payload) == (str(id), "a", "A", {"n": 1})
    assert first.headers == {"h": 5, "tenant-id": "t"}
    assert first.content_type == "application/json"
    assert second.payload == b"\0\xff"
    assert {message.key: message.payload for message in texts} == {"a": b"\0\xff", "b": "text"}
    [tombstone] = [message for message in everything if message.type == "C"]
    assert (tombstone.key, tombstone.payload) == (None, None)


def test_settings_reach_postrider(empty_database: Database[Any]) -> None:
    settings = {"outbox.collection_prefix": "shop_"}
    with Relay(uri_of(empty_database.name), settings=settings) as relay:
        enqueue(empty_database, Record("A", 1, key="a"), prefix="shop_")

        assert [message.payload for message in relay.wait_for(1)] == [1]


def test_wait_fails_with_what_was_sent(empty_database: Database[Any]) -> None:
    with Relay(uri_of(empty_database.name)) as relay:
        enqueue(empty_database, Record("A", 1, key="a"))
        relay.wait_for(1)

        with pytest.raises(AssertionError, match=r"0 of 1 messages with key 'b'.*\[\"A 'a'\"\]"):
            relay.wait_for(1, key="b", timeout=0.1)


def test_process_and_folder_are_gone_at_the_end(empty_database: Database[Any]) -> None:
    with Relay(uri_of(empty_database.name)) as relay:
        process, folder = relay._process, relay._folder
        assert process is not None
        assert folder is not None
        assert process.poll() is None

    assert process.poll() == 0
    assert not folder.exists()
    with pytest.raises(RelayError, match="does not run"):
        relay.messages()


def test_relay_that_ends_is_reported_with_its_log(empty_database: Database[Any]) -> None:
    settings = {"relay.max_attempts": "0"}
    before = time.monotonic()

    with (
        pytest.raises(RelayError, match=r"Postrider has ended \(2\)[\s\S]*relay\.max_attempts"),
        Relay(uri_of(empty_database.name), settings=settings),
    ):
        pass

    assert time.monotonic() - before < 20


def test_missing_program_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POSTRIDER_BIN")
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(RelayError, match="set POSTRIDER_BIN"):
        Relay("mongodb://127.0.0.1/shop")
