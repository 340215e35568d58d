"""The two sides of the library, sync and async, behind one interface for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession

from postrider_outbox import AsyncOutbox, HeaderHook, Outbox, Record, RecordId


class AbortError(Exception):
    """Ends a transaction from within."""


class SyncSide:
    """The sync one. Each call is a client, a session and a transaction of its own."""

    #: How often the driver called the function of the last transaction.
    calls: int

    def __init__(
        self,
        uri: str,
        *,
        prefix: str = "",
        hook: HeaderHook | None = None,
        **options: Any,
    ) -> None:
        self._uri, self._options = uri, options
        self._prefix, self._hook = prefix, hook
        self.calls = 0

    def _with(self, work: Callable[[MongoClient[Any], Outbox], Any]) -> Any:
        with MongoClient[Any](self._uri, **self._options) as client:
            database = client.get_default_database()
            outbox = Outbox(database, collection_prefix=self._prefix, header_hook=self._hook)
            return work(client, outbox)

    def transact(self, records: Sequence[Record], *, abort: bool = False) -> list[RecordId]:
        self.calls = 0

        def work(client: MongoClient[Any], outbox: Outbox) -> list[RecordId]:
            def callback(session: ClientSession) -> list[RecordId]:
                self.calls += 1
                ids = [outbox.enqueue(session, record) for record in records]
                if abort:
                    raise AbortError
                return ids

            with client.start_session() as session:
                return list(session.with_transaction(callback))

        return list(self._with(work))

    def enqueue_outside(self, record: Record, state: str) -> None:
        def work(client: MongoClient[Any], outbox: Outbox) -> None:
            if state == "none":
                outbox.enqueue(None, record)  # type: ignore[arg-type]
                return
            with client.start_session() as session:
                if state != "neverStarted":
                    session.start_transaction()
                    client.get_default_database().orders.find_one({}, session=session)
                    if state == "committed":
                        session.commit_transaction()
                    else:
                        session.abort_transaction()
                outbox.enqueue(session, record)

        self._with(work)

    def probe(self) -> None:
        self._with(lambda _, outbox: outbox.probe())


class AsyncSide:
    """The async one, with the same interface."""

    calls: int

    def __init__(
        self, uri: str, *, prefix: str = "", hook: HeaderHook | None = None, **options: Any
    ) -> None:
        self._uri, self._options = uri, options
        self._prefix, self._hook = prefix, hook
        self.calls = 0

    def _with(self, work: Callable[[AsyncMongoClient[Any], AsyncOutbox], Any]) -> Any:
        async def run() -> Any:
            async with AsyncMongoClient[Any](self._uri, **self._options) as client:
                database = client.get_default_database()
                outbox = AsyncOutbox(
                    database, collection_prefix=self._prefix, header_hook=self._hook
                )
                return await work(client, outbox)

        return asyncio.run(run())

    def transact(self, records: Sequence[Record], *, abort: bool = False) -> list[RecordId]:
        self.calls = 0

        async def work(client: AsyncMongoClient[Any], outbox: AsyncOutbox) -> list[RecordId]:
            async def callback(session: AsyncClientSession) -> list[RecordId]:
                self.calls += 1
                ids = [await outbox.enqueue(session, record) for record in records]
                if abort:
                    raise AbortError
                return ids

            async with client.start_session() as session:
                return list(await session.with_transaction(callback))

        return list(self._with(work))

    def enqueue_outside(self, record: Record, state: str) -> None:
        async def work(client: AsyncMongoClient[Any], outbox: AsyncOutbox) -> None:
            if state == "none":
                await outbox.enqueue(None, record)  # type: ignore[arg-type]
                return
            async with client.start_session() as session:
                if state != "neverStarted":
                    await session.start_transaction()
                    await client.get_default_database().orders.find_one({}, session=session)
                    if state == "committed":
                        await session.commit_transaction()
                    else:
                        await session.abort_transaction()
                await outbox.enqueue(session, record)

        self._with(work)

    def probe(self) -> None:
        self._with(lambda _, outbox: outbox.probe())


SIDES: dict[str, type[SyncSide | AsyncSide]] = {"sync": SyncSide, "async": AsyncSide}
