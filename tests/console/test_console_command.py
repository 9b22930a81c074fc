"""`tally console`, and nodes with access control, as real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from console_lab import NODE, PASSWORD, TOKEN, acl_file
from tally_process import TallyProcess, command, environment, tally

pytestmark = pytest.mark.process


def ask(url: str, body: Any = None, method: str = "GET", **headers: str) -> tuple[int, Any, Any]:
    """Status, JSON and headers of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"null"), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers


@contextmanager
def console(folder: Path, *arguments: str) -> Iterator[str]:
    """The URL of the interface of `tally console`, which ends in order."""
    with (
        (folder / "console.txt").open("w") as log,
        subprocess.Popen(
            command("console", "--port", "0", *arguments),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert words[:1] == ["console"], (folder / "console.txt").read_text()
            yield words[1] + "api/v1"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_console_of_another_process(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as node:
        assert node.process.stdout is not None
        assert node.process.stdout.readline() == f"console http://{node.places['http']}/\n"
        with console(tmp_path, "--nameserver", node.nameserver) as url:
            status, found, _ = ask(f"{url}/clusters")
            assert status == 200 and found[0]["brokers"][0]["address"] == node.places["broker"]
            status, found, _ = ask(f"{url}/topics/Orders/messages", {"text": "x"}, "POST")
            assert status == 201 and found["results"][0]["state"] == "stored"
            assert node.end() == 0
            status, found, _ = ask(f"{url}/clusters")
            assert (status, found["type"]) == (502, "urn:tallystick:problem:no-connection")


@pytest.mark.parametrize("arguments", [("--host", "0.0.0.0"), ("--credentials", "FILE")])
def test_a_console_that_others_could_use_needs_a_token(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "FILE").write_text("accessKey: a-name\nsecretKey: a-secret\n")
    shown = tally("console", "--port", "0", *arguments, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "") and "--token-file: is required" in shown.stderr


def test_users_of_a_node_with_access_control(tmp_path: Path) -> None:
    credentials, tokens = tmp_path / "tools.yml", tmp_path / "tokens"
    credentials.write_text(f"accessKey: {NODE[0]}\nsecretKey: {NODE[1]}\n")
    tokens.write_text(TOKEN + "\n")
    acl = ("aclEnable=true", f"aclFile={acl_file(tmp_path)}", f"aclCredentialsFile={credentials}")
    options = [part for each in acl for part in ("--set", each)]
    with TallyProcess(tmp_path, *options) as node:
        url = f"http://{node.places['http']}/api/v1"
        assert ask(f"{url}/clusters")[0] == 401, "also on loopback: the node's account is not for all users"
        status, me, headers = ask(f"{url}/session", {"user": "operator-1", "password": PASSWORD}, "POST")
        assert (status, me["role"]) == (201, "operator")
        cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
        assert ask(f"{url}/clusters", **cookie)[1][0]["brokers"][0]["reachable"]
        assert ask(f"{url}/topics/Orders/messages", {"text": "x"}, "POST", **cookie)[0] == 201
        assert ask(f"{url}/topics/Orders", {"perm": 4}, "PUT", **cookie)[0] == 403
        named = ("--nameserver", node.nameserver, "--credentials", str(credentials), "--token-file", str(tokens))
        with console(tmp_path, *named) as other:
            assert ask(f"{other}/clusters")[0] == 401
            found = ask(f"{other}/clusters", Authorization=f"Bearer {TOKEN}")
            assert found[0] == 200 and found[1][0]["brokers"][0]["reachable"]
        assert PASSWORD not in node.log.read_text()
