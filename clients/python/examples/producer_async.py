"""The same as producer.py with pymongo's asynchronous client."""

from __future__ import annotations

# docs:begin producer-async
import asyncio
import os
import sys
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession

from postrider_outbox import AsyncOutbox, Record


async def change_order(client: AsyncMongoClient[Any], key: str, n: int) -> str:
    db = client.get_default_database()
    outbox = AsyncOutbox(db)
    record = Record("OrderChanged", {"order": key, "n": n}, key=key)

    async def change(session: AsyncClientSession) -> None:
        # One after the other: a transaction takes one operation at a time.
        changes = {"$push": {"changes": n}}
        await db.orders.update_one({"_id": key}, changes, upsert=True, session=session)
        await outbox.enqueue(session, record)

    async with client.start_session() as session:
        await session.with_transaction(change)
    return str(record.id)


# docs:end producer-async


async def main() -> None:
    async with AsyncMongoClient[Any](os.environ["MONGODB_URI"]) as client:
        await AsyncOutbox(client.get_default_database()).probe()
        while line := await asyncio.to_thread(sys.stdin.readline):
            key, n = line.split()
            print(await change_order(client, key, int(n)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
