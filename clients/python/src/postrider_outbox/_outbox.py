"""The producer's side of an outbox: enqueue and probe, for both of pymongo's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from pymongo import ReadPreference, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from . import _probe
from ._document import RECORDS, codec_options, document_of
from ._errors import TransactionError
from ._record import HeaderValue, Record, RecordId
from ._values import kind_of

#: Returns headers for the record that is enqueued, such as ``traceparent``; None for none.
HeaderHook = Callable[[], Optional[Mapping[str, HeaderValue]]]


class Outbox:
    """The outbox of a database of a ``pymongo.MongoClient``.

    It holds no connection and no state; one for the whole application is enough.
    """

    def __init__(
        self,
        database: Database[Any],
        *,
        collection_prefix: str = "",
        header_hook: HeaderHook | None = None,
    ) -> None:
        """Creates an outbox.

        :param database: from the client that starts the sessions.
        :param collection_prefix: ``outbox.collection_prefix`` of Postrider's configuration.
        :param header_hook: called by each ``enqueue``; returns headers to add to the record's own.
        """
        if not isinstance(database, Database):
            raise TypeError(
                f"database must be a pymongo Database, not {kind_of(database)}; "
                "for an AsyncDatabase use AsyncOutbox"
            )
        self._records: Collection[Any] = database.get_collection(
            collection_prefix + RECORDS, codec_options=codec_options(database.codec_options)
        )
        self._hook = header_hook

    def enqueue(self, session: ClientSession, record: Record) -> RecordId:
        """Inserts a record in the running transaction of a session, and returns its id.

        The record is delivered after the transaction has committed, and never if it aborts. No
        value of the caller is changed.

        :raises TransactionError: the session has no running transaction; nothing was sent.
        :raises RecordError: a field is invalid; nothing was sent.
        :raises pymongo.errors.PyMongoError: the driver's own errors with their labels, so that
            ``with_transaction`` can repeat the transaction. An id or ``dedup_key`` that exists is
            a ``DuplicateKeyError``.
        """
        _require_transaction(session, ClientSession)
        document = document_of(record, self._hook and self._hook(), self._records.codec_options)
        self._records.insert_one(document, session=session)
        return record.id

    def probe(self) -> None:
        """Checks that this deployment can carry an outbox. Call it when the application starts.

        Inserts a record in a transaction, reads its ``seq`` back, and aborts: nothing stays.

        :raises ProbeError: the deployment has no transactions, or ``seq`` is not filled in.
        :raises pymongo.errors.PyMongoError: other errors, such as a missing right to write.
        """
        probe = _probe.document()
        with self._records.database.client.start_session() as session:
            session.start_transaction(**_OPTIONS)
            try:
                self._records.insert_one(probe, session=session)
                stored = self._records.find_one({"_id": probe["_id"]}, session=session)
            except OperationFailure as error:
                _probe.check_failure(error)
                raise
            finally:
                session.abort_transaction()
        _probe.check_stored(stored)


class AsyncOutbox:
    """The outbox of a database of a ``pymongo.AsyncMongoClient``; otherwise like ``Outbox``.

    A transaction takes one operation at a time: await each, and use no ``asyncio.gather``.
    """

    def __init__(
        self,
        database: AsyncDatabase[Any],
        *,
        collection_prefix: str = "",
        header_hook: HeaderHook | None = None,
    ) -> None:
        """Creates an outbox; the parameters are those of ``Outbox``."""
        if not isinstance(database, AsyncDatabase):
            raise TypeError(
                f"database must be a pymongo AsyncDatabase, not {kind_of(database)}; "
                "for a Database use Outbox; Motor is not supported"
            )
        self._records: AsyncCollection[Any] = database.get_collection(
            collection_prefix + RECORDS, codec_options=codec_options(database.codec_options)
        )
        self._hook = header_hook

    async def enqueue(self, session: AsyncClientSession, record: Record) -> RecordId:
        """Inserts a record in the running transaction of a session, and returns its id.

        See ``Outbox.enqueue``.
        """
        _require_transaction(session, AsyncClientSession)
        document = document_of(record, self._hook and self._hook(), self._records.codec_options)
        await self._records.insert_one(document, session=session)
        return record.id

    async def probe(self) -> None:
        """Checks that this deployment can carry an outbox. See ``Outbox.probe``."""
        probe = _probe.document()
        async with self._records.database.client.start_session() as session:
            await session.start_transaction(**_OPTIONS)
            try:
                await self._records.insert_one(probe, session=session)
                stored = await self._records.find_one({"_id": probe["_id"]}, session=session)
            except OperationFailure as error:
                _probe.check_failure(error)
                raise
            finally:
                await session.abort_transaction()
        _probe.check_stored(stored)


# Whatever the client's own options are.
_OPTIONS: dict[str, Any] = {
    "read_preference": ReadPreference.PRIMARY,
    "write_concern": WriteConcern("majority"),
}


def _require_transaction(session: object, expected: type) -> None:
    if session is not None and not isinstance(session, expected):
        raise TypeError(
            f"session must be a pymongo {expected.__name__}, not {kind_of(session)}; "
            "an AsyncClientSession belongs to AsyncOutbox, a ClientSession to Outbox"
        )
    if session is None or not session.in_transaction:  # type: ignore[attr-defined]
        raise TransactionError(
            "session: it has no running transaction; start one, by session.with_transaction or "
            "session.start_transaction: without it the record and the change can part"
        )
