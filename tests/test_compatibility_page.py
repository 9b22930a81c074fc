"""docs/compatibility.md names a test or a note for each mechanism; they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_what_the_table_of_mechanisms_names_exists() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    table = page.partition("## Mechanisms\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 60
    for mechanism, state, where in rows:
        assert state and where, mechanism
        for name in re.findall(r"tests/[\w/]+\.py", where):
            assert (ROOT / name).is_file(), f"{mechanism}: {name}"
        for name in re.findall(r"golden store `(\w+)`", where):
            assert (ROOT / "tests" / "golden" / name).is_dir(), f"{mechanism}: {name}"
