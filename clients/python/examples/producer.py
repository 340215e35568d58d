"""Changes an order and reports it, in one transaction per line of standard input: `key n`.

    MONGODB_URI=mongodb://127.0.0.1:27017/shop?replicaSet=rs0 python producer.py

Prints the message id after each commit.
"""

from __future__ import annotations

# docs:begin producer
import os
import sys
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession

from postrider_outbox import Outbox, Record

client: MongoClient[Any] = MongoClient(os.environ["MONGODB_URI"])
db = client.get_default_database()
outbox = Outbox(db)
outbox.probe()  # Fails here rather than later if the deployment cannot carry an outbox.


def change_order(key: str, n: int) -> str:
    # The record is made outside of the function that the driver may call again: one id.
    record = Record("OrderChanged", {"order": key, "n": n}, key=key)

    def change(session: ClientSession) -> None:
        changes = {"$push": {"changes": n}}
        db.orders.update_one({"_id": key}, changes, upsert=True, session=session)
        outbox.enqueue(session, record)

    with client.start_session() as session:
        session.with_transaction(change)
    return str(record.id)


# docs:end producer


if __name__ == "__main__":
    for line in sys.stdin:
        key, n = line.split()
        print(change_order(key, int(n)), flush=True)
