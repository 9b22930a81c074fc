"""The Compose file of docs/deployment.md with a real Docker Engine: a group of three, its leader killed, all restarted.

    python e2e/compose_lab.py [--image tallystick-node:0.1.0]

Needs `docker` and `docker compose` (or `docker-compose`), and the image (`make images TARGETS=node`). Each message that
was acknowledged must be consumed at the end. Exit status: 0 as expected, 1 not, 2 the lab cannot run.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lab.places import ROOT, TALLY, work_folder
from lab.processes import ProcessError, end_on_signals

_FILE = ROOT / "docs" / "examples" / "deploy" / "compose.yaml"
_NAMESERVER = "127.0.0.1:9876"
_MEMBERS = ("n0", "n1", "n2")
_TOPIC, _MESSAGES = "compose", 20
_STEP_S, _WAIT_S = 180.0, 90.0


class Compose:
    """The project of one run. `folder`: its name is the project's name."""

    def __init__(self, command: Sequence[str], folder: Path, image: str) -> None:
        self._command = [*command, "--project-name", folder.name.lower(), "--file", str(_FILE)]
        self._image = image

    def __call__(self, *arguments: str, bootstrap: bool = False) -> str:
        """Runs a command of Compose and returns its output. ProcessError: it failed."""
        environment = os.environ | {"IMAGE": self._image, "BOOTSTRAP": "true" if bootstrap else "false"}
        return _run([*self._command, *arguments], environment)

    def health(self, service: str) -> str:
        """The state of its container in words of Docker, such as healthy."""
        return _run(["docker", "inspect", "--format", "{{.State.Health.Status}}", self._container(service)]).strip()

    def kill(self, service: str) -> None:
        """Ends the processes of a container with SIGKILL."""
        _run(["docker", "kill", self._container(service)])

    def _container(self, service: str) -> str:
        return self("ps", "-q", service).strip()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="tallystick-node:0.1.0", help="the image of the node")
    options = parser.parse_args(arguments)
    command = _compose_command()
    if command is None:
        print("cannot run: neither `docker compose` nor `docker-compose` is installed", file=sys.stderr)
        return 2
    end_on_signals()
    with work_folder("compose-") as work:
        compose = Compose(command, work.path, options.image)
        try:
            work.status = _run_lab(compose)
        except ProcessError as error:
            print(error, file=sys.stderr)
            (work.path / "containers.log").write_text(compose("logs", "--no-color"))
        finally:
            compose("down", "--volumes", "--timeout", "60")
    return work.status


def _run_lab(compose: Compose) -> int:
    compose("up", "--detach", bootstrap=True)
    _until("the group has a leader", lambda: _TOPIC in _tally("topic", "create", _TOPIC))
    _until("all members are healthy", lambda: all(compose.health(each) == "healthy" for each in _MEMBERS))
    sent = _send("before")
    leader = _leader(compose)
    print(f"{leader} leads and is killed")
    compose.kill(leader)
    _until("another member leads", lambda: _leader(compose) != leader)
    sent += _send("after")
    compose("down", "--timeout", "60")
    compose("up", "--detach")
    _until("the group has a leader again", lambda: bool(_leader(compose)))
    received = _tally("consume", _TOPIC, "--count", str(len(sent))).splitlines()
    missing = set(sent) - set(received)
    print(f"{len(sent)} messages acknowledged, {len(missing)} missing after a kill and a restart of all containers")
    return 1 if missing else 0


def _send(prefix: str) -> list[str]:
    """Sends messages one by one until each is acknowledged; returns their bodies."""
    bodies = [f"{prefix} {number}" for number in range(_MESSAGES)]
    for body in bodies:
        _wait(partial(_stored, body), f"{body!r} is acknowledged")
    print(f"ok: {len(bodies)} messages are acknowledged", flush=True)
    return bodies


def _stored(body: str) -> bool:
    return "1 message stored" in _tally("produce", _TOPIC, body)


def _leader(compose: Compose) -> str:
    """The service of the member that leads. ProcessError: no member says so."""
    for service in _MEMBERS:
        code = "import json, urllib.request as r; print(json.load(r.urlopen('http://127.0.0.1:8080/node'))['role'])"
        try:
            if compose("exec", "-T", service, "python3", "-c", code).strip() == "leader":
                return service
        except ProcessError:
            continue  # it was killed
    raise ProcessError("no member leads")


def _tally(*arguments: str) -> str:
    return _run([str(TALLY), *arguments, "--nameserver", _NAMESERVER])


def _until(what: str, condition: Callable[[], object]) -> None:
    _wait(condition, what)
    print(f"ok: {what}", flush=True)


def _wait(condition: Callable[[], object], what: str) -> None:
    """Waits until a condition holds; one that raises ProcessError does not hold yet. ProcessError: not in time."""
    end, problem = time.monotonic() + _WAIT_S, "it is not so"
    while time.monotonic() < end:
        try:
            if condition():
                return
        except ProcessError as error:
            problem = str(error)
        time.sleep(0.2)
    raise ProcessError(f"not within {_WAIT_S:g} s: {what}: {problem}")


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Returns standard output. ProcessError with standard error: it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_STEP_S, env=environment)
    if done.returncode:
        raise ProcessError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _compose_command() -> list[str] | None:
    if shutil.which("docker") is None:
        return None
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
