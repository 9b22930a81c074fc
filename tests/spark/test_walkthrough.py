"""docs/spark-walkthrough.md: its cells run, and print what the page says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import yaml

pytestmark = pytest.mark.spark

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "spark-walkthrough.md"
PROGRAM = DOCS / "examples" / "walkthrough.py"
EXAMPLES = DOCS.parent / "crds" / "examples" / "storejobs.yaml"

LITTLE = """# A page

**In [1]:**

```console
$ one
old
$ two
```

Words between.

**In [2]:**

```python
1 + 1
```

**Out [2]:**

```text
old
```

```console
$ kubectl get sj
not a cell
```
"""


@pytest.fixture(scope="module")
def walkthrough() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walkthrough", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_cells_print() -> None:
    pytest.importorskip("pyspark.sql", reason="needs the group `spark`")
    # An editable install has no module that Spark finds; a wheel has (make test-spark-versions).
    found = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    ended = subprocess.run(
        [sys.executable, PROGRAM, "--check"], capture_output=True, text=True, timeout=1200, env=found
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}"


def test_cells_are_numbered_in_their_order(walkthrough: ModuleType) -> None:
    text = PAGE.read_text()
    cells = [int(match["number"]) for match in walkthrough._CELL.finditer(text)]
    assert cells == list(range(1, text.count("**In [") + 1))


def test_what_cells_print_replaces_what_they_printed(walkthrough: ModuleType) -> None:
    told: list[str] = []

    def console(command: str) -> str:
        told.append(command)
        return f"{command}!\n"

    now = walkthrough.filled(LITTLE, console, walkthrough.python_cells())
    assert told == ["one", "two"], "below no **In**, nothing is run"
    assert now == LITTLE.replace("old\n$", "one!\n$").replace("$ two\n", "$ two\ntwo!\n").replace("old", "2")
    silent = walkthrough.filled(now, console, lambda source: "")
    assert "**Out" not in silent and "Words between." in silent and "not a cell" in silent


def test_only_what_changes_with_each_run_may_differ(walkthrough: ModuleType) -> None:
    page = "60 stored in 0.01 s (9,347 a second)\n|2026-11-22 06:10:49.043|\n+---+\n127.0.0.1:9876 orders 0/55\n"
    later = "60 stored in 2.40 s (25 a second)\n|2027-01-02 16:00:00.1   |\n+-----+\n127.0.0.1:4711 orders  0/55\n"
    assert walkthrough.difference(page, later) == []
    for wrong in (later.replace("0/55", "0/56"), later.replace("60 stored", "59 stored"), later + "more\n"):
        assert walkthrough.difference(page, wrong) != []


def test_a_shell_keeps_the_status_and_ends_what_it_started(walkthrough: ModuleType, tmp_path: Path) -> None:
    ready = "tally is ready in 0 s: name server here:1, broker here:2, http here:3"
    words = f'echo "{ready}" && echo "console http://here:3/" && exec sleep 600'
    with walkthrough.Shell({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as shell:
        assert shell.run("printf half; false") == "half"
        assert shell.run("echo $?") == "1\n"
        assert "127.0.0.1:9876, broker" in shell.run(f"sh -c '{words}' &")
        assert shell.run("echo $TALLY_NAMESERVER") == "127.0.0.1:9876\n" and shell.as_here("127.0.0.1:9876") == "here:1"
        (child,) = shell.run("jobs -p").split()
    assert not Path(f"/proc/{child}").exists()


def test_the_cells_use_no_option_that_a_beginner_has_to_know(walkthrough: ModuleType) -> None:
    """The words around the cells explain those that are left."""
    cells = [(match["kind"], match["source"]) for match in walkthrough._CELL.finditer(PAGE.read_text())]
    commands = "".join(source for kind, source in cells if kind == "console")
    lines = [line for line in commands.splitlines() if line.startswith("$ ")]
    assert {option for line in lines for option in re.findall(r" (--?[a-z]\S*)", line)} == {
        *("--dir", "--queues", "--tag", "--key", "--path", "--out"),
        "-r",  # of cp
    }
    programs = "".join(source for kind, source in cells if kind == "python")
    assert set(re.findall(r'\.option\("(\w+)"', programs)) == {"checkpointLocation", "columns", "view"}
    assert re.findall(r"\.config\(|register\(|\.master\(", programs) == []


def test_the_store_job_is_one_of_the_examples() -> None:
    shown = PAGE.read_text().split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(shown) in list(yaml.safe_load_all(EXAMPLES.read_text()))


def test_the_picture_needs_nothing_from_elsewhere() -> None:
    text = (DOCS / "spark-placement.svg").read_text()
    ElementTree.fromstring(text)
    assert text.count("http://") == 1, "the name space alone"
    assert "prefers-color-scheme: dark" in text and "@import" not in text and "data:" not in text
