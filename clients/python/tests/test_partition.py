"""The hash of keys. More vectors are in the conformance cases."""

from __future__ import annotations

import pytest

from postrider_outbox import PARTITIONS, partition_of


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        # docs/producers.md#partition
        ("", 0),
        ("order-123", 189),
        ("user-456", 22),
        ("customer-123", 37),
        ("größe-€", 3),
        ("payment:1", 227),
    ],
)
def test_partition_is_the_published_one(key: str, partition: int) -> None:
    assert partition_of(key) == partition


def test_partitions_are_all_used_and_in_range() -> None:
    assert {partition_of(f"key-{n}") for n in range(5000)} == set(range(PARTITIONS))


def test_partition_is_refused_for_a_lone_surrogate() -> None:
    with pytest.raises(UnicodeEncodeError):
        partition_of("a\ud800")
