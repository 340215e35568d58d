"""Writes outbox records for Postrider, each in the MongoDB transaction of your own change.

>>> outbox = Outbox(database)
>>> def place_order(session):
...     database.orders.insert_one({"_id": "order-7", "total": 120}, session=session)
...     outbox.enqueue(session, record)
>>> record = Record("OrderCreated", {"order": "order-7", "total": 120}, key="order-7")
>>> with client.start_session() as session:
...     session.with_transaction(place_order)

``Outbox`` is for ``pymongo.MongoClient``, ``AsyncOutbox`` for ``pymongo.AsyncMongoClient``.
"""

from ._errors import OutboxError, ProbeError, RecordError, TransactionError
from ._outbox import AsyncOutbox, HeaderHook, Outbox
from ._partition import PARTITIONS, partition_of
from ._record import HeaderValue, Record, RecordId

__all__ = [
    "PARTITIONS",
    "AsyncOutbox",
    "HeaderHook",
    "HeaderValue",
    "Outbox",
    "OutboxError",
    "ProbeError",
    "Record",
    "RecordError",
    "RecordId",
    "TransactionError",
    "partition_of",
]
