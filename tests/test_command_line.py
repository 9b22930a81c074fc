"""Every installed program and every command of it: `--help`, `--version`, and a wrong option."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.node.cli import _parser as parser_of_tally
from tallystick.node.commands.kubectl_tally import _parser as parser_of_kubectl
from tallystick.spark.cluster.main import _parser as parser_of_cluster
from tallystick.spark.jobs.cli import _parser as parser_of_jobs

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROGRAMS: dict[str, str] = {name: entry for name, entry in PROJECT["scripts"].items() if not name.endswith(".py")}
"""Without the second name of tally-job, for spark-submit."""
PARSERS = {
    "tally": parser_of_tally,
    "kubectl-tally": parser_of_kubectl,
    "tally-job": parser_of_jobs,
    "tally-spark": parser_of_cluster,
}


def line(program: str, *arguments: str) -> list[str]:
    """Returns the command line of a program. Its entry point is read from pyproject.toml: no installation is older."""
    module, _, name = PROGRAMS[program].partition(":")
    return [sys.executable, "-c", f"import sys; from {module} import {name}; sys.exit({name}())", *arguments]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line(program, *arguments), capture_output=True, text=True, timeout=120)


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS)
def test_help_says_what_the_program_does(program: str) -> None:
    shown = run(program, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    first = shown.stdout.splitlines()[0]
    assert re.fullmatch(r"[A-Z][a-z]+s .*\.", first), first
    assert re.search(rf"(?mi)^usage: {program} ", shown.stdout)
    assert "\x1b" not in shown.stdout


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_reader_may_close_the_output(program: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(writer, "wb") as closed:
        shown = subprocess.run(
            line(program, "--help"), stdout=closed, stderr=subprocess.PIPE, timeout=120, env=buffered
        )
    assert (shown.returncode, shown.stderr) == (0, b"")


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS)
def test_version_is_one_line(program: str) -> None:
    shown = run(program, "--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"tallystick {PROJECT['version']}\n", "")


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrong_option_is_one_line_that_names_it(program: str) -> None:
    shown = run(program, "--colour=red")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == f"{program}: unrecognized arguments: --colour=red (see {program} --help)\n"


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all commands below a parser, such as ("topic", "list")."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield (*path, name)
                yield from commands(command, (*path, name))


COMMANDS = [(program, path) for program, parser in PARSERS.items() for path in commands(parser())]


def called(program: str, *arguments: str) -> int:
    """Calls the entry point in this process. Returns the exit status."""
    module, _, name = PROGRAMS[program].partition(":")
    main: Any = getattr(importlib.import_module(module), name)
    try:
        return int(main(list(arguments)))
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("program", "path"), COMMANDS, ids=lambda each: each if isinstance(each, str) else "-".join(each)
)
def test_every_command_has_help_and_names_a_wrong_option(
    program: str, path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(program, *path, "--help") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert re.match(r"[A-Z].*?\.\n", shown.out, re.DOTALL)
    assert f"\n\nusage: {program} {' '.join(path)} " in shown.out
    assert called(program, *path, "--colour") == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith(program) and ": unrecognized arguments: --colour (see " in shown.err


def test_the_programs_without_a_parser_are_known() -> None:
    assert PROGRAMS.keys() - PARSERS.keys() == {"tally-operator"}, "another one needs a test of its commands"


def test_the_help_of_the_operator_lists_its_variables(capsys: pytest.CaptureFixture[str]) -> None:
    source = ast.parse((ROOT / "operator" / "core" / "settings.py").read_text())
    names = {node.value for node in ast.walk(source) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    read = {name for name in names if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", name)}
    assert called("tally-operator", "-h") == 0
    listed = re.findall(r"(?m)^  ([A-Z]+(?:_[A-Z]+)+)  ", capsys.readouterr().out)
    assert sorted(listed) == sorted(read)


@pytest.mark.process
def test_the_operator_names_a_package_that_is_missing() -> None:
    module, _, name = PROGRAMS["tally-operator"].partition(":")
    code = f"import sys; sys.modules['cronsim'] = None; from {module} import {name}; sys.exit({name}(['--help']))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == "tally-operator: cronsim is not installed: run pip install 'tallystick[operator]'\n"


def test_an_abbreviated_option_and_a_value_are_not_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("tally", "produce", "--coun", "3") == 2
    assert "the following arguments are required: topic" in capsys.readouterr().err
    assert called("tally", "produce", "--count", "-1") == 2
    assert "-1" in capsys.readouterr().err
