"""Takes the messages of a Kafka topic, each once: effect and inbox row in one transaction.

MONGODB_URI=… KAFKA_BROKERS=127.0.0.1:9092 TOPIC=orders GROUP=billing python consumer_kafka.py
"""

from __future__ import annotations

# docs:begin consumer-kafka
import json
import os
import signal
import sys
import time
from datetime import datetime, timezone
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from pymongo import MongoClient, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, DuplicateKeyError, PyMongoError

CONSUMER = "received"  # Each consumer has rows of its own in the inbox.
MAX_ATTEMPTS = 5
RETRY_PAUSE = 0.5
# Longer than any time after which a message can come again.
INBOX_TTL = int(os.environ.get("INBOX_TTL_SECONDS", 30 * 24 * 3600))

client: MongoClient[Any] = MongoClient(os.environ["MONGODB_URI"])
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


def apply_once(message_id: str, message: Any) -> bool:
    """Returns whether the effect was not there before."""
    if message.key() is None or message.value() is None:  # A tombstone has no value.
        raise ValueError("a message without a key or a value")
    key, payload = message.key().decode(), json.loads(message.value())

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
        return True
    except DoneBeforeError:
        print(message_id, "again", flush=True)
        return False


def is_passing(error: Exception) -> bool:
    """Whether MongoDB is at fault, and not the message."""
    labels = ("TransientTransactionError", "UnknownTransactionCommitResult")
    return isinstance(error, ConnectionFailure) or (
        isinstance(error, PyMongoError) and any(map(error.has_error_label, labels))
    )


def count_attempt(message_id: str, failure: str) -> int:
    """Counts outside of the transaction, so that the count stays; returns the number until now."""
    counted: Any = db.inbox_failures.find_one_and_update(
        {"_id": row_of(message_id)},
        {"$inc": {"attempts": 1}, "$set": {"failure": failure, "at": datetime.now(timezone.utc)}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    return int(counted["attempts"])


def forget_attempts(message_id: str) -> None:
    db.inbox_failures.delete_one({"_id": row_of(message_id)})


def move_to_dead(message: Any, failure: str) -> None:
    """Sends the message to the topic of dead ones, and waits for the confirm."""
    errors: list[Any] = []
    dead.produce(
        f"{message.topic()}.dead",
        key=message.key(),
        value=message.value(),
        headers=[*(message.headers() or []), ("failure", failure.encode())],
        on_delivery=lambda error, _: errors.append(error),
    )
    dead.flush(30)
    if errors != [None]:
        # The offset is not committed: the message comes again after the restart.
        raise RuntimeError(f"{message.topic()}.dead does not confirm: {errors}")


def handle(message: Any) -> None:
    headers = dict(message.headers() or [])
    message_id = (headers.get("message-id") or b"").decode(errors="replace")
    if not message_id:
        move_to_dead(message, "not a message of Postrider: it has no message-id")
        return
    # Kafka does not count deliveries. A message that ends the process is in the next process the
    # first one of its partition whose effect is not there yet. So only such a message is counted
    # before its attempt.
    is_counted = message.partition() not in proven
    failure = "it ended the process"
    failed = count_attempt(message_id, failure) - 1 if is_counted else 0
    while failed < MAX_ATTEMPTS:
        try:
            if apply_once(message_id, message):
                proven.add(message.partition())
            if is_counted or failed:
                forget_attempts(message_id)
            return
        except Exception as error:
            print(message_id, repr(error), flush=True)
            if not is_passing(error):
                failure = repr(error)
                failed = failed + 1 if is_counted else count_attempt(message_id, failure)
                is_counted = False
        # In place, so that the messages behind it wait. After max.poll.interval.ms (5 minutes)
        # Kafka gives the partition to another member, and the commit below fails.
        time.sleep(RETRY_PAUSE)
    move_to_dead(message, failure)
    forget_attempts(message_id)  # If it is sent again, it has all its attempts again.


#: Partitions in which this process has applied a message.
proven: set[int] = set()
dead = Producer({"bootstrap.servers": os.environ["KAFKA_BROKERS"], "enable.idempotence": True})
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BROKERS"],
        "group.id": os.environ["GROUP"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([os.environ["TOPIC"]])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        handle(message)
        consumer.commit(message=message, asynchronous=False)  # After the commit of MongoDB.
finally:
    consumer.close()  # Else the partitions wait for the end of the session.
# docs:end consumer-kafka
