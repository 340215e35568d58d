"""The consumer of Kafka in the documentation: each message once, through kills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database

from .programs import Program, run_until_killed
from .queues import Topic, body_of, brokers, topic
from .support import uri_of, wait_until

CONSUMER = "consumer_kafka.py"


@pytest.fixture
def orders() -> Iterator[Topic]:
    with topic() as made:
        yield made


def environment_of(database: Database[Any], orders: Topic) -> dict[str, str]:
    return {
        "MONGODB_URI": uri_of(database.name),
        "KAFKA_BROKERS": brokers(),
        "TOPIC": orders.name,
        "GROUP": orders.group,
    }


def received(database: Database[Any]) -> dict[str, list[int]]:
    return {each["_id"]: each["n"] for each in database.received.find()}


def test_repeated_message_has_its_effect_once(empty_database: Database[Any], orders: Topic) -> None:
    first = orders.publish("a", body_of(1))
    orders.publish("b", body_of(1))
    orders.publish("a", body_of(1), id=first)
    orders.publish("a", body_of(2))

    with Program(CONSUMER, environment_of(empty_database, orders)):
        wait_until("all offsets are committed", lambda: orders.committed() == 4)

    assert received(empty_database) == {"a": [1, 2], "b": [1]}
    assert empty_database.inbox.count_documents({}) == 3
    assert empty_database.inbox.index_information()["at_1"]["expireAfterSeconds"] == 30 * 86400


@pytest.mark.parametrize("point", ["effect", "answer"])
def test_killed_consumer_loses_and_repeats_nothing(
    empty_database: Database[Any], orders: Topic, point: str
) -> None:
    environment = environment_of(empty_database, orders)
    for n in range(6):
        orders.publish("a", body_of(n))

    run_until_killed(CONSUMER, environment, point, 3)
    before = (received(empty_database)["a"], orders.committed())
    run_until_killed(CONSUMER, environment, point, 2)
    with Program(CONSUMER, environment):
        wait_until("all offsets are committed", lambda: orders.committed() == 6)

    # The third effect is committed where only its offset was missing.
    assert before == (([0, 1, 2], 2) if point == "answer" else ([0, 1], 2))
    assert received(empty_database) == {"a": [0, 1, 2, 3, 4, 5]}


def test_poison_messages_leave_the_partition_after_counted_attempts(
    empty_database: Database[Any], orders: Topic
) -> None:
    orders.publish("a", body_of(1))
    poison = orders.publish("a", b"not JSON")
    orders.publish_foreign(body_of(5))
    orders.publish("a", body_of(2))

    with Program(CONSUMER, environment_of(empty_database, orders)) as program:
        wait_until("all offsets are committed", lambda: orders.committed() == 4)

    assert received(empty_database) == {"a": [1, 2]}
    dead, foreign = orders.dead(2)
    assert (dead.key(), dead.value()) == (b"a", b"not JSON")
    headers = dict(dead.headers())
    assert headers["message-id"] == poison.encode()
    assert headers["message-type"] == b"OrderChanged"
    assert b"JSONDecodeError" in headers["failure"]
    assert foreign.value() == body_of(5)
    assert program.output.count(f"{poison} JSONDecodeError") == 5
    assert list(empty_database.inbox_failures.find()) == []


def test_incomplete_messages_leave_the_partition(
    empty_database: Database[Any], orders: Topic
) -> None:
    orders.publish_foreign(None)  # A tombstone of another program.
    for id in (None, b""):
        orders.publish_foreign(body_of(1), "a", [("message-id", id)])
    for id in (b"tombstone", b"\xff"):
        orders.publish_foreign(None, "a", [("message-id", id)])
    orders.publish_foreign(body_of(1), None, [("message-id", b"no key")])
    orders.publish("a", body_of(2))

    with Program(CONSUMER, environment_of(empty_database, orders)):
        wait_until("all offsets are committed", lambda: orders.committed() == 7)

    assert received(empty_database) == {"a": [2]}
    failures = [dict(each.headers())["failure"].decode() for each in orders.dead(6)]
    assert failures == [
        *["not a message of Postrider: it has no message-id"] * 3,
        *["ValueError('a message without a key or a value')"] * 3,
    ]


def test_message_that_ends_the_process_leaves_the_partition(
    empty_database: Database[Any], orders: Topic
) -> None:
    environment = environment_of(empty_database, orders)
    orders.publish("a", body_of(1))
    poison = orders.publish("b", body_of(2))
    orders.publish("c", body_of(3))
    # The offset of the one before is missing, so it comes again in front of the other.
    run_until_killed(CONSUMER, environment, "answer", 1)
    assert (received(empty_database), orders.committed()) == ({"a": [1]}, 0)
    assert list(empty_database.inbox_failures.find()) == []
    for attempt in range(1, 6):
        run_until_killed(CONSUMER, environment, "effect", 1)
        [counted] = empty_database.inbox_failures.find()
        assert counted["_id"] == {"consumer": "received", "message": poison}
        assert counted["attempts"] == attempt

    with Program(CONSUMER, environment):
        wait_until("all offsets are committed", lambda: orders.committed() == 3)

    assert received(empty_database) == {"a": [1], "c": [3]}
    [dead] = orders.dead(1)
    headers = dict(dead.headers())
    assert headers["message-id"] == poison.encode()
    assert headers["failure"] == b"it ended the process"
    assert list(empty_database.inbox_failures.find()) == []
