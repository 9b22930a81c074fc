"""The curl examples of docs/rest.md run against a real node."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tally_process import TallyProcess

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "rest.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    with TallyProcess(tmp_path_factory.mktemp("node")) as node:
        yield node


def test_the_examples_run(node: TallyProcess) -> None:
    """All of them in the order of the page: later ones need the messages of the first ones."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    script = "set -eu\n" + "\n".join(BLOCKS).replace("curl -s ", "curl -sS --fail-with-body ").replace(
        "curl -sN ", "curl -sSN --fail-with-body "
    )
    refused = [line for line in script.splitlines() if "NoSuchTopic" in line or "limit=0" in line]
    assert len(refused) == 2
    for line in refused:
        script = script.replace(line, f"{line} && exit 9 || test $? = 22; echo")
    shown = subprocess.run(
        ["sh", "-c", script],
        env={"API": f"http://{node.places['http']}/api/v1", "PATH": "/usr/bin:/bin:/usr/local/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for part in (
        '"state":"stored"',
        "event: message",
        '"state":"done"',
        '"state":"planned"',
        "event: figures",
        "urn:tallystick:problem:not-found",
        "urn:tallystick:problem:invalid-request",
        '"after":0',
    ):
        assert part in shown.stdout, part
    assert shown.stdout.count('"state":"stored"') == 3
    assert node.end() == 0, "no stream and no consumer holds the process up"
