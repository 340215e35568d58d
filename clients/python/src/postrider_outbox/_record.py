"""A record: the message that a transaction leaves in the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Union
from uuid import UUID, uuid4

from bson import Binary, Decimal128, ObjectId

#: The kinds of message ids. A ``Binary`` must be a UUID of subtype 4.
RecordId = Union[UUID, ObjectId, str, int, Binary]

#: The kinds of values that a broker can carry as a header.
HeaderValue = Union[
    str, int, float, bool, bytes, datetime, UUID, ObjectId, Decimal128, Binary, None
]


class Record:
    """A message to send, as ``Outbox.enqueue`` takes it.

    The constructor sets the id and ``created_at``, so that a repeated transaction writes the same
    ones: create the record outside of the function that ``with_transaction`` calls.

    The values are checked by ``enqueue``, which changes none of them.
    """

    __slots__ = (
        "content_type",
        "created_at",
        "dedup_key",
        "destination",
        "headers",
        "id",
        "key",
        "payload",
        "tenant_id",
        "type",
        "visible_at",
    )

    def __init__(
        self,
        type: str,
        payload: Any,
        *,
        key: str | None = None,
        id: RecordId | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        content_type: str | None = None,
        destination: str | None = None,
        tenant_id: str | None = None,
        created_at: datetime | None = None,
        visible_at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> None:
        """Creates a record.

        :param type: what routes match on, such as ``OrderCreated``; not empty.
        :param payload: a value that BSON can express. Documents and lists are sent as JSON, text as
            UTF-8, bytes as they are, None as an empty body or a tombstone.
        :param key: records of one key are delivered in order; without a key there is no order.
        :param id: the message id, by which consumers recognise a repetition. By default a new UUID.
        :param headers: scalars and bytes by name.
        :param content_type: by default it follows from the payload.
        :param destination: the exchange or topic, in place of that of the route.
        :param tenant_id: sent as the header ``tenant-id``.
        :param created_at: the timestamp of the message, with a time zone. By default now.
        :param visible_at: not delivered before this time (with a time zone), by MongoDB's clock.
        :param dedup_key: unique while the record exists: a second one aborts its transaction.
        """
        self.id: RecordId = uuid4() if id is None else id
        self.key = key
        self.type = type
        self.payload = payload
        self.content_type = content_type
        self.headers = headers
        self.destination = destination
        self.tenant_id = tenant_id
        self.created_at = datetime.now(timezone.utc) if created_at is None else created_at
        self.visible_at = visible_at
        self.dedup_key = dedup_key

    def __repr__(self) -> str:
        # Not the payload and the headers: a repr ends up in logs.
        return f"Record(type={self.type!r}, key={self.key!r}, id={self.id!r})"
