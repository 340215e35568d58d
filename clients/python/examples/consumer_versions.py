"""Takes the messages of appended events, each once, without an inbox: guarded by their version.

MONGODB_URI=… AMQP_URI=amqp://guest:guest@127.0.0.1/%2f QUEUE=orders python consumer_versions.py
"""

from __future__ import annotations

# docs:begin consumer-versions
import json
import os
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import ConnectionFailure, DuplicateKeyError

MAX_ATTEMPTS = 5
RETRY_PAUSE = 0.5

client: MongoClient[Any] = MongoClient(os.environ["MONGODB_URI"], serverSelectionTimeoutMS=5000)
db = client.get_default_database()


class GapError(Exception):
    """A message before this one has not been applied."""


def next_places(state: dict[str, Any] | None) -> list[tuple[int, int]]:
    """The (version, index) of the events that may follow."""
    if state is None:
        return [(1, 0)]
    same_version = (state["version"], state["index"] + 1)
    next_version = (state["version"] + 1, 0)
    if state["count"] is None:  # An earlier release of Postrider does not send event-count.
        return [same_version, next_version]
    is_complete = state["index"] + 1 >= state["count"]
    return [next_version if is_complete else same_version]


def apply_next(headers: dict[str, Any], body: bytes) -> bool:
    """Applies the event if it is the next one; returns False if it was applied before."""
    aggregate = headers.get("aggregate-id", headers["message-key"])
    version, index = int(headers["aggregate-version"]), int(headers["event-index"])
    place = {"version": version, "index": index}
    state = db.states.find_one({"_id": aggregate})
    if state is not None and (version, index) <= (state["version"], state["index"]):
        return False
    if (version, index) not in next_places(state):
        raise GapError(f"{aggregate}: an event before {place} is missing")
    # Guard and effect are one write, of the state that was read. None matches its absence.
    read = {name: state[name] if state else None for name in place}
    effect = {"$push": {"n": json.loads(body)["n"]}}
    set_place = {"$set": {**place, "count": headers.get("event-count")}}
    # Where another consumer was first, this inserts, which fails with code 11000.
    db.states.update_one({"_id": aggregate, **read}, {**set_place, **effect}, upsert=True)
    return True


def row_of(message_id: str) -> dict[str, Any]:
    return {"consumer": "states", "message": message_id}


def count_failure(message_id: str, failure: str) -> int:
    counted: Any = db.inbox_failures.find_one_and_update(
        {"_id": row_of(message_id)},
        {"$inc": {"attempts": 1}, "$set": {"failure": failure}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    return int(counted["attempts"])


def handle(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
    message_id, headers = properties.message_id, properties.headers or {}
    if not message_id:  # It is not a message of Postrider.
        channel.basic_reject(method.delivery_tag, requeue=False)
        return
    # Deliveries without an answer: it may crash this program. Quorum queues count them.
    failures = crashes = int(headers.get("x-delivery-count", 0))
    if method.redelivered and "x-delivery-count" not in headers:
        failures = count_failure(message_id, "redelivered")
    while failures < MAX_ATTEMPTS:
        try:
            if not apply_next(headers, body):
                print(message_id, "again", flush=True)
        except (ConnectionFailure, DuplicateKeyError) as error:
            # MongoDB is away, or another consumer has changed the state: look again.
            print(message_id, repr(error), flush=True)
        except Exception as error:
            print(message_id, repr(error), flush=True)
            failures = crashes + count_failure(message_id, repr(error))
        else:
            channel.basic_ack(method.delivery_tag)  # After the write.
            return
        connection.sleep(RETRY_PAUSE)
    # If it is published again, it has all its attempts again.
    db.inbox_failures.delete_one({"_id": row_of(message_id)})
    channel.basic_reject(method.delivery_tag, requeue=False)  # To the dead-letter exchange.


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URI"]))
channel = connection.channel()
channel.basic_qos(prefetch_count=1)
channel.basic_consume(os.environ["QUEUE"], handle)
channel.start_consuming()
# docs:end consumer-versions
