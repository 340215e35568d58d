"""The conformance cases of all client libraries, read for Python (clients/conformance)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bson import json_util
from bson.binary import UUID_SUBTYPE, Binary, UuidRepresentation
from bson.json_util import JSONMode, JSONOptions

from postrider_outbox import Record

FOLDER = Path(__file__).resolve().parents[2] / "conformance"

CASES: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
SCHEMA: dict[str, Any] = json.loads((FOLDER / "record.schema.json").read_text(encoding="utf-8"))

#: The fields of a record whose name is another one in Python.
_NAMES = {
    "contentType": "content_type",
    "tenantId": "tenant_id",
    "createdAt": "created_at",
    "visibleAt": "visible_at",
    "dedupKey": "dedup_key",
}

_OPTIONS = JSONOptions(
    # A binary stays one, whatever its subtype and length.
    json_mode=JSONMode.CANONICAL,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
    tz_aware=True,
)


def section(name: str) -> list[Any]:
    """The cases of a section, as parameters of a test."""
    cases = CASES[name]
    assert cases
    assert len({case["name"] for case in cases}) == len(cases)
    return list(cases)


def values(member: Any) -> Any:
    """A member in canonical extended JSON as BSON's values."""
    return json_util.loads(json.dumps(member), json_options=_OPTIONS)


def record_of(member: dict[str, Any]) -> Record:
    """Makes a record; raises TypeError for a field that a record does not have."""
    if "content_type" in member:
        raise TypeError("content_type is not the name of a field in the cases")
    fields = {_NAMES.get(name, name): value for name, value in values(member).items()}
    id = fields.get("id")
    if isinstance(id, Binary) and id.subtype == UUID_SUBTYPE and len(id) == 16:
        fields["id"] = id.as_uuid()
    return Record(**fields)


def text_of(units: list[int]) -> str:
    """A text of UTF-16 code units; lone surrogates are kept."""
    data = b"".join(unit.to_bytes(2, "little") for unit in units)
    return data.decode("utf-16-le", errors="surrogatepass")
