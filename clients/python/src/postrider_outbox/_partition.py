"""The hash of keys to partitions, the same in every producer."""

from __future__ import annotations

from ._errors import RecordError

#: The number of partitions of an outbox.
PARTITIONS = 256

_MASK = 0xFFFFFFFF


def partition_of(key: str) -> int:
    """Returns the partition of a key, 0 to 255.

    It is ``(murmur3_x86_32(utf8(key), seed 0) & 0x7fffffff) % 256``.

    :raises RecordError: the key has a lone surrogate, which UTF-8 cannot express.
    """
    try:
        data = key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError("key", f"has a lone surrogate at character {error.start}") from None
    return (_murmur3_x86_32(data) & 0x7FFFFFFF) % PARTITIONS


def _murmur3_x86_32(data: bytes) -> int:
    whole = len(data) & ~3
    state = 0
    for start in range(0, whole, 4):
        state ^= _scramble(int.from_bytes(data[start : start + 4], "little"))
        state = ((state << 13) | (state >> 19)) & _MASK
        state = (state * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        state ^= _scramble(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def _scramble(block: int) -> int:
    block = (block * 0xCC9E2D51) & _MASK
    block = ((block << 15) | (block >> 17)) & _MASK
    return (block * 0x1B873593) & _MASK
