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


def apply_next(headers: dict[str, Any], body: bytes) -> None:
    """Applies the event if it is the next one; does nothing if it was applied before."""
    aggregate = headers["aggregate-id"]
    place = (int(headers["aggregate-version"]), int(headers["event-index"]))
    state = db.states.find_one({"_id": aggregate}, {"version": 1, "index": 1, "count": 1})
    if state is None:
        expected = (1, 0)
    elif state["index"] + 1 < state["count"]:  # More events of the same version follow.
        expected = (state["version"], state["index"] + 1)
    else:
        expected = (state["version"] + 1, 0)
    if place < expected:
        return
    if place > expected:
        raise GapError(f"{aggregate}: {place} came, {expected} is next")
    # The guard and the effect are one write: only the state that was read is changed.
    read = {name: state[name] if state else None for name in ("version", "index")}
    changed = db.states.find_one_and_update(
        {"_id": aggregate, **read},
        {
            "$set": {
                **{"version": place[0], "index": place[1]},
                "count": int(headers["event-count"]),
            },
            "$push": {"n": json.loads(body)["n"]},
        },
        upsert=state is None,
        return_document=ReturnDocument.AFTER,
    )
    if changed is None:
        raise GapError(f"{aggregate}: another consumer has changed it; look again")


def count_failure(message_id: str, failure: str) -> int:
    counted: Any = db.inbox_failures.find_one_and_update(
        {"_id": {"consumer": "states", "message": message_id}},
        {"$inc": {"attempts": 1}, "$set": {"failure": failure}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    return int(counted["attempts"])


def handle(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
    crashes = failures = int(properties.headers.get("x-delivery-count", 0))
    while failures < MAX_ATTEMPTS:
        try:
            apply_next(properties.headers, body)
        except ConnectionFailure as error:  # MongoDB is away.
            print(properties.message_id, repr(error), flush=True)
        except DuplicateKeyError:  # Another consumer has made the first state: look again.
            pass
        except Exception as error:
            print(properties.message_id, repr(error), flush=True)
            failures = crashes + count_failure(properties.message_id, repr(error))
        else:
            channel.basic_ack(method.delivery_tag)
            return
        connection.sleep(RETRY_PAUSE)
    channel.basic_reject(method.delivery_tag, requeue=False)


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URI"]))
channel = connection.channel()
channel.basic_qos(prefetch_count=1)
channel.basic_consume(os.environ["QUEUE"], handle)
channel.start_consuming()
# docs:end consumer-versions
