"""Runs Postrider within an application's test, so that the test can assert on what was sent.

>>> @pytest.fixture
... def relay():
...     with Relay("mongodb://127.0.0.1:27017/shop_test?replicaSet=rs0") as relay:
...         yield relay
>>> def test_order_is_reported(relay):
...     place_order("order-7")
...     [message] = relay.wait_for(1, key="order-7")
...     assert message.type == "OrderCreated"

There is no broker: Postrider writes each message to a file.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_POLL_PAUSE = 0.02
_STOP_TIMEOUT = 30.0

# No proxy of the environment: the address is this host's.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_CONFIG = """\
[mongo]
uri = {uri}

[sinks.file]
kind = "file"
path = {messages}

[ops]
listen = "127.0.0.1:0"

[log]
format = "json"
"""


@dataclass(frozen=True)
class Message:
    """A message as Postrider has sent it."""

    id: str
    key: str | None
    type: str
    destination: str
    content_type: str
    headers: dict[str, Any]
    timestamp: str | None
    #: JSON as Python values, text as str, anything else as bytes.
    payload: Any

    @classmethod
    def _of_line(cls, line: bytes) -> Message:
        fields = json.loads(line)
        payload = fields.get("payload")
        if "payloadBase64" in fields:
            payload = base64.b64decode(fields["payloadBase64"])
        return cls(
            id=fields["id"],
            key=fields["key"],
            type=fields["type"],
            destination=fields["destination"],
            content_type=fields["contentType"],
            headers=fields["headers"],
            timestamp=fields["timestamp"],
            payload=payload,
        )


class RelayError(Exception):
    """Postrider cannot be started, or has ended by itself; the message has the end of its log."""


class Relay:
    """A Postrider process that writes the messages of one database to a file.

    A context manager: it starts and is ready when the block begins, and has stopped when it ends.
    """

    def __init__(
        self,
        uri: str,
        *,
        command: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        """Creates a relay that does not run yet.

        :param uri: of MongoDB, with the database in which the records are.
        :param command: what starts Postrider. By default the program that the environment variable
            ``POSTRIDER_BIN`` names, else ``postrider`` on the PATH.
        :param settings: more configuration, such as ``{"outbox.collection_prefix": "shop_"}``.
        :param start_timeout: how many seconds it may take until it is ready.
        """
        self._uri = uri
        self._command = list(command) if command is not None else [_binary()]
        self._settings = dict(settings or {})
        self._start_timeout = start_timeout
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Relay:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts Postrider and waits until it is ready.

        :raises RelayError: it has ended, or was not ready in time.
        """
        if self._process is not None:
            raise RelayError("the relay has been started already")
        self._folder = Path(tempfile.mkdtemp(prefix="postrider-"))
        config = self._folder / "postrider.toml"
        # JSON's strings are TOML's.
        quoted = {"uri": json.dumps(self._uri), "messages": json.dumps(str(self._messages_path()))}
        config.touch(mode=0o600)  # The URI may have a password.
        config.write_text(_CONFIG.format(**quoted), encoding="utf-8")
        command = [*self._command, "run", "--config", str(config)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        # Settings of the developer's own must not change the test.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("POSTRIDER__")}
        with self._log_path().open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops Postrider, after what is in flight was settled. Stopping twice does no harm."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def messages(self, *, key: str | None = None, type: str | None = None) -> list[Message]:
        """Returns what was sent until now, in the order in which it was sent.

        A message that was sent again, under the same id, is in the list once.

        :param key: only messages of this key.
        :param type: only messages of this type.
        """
        first: dict[str, Message] = {}
        for message in self._read():
            if (key is None or message.key == key) and (type is None or message.type == type):
                first.setdefault(message.id, message)
        return list(first.values())

    def wait_for(
        self,
        count: int,
        *,
        key: str | None = None,
        type: str | None = None,
        timeout: float = 10.0,
    ) -> list[Message]:
        """Waits until at least ``count`` messages were sent, and returns them.

        :raises AssertionError: there were fewer when the time was up.
        :raises RelayError: Postrider has ended.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = self.messages(key=key, type=type)
            if len(found) >= count:
                return found
            self._check_running()
            if time.monotonic() > deadline:
                sent = [f"{each.type} {each.key!r}" for each in self.messages()]
                raise AssertionError(
                    f"{len(found)} of {count} messages with key {key!r} and type {type!r} were "
                    f"sent within {timeout} s; all that was sent: {sent}"
                )
            time.sleep(_POLL_PAUSE)

    def _read(self) -> Iterator[Message]:
        try:
            content = self._messages_path().read_bytes()
        except FileNotFoundError:
            return
        # What follows the last line end is not complete yet.
        for line in content.split(b"\n")[:-1]:
            yield Message._of_line(line)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not self._is_ready():
            self._check_running()
            if time.monotonic() > deadline:
                raise RelayError(
                    f"Postrider was not ready within {self._start_timeout} s; the end of its "
                    f"log:\n{self._log_tail()}"
                )
            time.sleep(_POLL_PAUSE)

    def _is_ready(self) -> bool:
        # Port 0 takes a free one, which the log names.
        log = self._log_path().read_text(encoding="utf-8", errors="replace")
        served = re.search(r'"serving /livez[^\n]*"address":"([^"]+)"', log)
        if served is None:
            return False
        try:
            with _OPENER.open(f"http://{served[1]}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _check_running(self) -> None:
        code = self._process.poll() if self._process is not None else None
        if self._process is None or code is not None:
            raise RelayError(
                f"Postrider has ended ({code}); the end of its log:\n{self._log_tail()}"
            )

    def _log_tail(self) -> str:
        if self._folder is None:
            return ""
        log = self._log_path().read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-15:])

    def _messages_path(self) -> Path:
        return self._path("messages.ndjson")

    def _log_path(self) -> Path:
        return self._path("postrider.log")

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise RelayError("the relay does not run; use it in a `with` block")
        return self._folder / name


def _binary() -> str:
    named = os.environ.get("POSTRIDER_BIN")
    if named:
        return named
    found = shutil.which("postrider")
    if found is None:
        raise RelayError(
            "there is no postrider on the PATH; set POSTRIDER_BIN to the program, or pass command="
        )
    return found
