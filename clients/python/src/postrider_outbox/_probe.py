"""What a probe inserts, and what it concludes from the answer."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from bson import Timestamp
from pymongo.errors import OperationFailure

from ._document import NO_SEQ
from ._errors import ProbeError
from ._values import kind_of

# IllegalOperation: "Transaction numbers are only allowed on a replica set member or mongos".
_ILLEGAL_OPERATION = 20


def document() -> dict[str, Any]:
    """A record as a producer writes it."""
    return {
        "_id": uuid4(),
        "type": "PostriderProbe",
        "payload": None,
        "status": "pending",
        "seq": NO_SEQ,
    }


def check_failure(error: OperationFailure) -> None:
    """Raises ProbeError where the deployment has no transactions."""
    if error.code == _ILLEGAL_OPERATION:
        raise ProbeError(
            "probe: MongoDB has no transactions here, since it is not a replica set; "
            "make it one (a single member suffices: docs/quickstart.md)"
        ) from error


def check_stored(stored: dict[str, Any] | None) -> None:
    """Raises ProbeError where MongoDB has not filled the zero timestamp in."""
    if stored is None:
        raise ProbeError(
            "probe: the transaction does not see its own insertion; connect to a MongoDB replica "
            "set, without a proxy or a compatible service between"
        )
    if "seq" not in stored:
        found = "is absent"
    elif not isinstance(stored["seq"], Timestamp):
        found = f"came back as {kind_of(stored['seq'])}"
    elif stored["seq"] == NO_SEQ:
        found = "is still zero"
    else:
        return
    raise ProbeError(
        f"probe: seq {found}, where MongoDB puts its cluster time in place of Timestamp(0, 0); "
        "records would have no order: connect to MongoDB itself, without the driver, proxy or "
        "compatible service that changes the timestamp or does not fill it in"
    )
