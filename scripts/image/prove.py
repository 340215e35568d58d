"""Proves what docs/docker.md says of the image: runs it by crun as a strict engine would, against the test servers.

    prove.py ROOT INSPECTED WORK    the image's mounted root, `buildah inspect` of it, a folder for what we write

The network is this host's, as in the tests; everything else is the container's own.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from socket import socket
from urllib.parse import quote

from bson import Timestamp
from pymongo import MongoClient

ROOT, WORK = Path(sys.argv[1]).resolve(), Path(sys.argv[3]).resolve()
CONFIG = json.loads(Path(sys.argv[2]).read_text())["Docker"]["config"]
REPOSITORY = Path(__file__).resolve().parents[2]

# The unpacked size was 59 MB when this was written, 24 MB of them distroless. The limit makes growth noticed.
MAX_IMAGE_BYTES = 64_000_000
# Any container engine allows 10 s by default; an idle relay needs a fraction of one.
STOP_SECONDS = 5

NAME = f"image-proof-{os.getpid()}"
# crun refuses a host that has control groups of both versions; this one hides version 1.
ONE_VERSION = ["unshare", "--mount", "sh", "-euc", 'mount -t cgroup2 none /sys/fs/cgroup; exec "$@"', "sh"]
CRUN = [*ONE_VERSION, "crun", "--root", str(WORK / "crun"), "--cgroup-manager=disabled"]


def say(what):
    print(f"{'image':<11} {what}", file=sys.stderr, flush=True)


def prove(right, what):
    if not right:
        sys.exit(f"{'image':<11} error: check failed: {what}")
    say(f"proved: {what}")


def until(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited without success for {what}")
        time.sleep(0.1)
    return found


def free_port():
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bundle(name, arguments, environment=(), secrets=None):
    """A folder as crun requires it: the image's own configuration, and the strictest of what Kubernetes may ask."""
    folder = WORK / name
    folder.mkdir(parents=True)
    user, group = map(int, CONFIG["User"].split(":"))
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
    ]
    if secrets:
        bound = {"destination": "/run/secrets", "type": "bind", "source": str(secrets)}
        mounts.append(bound | {"options": ["bind", "ro", "nosuid", "nodev", "noexec"]})
    process = {
        "user": {"uid": user, "gid": group},
        "args": CONFIG["Entrypoint"] + arguments,
        "env": CONFIG["Env"] + [f"{name}={value}" for name, value in environment],
        "cwd": CONFIG["WorkingDir"],
        "capabilities": {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")},
        "noNewPrivileges": True,
    }
    namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    config = {
        "ociVersion": "1.0.0",
        "process": process,
        "root": {"path": str(ROOT), "readonly": True},
        "mounts": mounts,
        "linux": {"namespaces": namespaces},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return [*CRUN, "run", "--bundle", str(folder), name]


def the_image_says_how_it_is_run():
    user = CONFIG["User"].partition(":")[0]
    prove(user.isdigit() and user != "0", f"its user is a number, and not root's: {user}")
    prove(CONFIG["Entrypoint"] == ["postrider"] and CONFIG["Cmd"] == ["run"], "it starts `postrider run`, by no shell")
    prove(CONFIG.get("StopSignal", "SIGTERM") == "SIGTERM", "it is stopped by SIGTERM")
    authorities = dict(pair.split("=", 1) for pair in CONFIG["Env"])["SSL_CERT_FILE"]
    found = (ROOT / authorities.lstrip("/")).read_text().count("BEGIN CERTIFICATE")
    prove(found > 50, f"OpenSSL finds {found} authorities in {authorities}")


def it_is_small():
    sizes = [path.lstat().st_size for path in ROOT.rglob("*") if path.is_file() and not path.is_symlink()]
    binary = (ROOT / "usr/bin/postrider").stat().st_size
    size = f"{sum(sizes) / 1e6:.1f} MB unpacked, {binary / 1e6:.1f} of them the binary"
    prove(sum(sizes) < MAX_IMAGE_BYTES, f"{size}, below {MAX_IMAGE_BYTES / 1e6:.0f} MB")


def its_label_names_its_version():
    ended = subprocess.run(bundle(f"{NAME}-version", ["--version"]), stdout=subprocess.PIPE, text=True, timeout=60)
    label = CONFIG["Labels"]["org.opencontainers.image.version"]
    prove(ended.returncode == 0 and ended.stdout == f"postrider {label}\n", f"its label has its version: {label}")


def environment_of(port, secrets):
    """By the environment alone, with what is secret in files."""
    secrets.mkdir()
    for name, variable in (("mongodb", "POSTRIDER_TEST_MONGODB_URI"), ("rabbitmq", "POSTRIDER_TEST_AMQP_URI")):
        (secrets / name).write_text(os.environ[variable] + "\n")
    return {
        "POSTRIDER__MONGO__URI_FILE": "/run/secrets/mongodb",
        "POSTRIDER__MONGO__DATABASE": NAME,
        "POSTRIDER__SINKS__QUEUE__KIND": "rabbitmq",
        "POSTRIDER__SINKS__QUEUE__URI_FILE": "/run/secrets/rabbitmq",
        "POSTRIDER__SINKS__QUEUE__ROUTING_KEY": NAME,
        "POSTRIDER__SINKS__QUEUE__DECLARE": f'{{ queues = [{{ name = "{NAME}", type = "classic" }}] }}',
        # As in the image, but for the port, which other processes on this host may use.
        "POSTRIDER__OPS__LISTEN": f"0.0.0.0:{port}",
    }


def it_is_confined(process):
    def fields(of):
        return dict(line.split(":", 1) for line in Path(f"/proc/{of}/status").read_text().splitlines())

    status = fields(process)
    user = CONFIG["User"].partition(":")[0]
    prove(status["Uid"].split() == [user] * 4, f"it runs as user {user}")
    prove(status["NSpid"].split()[-1] == "1", "as process 1 of its own")
    prove(int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0, "without any capability, or a way to one")
    prove(status["NoNewPrivs"].strip() == "1", "and with no new privileges")
    mounts = [line.split() for line in Path(f"/proc/{process}/mountinfo").read_text().splitlines()]
    writable = {at[4] for at in mounts if "rw" in at[5].split(",")}
    prove(writable == {"/proc", "/dev"}, "it can write to no folder: its root is read-only, and there is no volume")


def a_record_goes_through(records):
    record = {"_id": f"{NAME}-1", "key": "k", "type": "Proved", "payload": {"a": 1}, "status": "pending"}
    records.insert_one(record | {"seq": Timestamp(0, 0), "createdAt": datetime.now(timezone.utc)})
    until("the record to be done", lambda: records.count_documents({"status": "done"}) == 1)
    question = json.dumps({"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}).encode()
    messages = json.load(rabbitmq("POST", f"queues/%2F/{quote(NAME)}/get", question))
    arrived = [(message["properties"]["message_id"], message["payload"]) for message in messages]
    prove(arrived == [(f"{NAME}-1", '{"a":1}')], "a record goes from MongoDB to RabbitMQ")


def rabbitmq(method, path, body=None):
    request = urllib.request.Request(f"{os.environ['POSTRIDER_TEST_RABBITMQ_API']}/api/{path}", body, method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    request.add_header("Content-Type", "application/json")
    return urllib.request.urlopen(request, timeout=30)


def its_health_check_works():
    test = CONFIG["Healthcheck"]["Test"]
    asked = lambda: subprocess.run([*CRUN, "exec", NAME, *test[1:]], capture_output=True, text=True, timeout=30)
    healthy = until("health", lambda: (printed := asked()).returncode == 0 and printed)
    prove(test[0] == "CMD" and '"status":"ok"' in healthy.stdout, f"its health check says: {healthy.stdout.strip()}")


def its_metrics_name_the_commit(port):
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    commit = CONFIG["Labels"]["org.opencontainers.image.revision"]
    found = [line for line in page.splitlines() if line.startswith("postrider_build_info{")]
    prove(len(found) == 1 and f'revision="{commit}"' in found[0], f"its metrics name the commit: {commit}")


def process_1():
    state = subprocess.run([*CRUN, "state", NAME], capture_output=True, text=True)
    return json.loads(state.stdout)["pid"] if state.returncode == 0 else None


def it_works_and_stops():
    port = free_port()
    environment = environment_of(port, WORK / "secrets")
    log = WORK / "log"
    database = MongoClient(os.environ["POSTRIDER_TEST_MONGODB_URI"])[NAME]
    container = bundle(NAME, CONFIG["Cmd"], environment.items(), WORK / "secrets")
    running = subprocess.Popen(container, stdout=log.open("w"), stderr=subprocess.STDOUT)
    try:
        its_health_check_works()
        its_metrics_name_the_commit(port)
        it_is_confined(process_1())
        a_record_goes_through(database.outbox_records)
        start = time.monotonic()
        os.kill(process_1(), signal.Signals[CONFIG.get("StopSignal", "SIGTERM")])
        code = running.wait(STOP_SECONDS)
        prove(code == 0, f"a signal to process 1 ends it with {code}, in {time.monotonic() - start:.1f} s")
        prove("everything in flight was settled or released" in log.read_text(), "and it says that nothing was left")
    except BaseException:
        print(f"  its log:\n{log.read_text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        subprocess.run([*CRUN, "delete", "--force", NAME], capture_output=True, timeout=30)
        running.wait(30)
        database.client.drop_database(NAME)
        try:
            rabbitmq("DELETE", f"queues/%2F/{quote(NAME)}")
        except urllib.error.HTTPError:
            pass  # It was not declared.


the_image_says_how_it_is_run()
it_is_small()
its_label_names_its_version()
it_works_and_stops()
