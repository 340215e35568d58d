"""The hash of keys. The vectors are in the conformance cases."""

from __future__ import annotations

from postrider_outbox import PARTITIONS, partition_of


def test_partitions_are_all_used_and_in_range() -> None:
    assert {partition_of(f"key-{n}") for n in range(5000)} == set(range(PARTITIONS))
