#!/usr/bin/env python3
"""Runs built test binaries one after another, and begins the next one at the tail of the one before.

    cargo test --no-run --message-format=json-render-diagnostics … | scripts/run_tests.py TAIL

The last test of a binary often runs alone. So the next binary begins when at most TAIL tests of the current one are
unfinished; never more than two binaries run. Each runs as many tests at a time as RUST_TEST_THREADS says: at most TAIL
more than that run in all. With TAIL 0, no two binaries run at the same time.

The output is that of the binaries, in order, and then a list of those that failed. The exit code is then 1.
"""

import json
import os
import re
import subprocess
import sys
import threading

RUNNING = re.compile(r"running (\d+) tests?$")
FINISHED = re.compile(r"test .* \.\.\. (ok|FAILED|ignored)\b")


class Binary:
    """A test binary: what it printed, and how many of its tests are unfinished."""

    def __init__(self, message):
        self.name = os.path.relpath(message["target"]["src_path"])
        self.program = message["executable"]
        self.folder = os.path.dirname(message["manifest_path"])
        self.lines = []
        self.unfinished = None
        self.ended = False

    def run(self, environment, changed):
        """Runs it to its end, and wakes the main thread at each line."""
        with subprocess.Popen(
            [self.program],
            cwd=self.folder,
            env=dict(environment, CARGO_MANIFEST_DIR=self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout:
                with changed:
                    self.lines.append(line)
                    if found := RUNNING.match(line):
                        self.unfinished = int(found[1])
                    elif self.unfinished and FINISHED.match(line):
                        self.unfinished -= 1
                    changed.notify()
        with changed:
            self.code = process.returncode
            self.ended = True
            changed.notify()

    def is_at_its_tail(self, tail):
        return self.ended or (self.unfinished is not None and self.unfinished <= tail)


def built(messages):
    """The test binaries that cargo names in its messages."""
    for line in messages:
        if line.startswith("{"):
            message = json.loads(line)
            if message.get("executable") and message["profile"]["test"]:
                yield Binary(message)


def environment_of_tests():
    """As cargo sets it: the test of a procedural macro is linked to the compiler's libraries."""
    folder = subprocess.check_output(["rustc", "--print", "target-libdir"], text=True).strip()
    paths = [folder, os.environ.get("LD_LIBRARY_PATH")]
    return dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, paths)))


def main():
    tail = int(sys.argv[1])
    environment = environment_of_tests()
    waiting = list(built(sys.stdin))
    if not waiting:
        sys.exit("error: cargo named no test binary")
    waiting.sort(key=lambda binary: (binary.folder, binary.name))
    running, failed = [], []
    changed = threading.Condition()
    with changed:
        while waiting or running:
            if waiting and (not running or len(running) == 1 and running[0].is_at_its_tail(tail)):
                binary = waiting.pop(0)
                running.append(binary)
                binary.lines.append(f"\n     Running {binary.name} ({os.path.relpath(binary.program)})\n")
                threading.Thread(target=binary.run, args=[environment, changed], daemon=True).start()
            first = running[0]
            sys.stdout.writelines(first.lines)
            sys.stdout.flush()
            first.lines.clear()
            if first.ended:
                running.pop(0)
                if first.code != 0:
                    failed.append(first)
            else:
                changed.wait()
    if failed:
        print(f"\nerror: {len(failed)} of the test binaries failed:")
        for binary in failed:
            print(f"    {binary.name}, exit code {binary.code}")
        sys.exit(1)


main()
