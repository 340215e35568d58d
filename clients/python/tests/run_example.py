"""Runs an example as its own process, and kills it at a chosen point.

    python run_example.py EXAMPLE [POINT N]

POINT is `effect` (the N-th effect is written, its transaction not committed) or `answer` (the N-th
transaction is committed, its message neither acknowledged nor its offset committed).
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

import confluent_kafka
import pymongo.client_session_shared as client_session
from pika.adapters.blocking_connection import BlockingChannel
from pymongo.synchronous.collection import Collection

#: Before the id of the session whose transaction a kill leaves open.
SESSION = "session:"


class Countdown:
    """Kills this process, without a chance to clean up, when it is called for the N-th time."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_after_effect(countdown: Countdown) -> None:
    for name in ("update_one", "find_one_and_update"):
        original = getattr(Collection, name)

        def wrapped(self: Any, *args: Any, original: Any = original, **options: Any) -> Any:
            result = original(self, *args, **options)
            if self.name in ("received", "states"):
                session = options.get("session")
                if countdown.left == 1 and session is not None:
                    print(SESSION, session.session_id["id"].hex(), flush=True)
                countdown()
            return result

        setattr(Collection, name, wrapped)


def kill_before_answer(countdown: Countdown) -> None:
    original = BlockingChannel.basic_ack

    def basic_ack(self: Any, *args: Any, **options: Any) -> None:
        countdown()
        original(self, *args, **options)

    BlockingChannel.basic_ack = basic_ack  # type: ignore[method-assign]
    TestConsumer.before_commit = countdown


class TestConsumer(confluent_kafka.Consumer):
    before_commit: Any = None

    def __init__(self, config: dict[str, Any]) -> None:
        # With a name, so that Kafka gives its partitions to a restarted one at once.
        super().__init__({**config, "group.instance.id": "one"})

    def commit(self, *args: Any, **options: Any) -> Any:
        if TestConsumer.before_commit is not None:
            TestConsumer.before_commit()
        return super().commit(*args, **options)


def main() -> None:
    example, *kill = sys.argv[1:]
    if kill:
        point = {"effect": kill_after_effect, "answer": kill_before_answer}[kill[0]]
        point(Countdown(int(kill[1])))
    if "TRANSACTION_RETRY_LIMIT" in os.environ:
        limit = int(os.environ["TRANSACTION_RETRY_LIMIT"])
        client_session._WITH_TRANSACTION_RETRY_TIME_LIMIT = limit
    confluent_kafka.Consumer = TestConsumer  # type: ignore[assignment,misc]
    runpy.run_path(example, run_name="__main__")


if __name__ == "__main__":
    main()
