"""Finds values that BSON cannot express, or would express as something else, and says where."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import bson
from bson import Binary, Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from ._errors import RecordError

#: The deepest nesting of documents that MongoDB stores.
MAX_DEPTH = 100

_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1

#: What a broker can carry as a header.
_HEADER_TYPES = (
    *(str, int, float, bytes, datetime, DatetimeMS, UUID, ObjectId, Decimal128),
    type(None),
)

# Values of exactly these types need no look.
_PLAIN_TYPES = frozenset((bool, float, type(None), bytes, UUID, ObjectId, Decimal128, Binary))


def check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise RecordError(field, f"must be a str, not {kind_of(value)}")
    if not value.isascii():
        _check_unicode(field, value)


def check_date(field: str, value: object) -> None:
    if isinstance(value, DatetimeMS):
        return
    if not isinstance(value, datetime):
        raise RecordError(field, f"must be a datetime, not {kind_of(value)}")
    # MongoDB stores UTC, and the driver would take a local time for it.
    if value.utcoffset() is None:
        raise RecordError(
            field,
            "is a datetime without a time zone; give it one, as in datetime.now(timezone.utc)",
        )


def check_int(field: str, value: int) -> None:
    if not _MIN_INT64 <= value <= _MAX_INT64:
        raise RecordError(field, "is an int beyond 64 bits; send it as a str or a Decimal128")


def check_id(value: object) -> None:
    if isinstance(value, Binary):
        if value.subtype != bson.binary.UUID_SUBTYPE or len(value) != 16:
            raise RecordError(
                "id", f"is a Binary of subtype {value.subtype}; give it as a uuid.UUID"
            )
    elif isinstance(value, str):
        check_text("id", value)
        if not value:
            raise RecordError("id", "must not be empty")
    elif isinstance(value, int) and not isinstance(value, bool):
        check_int("id", value)
    elif not isinstance(value, (UUID, ObjectId)):
        raise RecordError(
            "id", f"must be a UUID, an ObjectId, a str or an int, not {kind_of(value)}"
        )


def check_headers(value: object, options: CodecOptions[Any]) -> None:
    if not isinstance(value, Mapping):
        raise RecordError("headers", f"must be a mapping, not {kind_of(value)}")
    for name, header in value.items():
        field = _check_name("headers", name)
        if not isinstance(header, _HEADER_TYPES):
            raise RecordError(field, f"must be a scalar or bytes, not {kind_of(header)}")
        check_value(field, header, options)


def check_value(field: str, value: Any, options: CodecOptions[Any]) -> None:
    """Checks a value and what is in it.

    Raises RecordError with the path of the first value that cannot be stored as it is.
    """
    if not _is_plain(value, 1):
        _check_thoroughly(field, value, options, 1)


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value certainly can be stored. What is rarer is left to the thorough check.

    Most records pass here, in a fifth of the time, since no path is composed.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    if kind is str:
        return bool(value.isascii())
    if kind is int or kind is Int64:
        return bool(_MIN_INT64 <= value <= _MAX_INT64)
    if kind is datetime:
        return value.utcoffset() is not None
    if depth > MAX_DEPTH:
        return False
    if kind is dict:
        for name, inner in value.items():
            if type(name) is not str or not name.isascii() or "\0" in name:
                return False
            if not _is_plain(inner, depth + 1):
                return False
        return True
    if kind is list:
        return all(_is_plain(inner, depth + 1) for inner in value)
    return False


def _check_thoroughly(field: str, value: Any, options: CodecOptions[Any], depth: int) -> None:
    if type(value) in _PLAIN_TYPES:
        return
    if isinstance(value, str):
        check_text(field, value)
    elif isinstance(value, int):
        check_int(field, value)
    elif isinstance(value, datetime):
        check_date(field, value)
    elif isinstance(value, RawBSONDocument):
        pass  # It is BSON already.
    elif isinstance(value, Mapping):
        _check_depth(field, depth)
        for name, inner in value.items():
            _check_thoroughly(_check_name(field, name), inner, options, depth + 1)
    elif isinstance(value, (list, tuple)):
        _check_depth(field, depth)
        for index, inner in enumerate(value):
            _check_thoroughly(f"{field}.{index}", inner, options, depth + 1)
    else:
        _check_by_encoding(field, value, options)


def kind_of(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(
            field, f"has a lone surrogate at character {error.start}, which UTF-8 cannot express"
        ) from None


def _check_name(parent: str, name: object) -> str:
    """Checks the name of a field, and returns its path."""
    if not isinstance(name, str):
        raise RecordError(parent, f"has a name that is not a str but {kind_of(name)}")
    if "\0" in name:
        raise RecordError(parent, "has a name with a NUL character")
    if not name.isascii():
        _check_unicode(parent, name)
    return f"{parent}.{name}"


def _check_depth(field: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        # The path of what refers to itself would fill a screen.
        root = field.split(".", 1)[0]
        raise RecordError(root, f"is nested deeper than {MAX_DEPTH} levels, or refers to itself")


def _check_by_encoding(field: str, value: object, options: CodecOptions[Any]) -> None:
    """Checks a rarer type: BSON's own, or one of the application's type registry."""
    try:
        bson.encode({"": value}, codec_options=options)
    except (BSONError, OverflowError, TypeError, ValueError) as error:
        raise RecordError(
            field,
            f"has the type {type(value).__name__}, which BSON cannot express; convert it, "
            "or add a codec for it to the type registry of the client",
        ) from error
