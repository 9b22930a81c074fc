"""Runs the cells of docs/spark-walkthrough.md, and writes into the page what they print.

python docs/examples/walkthrough.py            writes the page
python docs/examples/walkthrough.py --check    exit status 1 if the page is not what comes out now, and the difference

A cell stands below a line `**In [n]:**`. One in `console` holds commands (`$ ...`) and what each prints; one in
`python` is followed by `**Out [n]:**` and a block `text`, if it prints anything. All console cells share one shell, all
Python cells one set of names and one session of Spark, and both the same empty folder. The broker listens at free
ports; on the page and in the cells they are the usual ones. What is not below such a line is left as it is. What
differs from run to run (times, ids, addresses, widths of columns) is no difference.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "spark-walkthrough.md"
FREE_PORTS = {"TALLY_LISTENPORT": "0", "TALLY_NAMESERVER_LISTENPORT": "0", "TALLY_HTTP_PORT": "0"}
_CELL = re.compile(
    r"^\*\*In \[(?P<number>\d+)\]:\*\*\n\n```(?P<kind>console|python)\n(?P<source>.*?)^```\n"
    r"(?:\n\*\*Out \[(?P=number)\]:\*\*\n\n```text\n.*?^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_READY = re.compile(
    r"tally is ready in .*name server (?P<nameserver>\S+), broker (?P<broker>\S+), http (?P<http>\S+)\nconsole \S+\n"
)
_USUAL = {"nameserver": "127.0.0.1:9876", "broker": "127.0.0.1:10911", "http": "127.0.0.1:8080"}
_SPARK = (
    "--master local[2] --conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
    "--conf spark.sql.shuffle.partitions=2 pyspark-shell"
)
"""What pyspark gives to spark-submit: two processors, and no files of 200 partitions."""
_END = "end of what this command printed:"
_END_S = 30.0
_MASKS = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?", "TIME"),
        (r"\b[0-9A-F]{32}\b", "ID"),
        (r"\b127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\b\d+\.\d+ s\b", "SECONDS"),
        (r"\b[\d,]+ a second", "RATE"),
        (r"#\d+", "#N"),  # Spark's own numbers of columns
        (r"-{2,}", "-"),
        (r" {2,}", " "),
        (r" *\| *", "|"),  # Spark leaves out a time's last zeros, and fills the cell up
    )
)


class Shell:
    """One bash for all console cells; a context manager. Leaving it ends what it started in the background."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environment),
        )
        self.places: dict[str, str] = {}
        """The places of the ready line, by their usual addresses."""
        self._told("trap 'jobs -p | xargs -r kill; wait' EXIT")  # also if this process is killed: its input ends then

    def run(self, command: str) -> str:
        """What it prints; of one in the background, up to the lines that say that it is ready."""
        printed = self._told(command)
        if command.endswith("&"):
            while (match := _READY.search(printed)) is None:
                printed += self._line()
            self._told(f"export TALLY_NAMESERVER={match['nameserver']}")
            self.places = {usual: match[name] for name, usual in _USUAL.items()}
        return self.as_usual(printed)

    def as_usual(self, text: str) -> str:
        """The text with the usual addresses."""
        for usual, place in self.places.items():
            text = text.replace(place, usual)
        return text

    def as_here(self, text: str) -> str:
        """The text with the addresses of this run."""
        for usual, place in self.places.items():
            text = text.replace(usual, place)
        return text

    def _told(self, command: str) -> str:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f'{command}\n_status=$?; echo "{_END}"; (exit $_status)\n')
        self._bash.stdin.flush()
        printed = ""
        while not (line := self._line()).endswith(f"{_END}\n"):
            printed += line
        return printed + line.removesuffix(f"{_END}\n")

    def _line(self) -> str:
        assert self._bash.stdout is not None
        line = self._bash.stdout.readline()
        if not line:
            raise EOFError("the shell ended")
        return line

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._bash.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:  # a command or the broker does not end
            self._bash.kill()
            self._bash.wait()


def filled(page: str, run_console: Callable[[str], str], run_python: Callable[[str], str]) -> str:
    """The page with what its cells print now, in their order."""

    def cell(match: re.Match[str]) -> str:
        number, kind, source = match["number"], match["kind"], match["source"]
        if kind == "console":
            commands = [line.removeprefix("$ ") for line in source.splitlines() if line.startswith("$ ")]
            source = "".join(f"$ {command}\n{run_console(command)}" for command in commands)
            printed = ""
        else:
            printed = run_python(source)
        text = f"**In [{number}]:**\n\n```{kind}\n{_trimmed(source)}```\n"
        return text + (f"\n**Out [{number}]:**\n\n```text\n{_trimmed(printed)}```\n" if printed else "")

    return _CELL.sub(cell, page)


def _trimmed(text: str) -> str:
    """Without blanks at the ends of lines, and without empty lines at the end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n") + "\n"


def python_cells() -> Callable[[str], str]:
    """Runs one cell after another with the same names; gives what it prints, and the value of its last line."""
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(source: str) -> str:
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, "<cell>", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
                if value is not None:
                    print(repr(value))
        return printed.getvalue()

    return run


def masked(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    return text


def difference(page: str, now: str) -> list[str]:
    """Lines of a difference that counts; none: the page is true."""
    before, after = (masked(text).splitlines() for text in (page, now))
    return list(difflib.unified_diff(before, after, "the page", "what comes out", lineterm="", n=1))


@contextmanager
def _an_empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="walkthrough-") as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _run_now(page: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": _SPARK}
    run = python_cells()
    with _an_empty_folder(), Shell({**own, **FREE_PORTS}) as shell:
        try:
            return filled(page, shell.run, lambda source: shell.as_usual(run(shell.as_here(source))))
        finally:
            _end_spark()


def _end_spark() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="the walk-through with Spark: its cells, run")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the page is not true")
    check = parser.parse_args().check
    page = PAGE.read_text()
    now = _run_now(page)
    if not check:
        PAGE.write_text(now)
        return 0
    lines = difference(page, now)
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
