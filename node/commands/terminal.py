"""Functions for commands at a terminal: colours, progress lines, tables, arguments, and lines of standard input."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from tallystick.node.core.java_properties import parse_properties
from tallystick.store.settings import SettingsError

_RED, _GREEN, _RESET = "\x1b[31m", "\x1b[32m", "\x1b[0m"
# People do not read faster, and a line for each message would be slower than the work.
_INTERVAL_S = 0.1
_COLUMNS = 80
_COLOURS = re.compile("\x1b\\[[0-9]*m")
_CHUNK_BYTES = 1 << 16
_CLOSED = "standard input is closed"
MAX_LINE_BYTES = 16 << 20
"""A longer line of input is an error, because no frame can contain it."""


def good(text: str) -> str:
    """Returns `text` in green if standard output is a terminal, unchanged otherwise."""
    return _coloured(text, _GREEN)


def bad(text: str) -> str:
    """Returns `text` in red if standard output is a terminal, unchanged otherwise."""
    return _coloured(text, _RED)


def _coloured(text: str, colour: str) -> str:
    shown = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"{colour}{text}{_RESET}" if shown else text


def uncoloured(text: str) -> str:
    """Returns `text` without the colours of `good` and `bad`."""
    return _COLOURS.sub("", text)


def wrapped(text: str, hanging: int = 0) -> str:
    """Returns `text` with each line broken at blanks to fit the terminal, or 80 columns without a terminal.

    The parts after a break are indented by the line's indentation and `hanging` more columns. A word that is too long
    is not broken, because it may be a path to copy.
    """
    columns = shutil.get_terminal_size((_COLUMNS, 24)).columns if sys.stdout.isatty() else _COLUMNS
    return "\n".join(_wrapped_line(line, columns, hanging) for line in text.split("\n"))


def _wrapped_line(line: str, columns: int, hanging: int) -> str:
    words = line.lstrip(" ").split(" ")
    indent = " " * (len(line) - len(line.lstrip(" ")))
    done: list[str] = []
    current = indent + words[0]
    indent += " " * hanging
    for word in words[1:]:
        if word and len(uncoloured(f"{current} {word}")) > columns and current.strip():
            done.append(current.rstrip())
            current = indent + word
        else:
            current += f" {word}"
    return "\n".join([*done, current])


def error_text(error: BaseException) -> str:
    """Returns an error as one line: the system's text and the file's name, without the error number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)
    return " ".join(str(error).split())


class Progress:
    """A line on standard error with the progress of long work. Without a terminal it writes nothing."""

    def __init__(self, what: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self._what = what
        self._total = total
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._begin = self._last = time.monotonic()

    def at(self, done: int) -> None:
        """Shows that `done` of the total are done."""
        now = time.monotonic()
        if not self._shown or now - self._last < _INTERVAL_S:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-9)
        of_total = f" of {self._total:,} ({done * 100 // max(self._total, 1)} %)" if self._total else ""
        self._stream.write(f"\r\x1b[K{self._what}: {done:,}{of_total}, {rate:,.0f} a second")
        self._stream.flush()

    def clear(self) -> None:
        """Removes the line, so that only the result is visible."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class StageLines:
    """A progress line for each stage of long work; see `Progress`. `progress`: the function that the work calls; None:
    there is no terminal."""

    def __init__(self) -> None:
        self._lines: dict[str, Progress] = {}
        self.progress = self._at if sys.stderr.isatty() else None

    def _at(self, stage: str, done: int, total: int) -> None:
        if stage not in self._lines:
            self._lines[stage] = Progress(stage, total)
        self._lines[stage].at(done)

    def clear(self) -> None:
        """Removes the lines."""
        for line in self._lines.values():
            line.clear()


def table(rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> str:
    """Returns a table with columns as wide as their widest cell, and numbers on the right."""
    every = [heads, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(heads))]
    right = [bool(rows) and all(row[column].lstrip("-").isdigit() for row in rows) for column in range(len(heads))]
    lines = []
    for row in every:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(low: int, high: int) -> Callable[[str], int]:
    """Returns the `type` of an argument that is a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text!r}")
        return value

    return parse


class InputError(ValueError):
    """Standard input cannot be used."""


async def lines(stream: BinaryIO | None) -> AsyncIterator[list[bytes]]:
    """Yields the lines of a stream without their ends, as many at a time as are there. `stream`: None if the process
    was started without standard input. InputError: a line is too long, or the stream is closed; OSError.

    A thread reads, because that works for terminals and files. It is a daemon thread: a read from a terminal cannot be
    interrupted, and Ctrl-C must end the process.
    """
    if stream is None:
        raise InputError(_CLOSED)
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()
    turn = threading.Semaphore(1)  # one chunk is read ahead, no more

    def read() -> None:
        chunk: bytes | Exception = b"?"
        while chunk and isinstance(chunk, bytes):
            turn.acquire()
            try:
                chunk = os.read(stream.fileno(), _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            except ValueError:  # the stream has no descriptor once it is closed
                chunk = InputError(_CLOSED)
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the event loop has ended

    threading.Thread(target=read, name="lines", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        turn.release()
        if isinstance(chunk, Exception):
            raise chunk
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(f"a line of the input is longer than {MAX_LINE_BYTES:,} bytes")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if rest:
        yield [rest]


def add_overrides(parser: argparse.ArgumentParser, such_as: str = "") -> None:
    """Adds --settings and --set: settings that a command cannot read from the files of a store. `such_as`: examples."""
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help=f"file with settings that the store files do not contain{such_as}, key=value",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="a setting; can be repeated"
    )


def overrides(args: argparse.Namespace) -> dict[str, str]:
    """The settings of --settings and --set, which has priority. SettingsError: one cannot be parsed; OSError."""
    return (properties(args.settings) if args.settings else {}) | assignments(args.assignments)


def properties(path: Path) -> dict[str, str]:
    """Reads a settings file of RocketMQ's form. SettingsError: it cannot be parsed; OSError."""
    try:
        return parse_properties(path.read_bytes())
    except ValueError as error:
        raise SettingsError(str(path), str(error)) from error


def assignments(texts: list[str]) -> dict[str, str]:
    """Parses settings of the form `key=value`. SettingsError: one has no `=`."""
    chosen = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError(text, "is not of the form key=value")
        chosen[key.strip()] = value.strip()
    return chosen
