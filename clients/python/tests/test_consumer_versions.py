"""The consumer that goes by versions: each event once and in order, without an inbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database

from .programs import Program, run_until_killed
from .queues import Queue, amqp_uri, body_of, queue
from .support import uri_of, wait_until

CONSUMER = "consumer_versions.py"


@pytest.fixture
def orders() -> Iterator[Queue]:
    with queue(**{"x-queue-type": "quorum"}) as made:
        yield made


def environment_of(database: Database[Any], orders: Queue) -> dict[str, str]:
    uri = uri_of(database.name)
    return {"MONGODB_URI": uri, "AMQP_URI": amqp_uri(), "QUEUE": orders.name}


def publish(orders: Queue, n: int, version: int, index: int = 0, count: int | None = 1) -> str:
    headers: dict[str, Any] = {"aggregate-version": version, "event-index": index}
    if count is not None:
        headers |= {"aggregate-id": "o-1", "event-count": count}
    return orders.publish("o-1", body_of(n), headers=headers)


def applied(database: Database[Any]) -> list[int]:
    state = database.states.find_one({"_id": "o-1"})
    return state["n"] if state else []


def test_events_are_applied_once_and_complete(empty_database: Database[Any], orders: Queue) -> None:
    publish(orders, 1, version=1)
    publish(orders, 1, version=1)
    for index in range(3):
        publish(orders, 2 + index, version=2, index=index, count=3)
    # A crash of the relay: from an earlier event on.
    publish(orders, 1, version=1)
    for index in range(3):
        publish(orders, 2 + index, version=2, index=index, count=3)
    publish(orders, 5, version=3)

    with Program(CONSUMER, environment_of(empty_database, orders)):
        wait_until("the last is there", lambda: 5 in applied(empty_database))

    assert applied(empty_database) == [1, 2, 3, 4, 5]
    state = empty_database.states.find_one({})
    assert state is not None
    assert (state["version"], state["index"]) == (3, 0)


def test_events_of_an_earlier_release_are_applied_once(
    empty_database: Database[Any], orders: Queue
) -> None:
    places = [(1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]
    for n in (0, 1, 2, 1, 2, 3, 4):
        version, index = places[n]
        publish(orders, n, version=version, index=index, count=None)
    publish(orders, 5, version=4, index=0, count=1)

    with Program(CONSUMER, environment_of(empty_database, orders)):
        wait_until("the last is there", lambda: 5 in applied(empty_database))

    assert applied(empty_database) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("version", "index", "count"), [(3, 0, 1), (2, 2, 3), (1, 1, 2)], ids=str)
def test_event_behind_a_gap_is_not_applied(
    empty_database: Database[Any], orders: Queue, version: int, index: int, count: int
) -> None:
    publish(orders, 1, version=1)
    publish(orders, 2, version=2, index=0, count=3)
    behind = publish(orders, 9, version=version, index=index, count=count)
    publish(orders, 3, version=2, index=1, count=3)

    with Program(CONSUMER, environment_of(empty_database, orders)) as program:
        wait_until("the last is there", lambda: 3 in applied(empty_database))

    assert applied(empty_database) == [1, 2, 3]
    if version == 1:
        # Behind version 2 it is an old one.
        assert orders.dead() == []
    else:
        assert wait_until("it is dead", orders.dead) == [(behind, body_of(9))]
        assert program.output.count(f"{behind} GapError") == 5
    assert list(empty_database.inbox_failures.find()) == []


@pytest.mark.parametrize("before", [0, 1, 2])
def test_event_that_another_consumer_applies_meanwhile_is_applied_once(
    empty_database: Database[Any], orders: Queue, before: int
) -> None:
    # The guard is part of the write: another can be between the read and the write of this one.
    places = [(1, 0, 1), (2, 0, 2), (2, 1, 2), (3, 0, 1)]
    client = empty_database.client
    empty_database.create_collection("states")
    waiting = {"ns": f"{empty_database.name}.states", "op": "update"}
    with Program(CONSUMER, environment_of(empty_database, orders)), client.start_session() as other:
        for n in range(before):
            publish(orders, n, *places[n])
        wait_until("the earlier are there", lambda: len(applied(empty_database)) == before)
        with other.start_transaction():
            place = dict(zip(("version", "index", "count"), places[before]))
            change = {"$set": place, "$push": {"n": before}}
            empty_database.states.update_one({"_id": "o-1"}, change, upsert=True, session=other)
            publish(orders, before, *places[before])
            pipeline: list[Any] = [{"$currentOp": {}}, {"$match": waiting}]
            wait_until("a write waits", lambda: list(client.admin.aggregate(pipeline)))
        publish(orders, before + 1, *places[before + 1])
        wait_until("the last is there", lambda: before + 1 in applied(empty_database))

    assert applied(empty_database) == list(range(before + 2))
    assert orders.dead() == []


@pytest.mark.parametrize("point", ["effect", "answer"])
def test_killed_consumer_loses_and_repeats_nothing(
    empty_database: Database[Any], orders: Queue, point: str
) -> None:
    environment = environment_of(empty_database, orders)
    for n in range(6):
        publish(orders, n, version=1 + n // 2, index=n % 2, count=2)

    run_until_killed(CONSUMER, environment, point, 3)
    run_until_killed(CONSUMER, environment, point, 2)
    with Program(CONSUMER, environment):
        wait_until("the last is there", lambda: 5 in applied(empty_database))

    assert applied(empty_database) == [0, 1, 2, 3, 4, 5]
