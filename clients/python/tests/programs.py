"""Examples as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from bson.binary import UUID_SUBTYPE, Binary
from pymongo import MongoClient

from .run_example import SESSION
from .support import TIMEOUT

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RUN_EXAMPLE = Path(__file__).with_name("run_example.py")


def command_of(example: str, *kill: str) -> list[str]:
    # -S as in the tests' own Python, whose packages are on PYTHONPATH.
    return [sys.executable, "-S", str(RUN_EXAMPLE), str(EXAMPLES / example), *kill]


class Program:
    """An example that runs until the `with` block ends, and must not end by itself."""

    def __init__(self, example: str, environment: dict[str, str]) -> None:
        self._example = example
        self._environment = environment
        #: What it printed; complete after the block.
        self.output = ""

    def __enter__(self) -> Program:
        self._process = subprocess.Popen(
            command_of(self._example),
            env={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        ended = self._process.poll()
        self._process.send_signal(signal.SIGTERM)
        try:
            self.output = self._process.communicate(timeout=TIMEOUT)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.output = self._process.communicate()[0]
        print(self.output)
        assert ended is None, f"{self._example} has ended: {ended}"


def run_until_killed(example: str, environment: dict[str, str], point: str, calls: int) -> None:
    """Runs an example until it kills itself there.

    MongoDB ends the transaction that it leaves open after transactionLifetimeLimitSeconds, 60 by
    default. Here that is done at once.
    """
    done = subprocess.run(
        command_of(example, point, str(calls)),
        env={**os.environ, **environment},
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == -signal.SIGKILL
    for line in done.stdout.splitlines():
        if line.startswith(SESSION):
            lsid = {"id": Binary(bytes.fromhex(line[len(SESSION) :]), UUID_SUBTYPE)}
            with MongoClient[Any](environment["MONGODB_URI"]) as client:
                client.admin.command({"killSessions": [lsid]})
