"""A test of an application: what it did is checked by what Postrider has sent.

    MONGODB_URI=mongodb://127.0.0.1:27017/shop_test?replicaSet=rs0 pytest test_recipe.py

It needs no broker. The environment variable POSTRIDER_BIN names the program of Postrider; without
it `postrider` on the PATH is used.
"""

from __future__ import annotations

# docs:begin test-recipe
import os
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from postrider_outbox import Outbox, Record
from postrider_outbox.testing import Relay


@pytest.fixture(scope="session")
def relay() -> Iterator[Relay]:
    with Relay(os.environ["MONGODB_URI"]) as relay:
        yield relay


@pytest.fixture
def db() -> Iterator[Database[Any]]:
    with MongoClient[Any](os.environ["MONGODB_URI"]) as client:
        yield client.get_default_database()


def place_order(db: Database[Any], order: str, total: int) -> None:
    """What the application does."""
    record = Record("OrderPlaced", {"order": order, "total": total}, key=order)
    with db.client.start_session() as session, session.start_transaction():
        db.orders.insert_one({"_id": order, "total": total}, session=session)
        Outbox(db).enqueue(session, record)


def test_placed_order_is_reported(relay: Relay, db: Database[Any]) -> None:
    place_order(db, "order-7", 120)

    [message] = relay.wait_for(1, key="order-7")

    assert message.type == "OrderPlaced"
    assert message.payload == {"order": "order-7", "total": 120}


# docs:end test-recipe
