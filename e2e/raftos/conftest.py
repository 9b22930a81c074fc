"""Prints what the histories found, as the tables of the decision note."""

from __future__ import annotations

import pytest
from hosting import evidence


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("evidence")
    for line in evidence.table(("Rule", "Scripted history", "raftos 0.2.6", "ours"), evidence.SCRIPTED):
        terminalreporter.write_line(line)
    terminalreporter.write_line("")
    if evidence.RANDOM:
        for line in evidence.table(evidence.RANDOM[0], evidence.RANDOM[1:]):
            terminalreporter.write_line(line)
