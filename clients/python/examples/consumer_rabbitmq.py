"""Takes the messages of a RabbitMQ queue, each once: effect and inbox row in one transaction.

MONGODB_URI=… AMQP_URI=amqp://guest:guest@127.0.0.1/%2f QUEUE=orders python consumer_rabbitmq.py
"""

from __future__ import annotations

# docs:begin consumer-rabbitmq
import json
import os
from datetime import datetime, timezone
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pymongo import MongoClient, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, DuplicateKeyError, PyMongoError

CONSUMER = "received"  # Each consumer has rows of its own in the inbox.
MAX_ATTEMPTS = 5
RETRY_PAUSE = 0.5
# Longer than any time after which a message can come again.
INBOX_TTL = int(os.environ.get("INBOX_TTL_SECONDS", 30 * 24 * 3600))

# If MongoDB is away, ask again soon enough for the heartbeats of RabbitMQ.
client: MongoClient[Any] = MongoClient(os.environ["MONGODB_URI"], serverSelectionTimeoutMS=5000)
db = client.get_default_database()
db.inbox.create_index("at", expireAfterSeconds=INBOX_TTL)
db.inbox_failures.create_index("at", expireAfterSeconds=INBOX_TTL)


def effect(session: ClientSession, key: str, payload: Any) -> None:
    change = {"$push": {"n": payload["n"]}}
    db.received.update_one({"_id": key}, change, upsert=True, session=session)


class DoneBeforeError(Exception):
    """The effect of this message was committed at an earlier delivery."""


def row_of(message_id: str) -> dict[str, Any]:
    return {"consumer": CONSUMER, "message": message_id}


def apply_once(message_id: str, key: str, body: bytes) -> None:
    payload = json.loads(body)

    def transaction(session: ClientSession) -> None:
        row = {"_id": row_of(message_id), "at": datetime.now(timezone.utc)}
        try:
            db.inbox.insert_one(row, session=session)
        except DuplicateKeyError as error:  # Code 11000. MongoDB has aborted the transaction.
            raise DoneBeforeError from error
        effect(session, key, payload)

    try:
        with client.start_session() as session:
            # Repeats the transaction after a conflict with another one (code 112).
            session.with_transaction(transaction)
    except DoneBeforeError:
        print(message_id, "again", flush=True)


def is_passing(error: Exception) -> bool:
    """Whether MongoDB is at fault, and not the message."""
    labels = ("TransientTransactionError", "UnknownTransactionCommitResult")
    return isinstance(error, ConnectionFailure) or (
        isinstance(error, PyMongoError) and any(map(error.has_error_label, labels))
    )


def count_failure(message_id: str, failure: str) -> int:
    """Counts outside of the transaction, which was aborted; returns the number until now."""
    counted: Any = db.inbox_failures.find_one_and_update(
        {"_id": row_of(message_id)},
        {"$inc": {"attempts": 1}, "$set": {"failure": failure, "at": datetime.now(timezone.utc)}},
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
            apply_once(message_id, headers["message-key"], body)
        except Exception as error:
            print(message_id, repr(error), flush=True)
            if not is_passing(error):
                failures = crashes + count_failure(message_id, repr(error))
        else:
            channel.basic_ack(method.delivery_tag)  # After the commit.
            return
        # In place, so that the messages behind it wait; the connection stays alive.
        connection.sleep(RETRY_PAUSE)
    # If it is published again, it has all its attempts again.
    db.inbox_failures.delete_one({"_id": row_of(message_id)})
    # To the dead-letter exchange of the queue; without one RabbitMQ drops the message.
    channel.basic_reject(method.delivery_tag, requeue=False)


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URI"]))
channel = connection.channel()
channel.basic_qos(prefetch_count=1)  # One after the other, in the order of the queue.
channel.basic_consume(os.environ["QUEUE"], handle)
channel.start_consuming()
# docs:end consumer-rabbitmq
