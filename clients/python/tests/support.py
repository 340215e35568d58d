"""The environment of the tests, and what several of them need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

T = TypeVar("T")

#: How long a condition may take on a busy machine.
TIMEOUT = 60.0


def variable(name: str) -> str:
    """The value of an environment variable; an error that names it if it is missing."""
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set; run clients/python/test.sh, which sets it")
    return value


def uri_of(database: str) -> str:
    """The URI of the tests' MongoDB with a database in it."""
    parts = urlsplit(variable("POSTRIDER_TEST_MONGODB_URI"))
    return urlunsplit(parts._replace(path=f"/{database}"))


def wait_until(what: str, condition: Callable[[], T], timeout: float = TIMEOUT) -> T:
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain until {what}; last seen: {value!r}")
        time.sleep(0.02)
