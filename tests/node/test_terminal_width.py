"""Lines of commands fit the terminal, and what is to be copied stays in one piece."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tallystick.node.commands.store_repair import _ended, _found, _left, _planned
from tallystick.node.commands.terminal import bad, uncoloured, wrapped
from tallystick.store.findings import Finding, FindingKind, Report
from tallystick.store.verify.log_loss import LogLoss, QueueLoss
from tallystick.store.verify.repair_plan import RepairPlan


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    return monkeypatch


def widths(text: str) -> list[int]:
    return [len(uncoloured(line)) for line in text.split("\n")]


WORDS = " ".join(f"word{n}" for n in range(60))


@pytest.mark.parametrize("width", [20, 40, 100, 200])
def test_the_terminal_says_how_wide_it_is(columns: pytest.MonkeyPatch, width: int) -> None:
    columns.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((width, 24)))
    text = wrapped(WORDS)
    assert text.replace("\n", " ") == WORDS
    assert max(widths(text)) <= width and min(widths(text)[:-1]) > width - 8


def test_without_a_terminal_it_is_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert 70 < max(widths(wrapped(WORDS))) <= 80


def test_a_line_continues_below_its_beginning() -> None:
    text = wrapped(f"  {WORDS}\nshort", hanging=4).split("\n")
    assert text[-1] == "short" and text[0].startswith("  word0")
    assert all(line.startswith("      word") for line in text[1:-1]) and len(text) > 3


def test_colours_take_no_room(columns: pytest.MonkeyPatch) -> None:
    columns.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((14, 24)))
    assert wrapped(f"{bad('damage')}  123456") == f"{bad('damage')}  123456"


def test_a_long_word_is_not_broken() -> None:
    path = "/" + "x" * 100
    assert wrapped(f"in {path} there") == f"in\n{path}\nthere"


def plan_of(root: Path, *, member: bool = False) -> RepairPlan:
    """A plan in which each line that the command has is long."""
    report = Report(str(root), clean=True, layout="dledger-n0" if member else "commitlog")
    report.add_damage(root / "commitlog" / ("0" * 20), 5, WORDS)
    report.add_note(root / "checkpoint", 0, WORDS)
    plan = RepairPlan(report, member=member, interrupted=True, index_from="2026" * 4)
    plan.queues = {(f"Topic{n}", n): WORDS for n in range(30)}
    plan.log = list(report.damage)
    plan.tables = {root / "config" / "topics.json": None}
    loss = LogLoss(5, 9999, "0" * 20, 5, WORDS, 7, files=["0" * 20])
    loss.queues = {("a topic with a name of quite some length, as they have it", 3): QueueLoss(1, 10**12, 10**12)}
    plan.losses = [] if member else [loss]
    return plan


@pytest.mark.parametrize("member", [False, True])
def test_what_a_repair_prints_fits_80_columns(tmp_path: Path, member: bool) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").touch()
    plan = plan_of(tmp_path, member=member)
    done = [Finding("consumequeue/T/0", 0, WORDS, FindingKind.REBUILT)]
    printed = [_found(plan), _planned(plan, tmp_path), _ended(done, plan, tmp_path), *_left(plan, tmp_path)]
    lines = [line for text in printed for line in text.split("\n")]
    long = [line for line in lines if len(line) > 80]
    assert all(line == f"  tally store repair {tmp_path} --cut 5" for line in long), long
    assert any("fetches" in line for line in lines) is member
