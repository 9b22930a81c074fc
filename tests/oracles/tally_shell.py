"""The command `tally` in the process of the tests."""

from __future__ import annotations

import re

import pytest

from tallystick.node.cli import main


class Shell:
    """Runs commands in this process and keeps what they printed. `err`: the standard error of the last one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Runs a command, whose exit status must be `code`. Returns its standard output."""
        found = main(arguments)
        out, self.err = self._capsys.readouterr()
        assert found == code, (out, self.err)
        assert "Traceback" not in self.err
        return out


def topic_of(request: pytest.FixtureRequest) -> str:
    """Returns a topic that only this test uses."""
    return re.sub("[^a-zA-Z0-9_-]", "_", request.node.name)
