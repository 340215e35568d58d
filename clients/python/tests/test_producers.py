"""The producers of the documentation."""

from __future__ import annotations

import os
import subprocess
from typing import Any
from uuid import UUID

import pytest
from pymongo.database import Database

from postrider_outbox import partition_of

from .programs import command_of
from .support import TIMEOUT, uri_of


@pytest.mark.parametrize("example", ["producer.py", "producer_async.py"])
def test_producer_writes_change_and_record_of_each_line(
    database: Database[Any], example: str
) -> None:
    lines = [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)]

    done = subprocess.run(
        command_of(example),
        input="".join(f"{key} {n}\n" for key, n in lines),
        env={**os.environ, "MONGODB_URI": uri_of(database.name)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )

    records = list(database.outbox_records.find(sort=[("seq", 1)]))
    assert [record["_id"] for record in records] == [UUID(id) for id in done.stdout.split()]
    assert [record["payload"] for record in records] == [{"order": key, "n": n} for key, n in lines]
    for record in records:
        assert record["type"] == "OrderChanged"
        assert record["key"] == record["payload"]["order"]
        assert record["partition"] == partition_of(record["key"])
    orders = {order["_id"]: order["changes"] for order in database.orders.find()}
    assert orders == {"a": [1, 2, 3], "b": [1, 2]}
