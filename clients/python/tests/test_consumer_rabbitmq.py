"""The consumer of RabbitMQ in the documentation: each message once, through kills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pika import BasicProperties
from pymongo import MongoClient
from pymongo.database import Database

from .programs import Program, run_until_killed
from .queues import Queue, amqp_uri, body_of, queue
from .support import uri_of, wait_until

CONSUMER = "consumer_rabbitmq.py"

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}


@pytest.fixture(params=[QUORUM, CLASSIC], ids=["quorum", "classic"])
def orders(request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue(**request.param) as made:
        yield made


def environment_of(database: Database[Any], orders: Queue) -> dict[str, str]:
    uri = f"{uri_of(database.name)}&appName={database.name}"
    return {"MONGODB_URI": uri, "AMQP_URI": amqp_uri(), "QUEUE": orders.name}


def received(database: Database[Any]) -> dict[str, list[int]]:
    return {each["_id"]: each["n"] for each in database.received.find()}


def wait_until_received(database: Database[Any], ns: list[int]) -> None:
    wait_until(f"{ns} are there", lambda: received(database).get("a") == ns)


def test_repeated_message_has_its_effect_once(empty_database: Database[Any], orders: Queue) -> None:
    first = orders.publish("a", body_of(1))
    orders.publish("b", body_of(1))
    orders.publish("a", body_of(1), id=first)
    orders.publish("a", body_of(2))

    with Program(CONSUMER, environment_of(empty_database, orders)):
        wait_until_received(empty_database, [1, 2])

    assert received(empty_database) == {"a": [1, 2], "b": [1]}
    rows = list(empty_database.inbox.find())
    assert first in [row["_id"]["message"] for row in rows]
    assert {row["_id"]["consumer"] for row in rows} == {"received"}
    assert len(rows) == 3
    assert empty_database.inbox.index_information()["at_1"]["expireAfterSeconds"] == 30 * 86400


@pytest.mark.parametrize("point", ["effect", "answer"])
def test_killed_consumer_loses_and_repeats_nothing(
    empty_database: Database[Any], orders: Queue, point: str
) -> None:
    environment = environment_of(empty_database, orders)
    for n in range(6):
        orders.publish("a", body_of(n))

    run_until_killed(CONSUMER, environment, point, 3)
    before = received(empty_database)["a"]
    run_until_killed(CONSUMER, environment, point, 2)
    with Program(CONSUMER, environment):
        wait_until_received(empty_database, [0, 1, 2, 3, 4, 5])

    # The third effect is committed where only the acknowledgement was missing.
    assert before == ([0, 1, 2] if point == "answer" else [0, 1])
    assert received(empty_database) == {"a": [0, 1, 2, 3, 4, 5]}
    assert orders.dead() == []


@pytest.mark.parametrize("body", [b"not JSON", b'{"no": "n"}', b""])
def test_poison_message_leaves_the_queue_after_counted_attempts(
    empty_database: Database[Any], orders: Queue, body: bytes
) -> None:
    orders.publish("a", body_of(1))
    poison = orders.publish("a", body)
    orders.publish("a", body_of(2))

    with Program(CONSUMER, environment_of(empty_database, orders)) as program:
        wait_until_received(empty_database, [1, 2])
        assert wait_until("it is dead", orders.dead) == [(poison, body)]
        assert list(empty_database.inbox_failures.find()) == []
        # An operator moves it back.
        orders.publish("a", body, id=poison)
        assert wait_until("it is dead again", orders.dead) == [(poison, body)]

    assert program.output.count(f"{poison} ") == 2 * 5
    assert list(empty_database.inbox_failures.find()) == []


def test_message_that_crashes_the_consumer_leaves_the_queue(
    empty_database: Database[Any], orders: Queue
) -> None:
    environment = environment_of(empty_database, orders)
    poison = orders.publish("a", body_of(1))
    orders.publish("a", body_of(2))
    # Deliveries that ended without an answer: of a quorum queue the broker counts them, of a
    # classic one the consumer.
    for _ in range(4):
        orders.deliver_without_answer()
    run_until_killed(CONSUMER, environment, "effect", 1)
    if orders.arguments == CLASSIC:
        [failures] = empty_database.inbox_failures.find()
        assert failures["attempts"] == 1
        empty_database.inbox_failures.update_one({}, {"$set": {"attempts": 4}})

    with Program(CONSUMER, environment):
        wait_until_received(empty_database, [2])

    assert wait_until("it is dead", orders.dead) == [(poison, body_of(1))]


def test_foreign_messages_leave_the_queue(empty_database: Database[Any], orders: Queue) -> None:
    orders.publish_foreign(body_of(1))
    orders.publish_foreign(body_of(1), BasicProperties(message_id=""))
    orders.publish("a", body_of(2))

    with Program(CONSUMER, environment_of(empty_database, orders)):
        wait_until_received(empty_database, [2])
        found: list[tuple[str | None, bytes]] = []

        def are_both_dead() -> bool:
            found.extend(orders.dead())
            return len(found) == 2

        wait_until("both are dead", are_both_dead)

    assert found == [(None, body_of(1)), ("", body_of(1))]


def test_fault_of_mongodb_is_not_counted(
    client: MongoClient[Any], empty_database: Database[Any], orders: Queue
) -> None:
    environment = environment_of(empty_database, orders)
    # The driver itself would repeat the transaction for two minutes.
    environment["TRANSACTION_RETRY_LIMIT"] = "0"
    data = {"failCommands": ["insert"], "closeConnection": True, "appName": empty_database.name}
    fail_point = {"configureFailPoint": "failCommand", "data": data}
    # The fail point is one of the whole server: another test may replace it.
    for n in range(5):
        orders.publish("a", body_of(n))
        client.admin.command({**fail_point, "mode": {"times": 7}})
        try:
            with Program(CONSUMER, environment) as program:
                wait_until_received(empty_database, [*range(n + 1)])
        finally:
            client.admin.command({**fail_point, "mode": "off"})
        if program.output.count("NetworkTimeout") == 7:
            break
    assert program.output.count("NetworkTimeout") == 7

    assert list(empty_database.inbox_failures.find()) == []
    assert orders.dead() == []
