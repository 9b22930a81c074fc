"""Each row of the threat model in SECURITY.md names tests of this repository that show it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_NAMED = re.compile(r"`([^`]+)`")


def rows() -> dict[str, list[str]]:
    """By attacker: what the last column names."""
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("| shown by |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {row[0].strip("| "): _NAMED.findall(row[-1]) for row in cells}


def names_of_tests(path: Path) -> set[str]:
    found = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    names = set()
    for file in found:
        tree = ast.walk(ast.parse(file.read_text()))
        functions = (node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        names |= {name for name in functions if name.startswith("test_")}
    return names


def test_the_table_has_all_attackers() -> None:
    assert len(rows()) >= 11


@pytest.mark.parametrize("attacker", rows())
def test_a_row_names_tests_that_exist(attacker: str) -> None:
    named = rows()[attacker]
    files = [name for name in named if name.startswith("tests/")]
    assert files, "a test that runs with the others, beside those that need RocketMQ or Kubernetes"
    for name in files:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        found = names_of_tests(ROOT / path)
        assert test in found if test else found, name


@pytest.mark.parametrize("attacker", rows())
def test_a_row_names_targets_and_attacks_that_exist(attacker: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    attacks = (ROOT / "e2e" / "attack.py").read_text()
    for name in rows()[attacker]:
        if not name.startswith("make "):
            continue
        _, target, *arguments = name.split()
        assert re.search(rf"^{re.escape(target)}\b[^=\n]*:", makefile, re.MULTILINE), name
        for argument in arguments:
            key, _, value = argument.partition("=")
            assert key != "ONLY" or all(f'"{each}": ' in attacks for each in value.split(",")), name
