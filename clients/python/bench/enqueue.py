"""What `enqueue` costs next to a bare `insert_one` of the same document in a transaction.

    POSTRIDER_TEST_MONGODB_URI=… PYTHONPATH=src python bench/enqueue.py [ROUNDS [TRANSACTIONS]]

The two take turns, transaction by transaction; the figure is the ratio of their medians.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from typing import Any
from uuid import uuid4

from pymongo import AsyncMongoClient, MongoClient

from postrider_outbox import AsyncOutbox, Outbox, Record
from postrider_outbox._document import document_of

DATABASE = f"client_python_bench_{uuid4().hex[:12]}"


def record_of(n: int) -> Record:
    order = f"order-{n % 1000}"
    lines = [{"product": f"p-{line}", "count": line, "price": 12.5} for line in range(5)]
    payload = {"order": order, "customer": uuid4(), "total": 120, "lines": lines}
    return Record("OrderChanged", payload, key=order, headers={"source": "shop"})


Times = tuple[list[float], list[float]]
"""Of the bare insertions, and of those by the library."""


def time_sync(client: MongoClient[Any], transactions: int) -> Times:
    database = client.get_database(DATABASE)
    outbox, options = Outbox(database), database.codec_options
    bare: list[float] = []
    ours: list[float] = []
    with client.start_session() as session:
        for n in range(2 * transactions):
            record = record_of(n)
            document = document_of(record, None, options)
            with session.start_transaction():
                # The same first write in both, so that only the record differs.
                database.orders.insert_one({"n": n}, session=session)
                start = time.perf_counter()
                if n % 2 == 0:
                    database.outbox_records.insert_one(document, session=session)
                else:
                    outbox.enqueue(session, record)
                (bare, ours)[n % 2].append(time.perf_counter() - start)
    return bare, ours


async def time_async(client: AsyncMongoClient[Any], transactions: int) -> Times:
    database = client.get_database(DATABASE)
    outbox, options = AsyncOutbox(database), database.codec_options
    bare: list[float] = []
    ours: list[float] = []
    async with client.start_session() as session:
        for n in range(2 * transactions):
            record = record_of(n)
            document = document_of(record, None, options)
            async with await session.start_transaction():
                await database.orders.insert_one({"n": n}, session=session)
                start = time.perf_counter()
                if n % 2 == 0:
                    await database.outbox_records.insert_one(document, session=session)
                else:
                    await outbox.enqueue(session, record)
                (bare, ours)[n % 2].append(time.perf_counter() - start)
    return bare, ours


def report(name: str, rounds: list[Times]) -> None:
    ratios = [statistics.median(ours) / statistics.median(bare) for bare, ours in rounds]
    bare = statistics.median(each for bare, _ in rounds for each in bare)
    ours = statistics.median(each for _, ours in rounds for each in ours)
    print(
        f"{name}: insert_one {bare * 1e6:.0f} us, enqueue {ours * 1e6:.0f} us, "
        f"ratio {ours / bare:.3f} (rounds {min(ratios):.3f} to {max(ratios):.3f})"
    )


def main() -> None:
    uri = os.environ["POSTRIDER_TEST_MONGODB_URI"]
    given = [int(each) for each in sys.argv[1:]]
    rounds, transactions = [*given, *(7, 400)[len(given) :]]
    options: dict[str, Any] = {"uuidRepresentation": "standard"}
    with MongoClient[Any](uri, **options) as client:
        try:
            time_sync(client, 100)  # The first connections, and the creation of the collections.
            report("sync", [time_sync(client, transactions) for _ in range(rounds)])
            report("async", asyncio.run(rounds_of_async(uri, options, rounds, transactions)))
        finally:
            client.drop_database(DATABASE)


async def rounds_of_async(
    uri: str, options: dict[str, Any], rounds: int, transactions: int
) -> list[Times]:
    async with AsyncMongoClient[Any](uri, **options) as client:
        await time_async(client, 100)
        return [await time_async(client, transactions) for _ in range(rounds)]


if __name__ == "__main__":
    main()
