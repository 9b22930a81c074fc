"""Parts of the reports of jobs: numbers, tables and bars, as text and in a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

MOST_ROWS = 40

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;
background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.good{color:#176f2c}.bad{color:#b3261e}svg text{font:12px system-ui,sans-serif;fill:currentColor}svg rect{fill:#3b6fb6}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181a1b}td,th{border-color:#444}svg rect{fill:#7aa5de}
.good{color:#7fd694}.bad{color:#ff8a80}}"""


def bytes_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def time_text(time_ms: int) -> str:
    """Returns a time in UTC, with milliseconds; a time outside the calendar stays a number."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6]
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def table_text(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table with columns as wide as necessary, and numbers on the right."""
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    raw = list(rows) if isinstance(rows, list) else []
    right = [bool(raw) and all(isinstance(row[at], int) for row in raw) for at in range(len(heads))]
    widths = [max(len(head), *(len(row[at]) for row in texts), 0) for at, head in enumerate(heads)]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join(line(cells) for cells in [list(heads), *texts])


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# -- pages -------------------------------------------------------------------------------------------------------------


def page(title: str, parts: Iterable[str]) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + f"\n<p>{made}</p></html>\n"
    )


def html_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cell(tag: str, value: object, number: bool) -> str:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        return f"<{tag}{' class=n' if number else ''}>{escape(text)}</{tag}>"

    numbers = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(heads))]
    head = "".join(cell("th", name, number) for name, number in zip(heads, numbers, strict=True))
    lines = (
        "<tr>" + "".join(cell("td", value, number) for value, number in zip(row, numbers, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def bars(values: Sequence[tuple[str, int]]) -> str:
    """Returns an SVG with one bar for each (name, count). Names and counts are text, which can be copied."""
    most = max((count for _, count in values), default=0) or 1
    height = 22 * len(values)
    parts = []
    for number, (name, count) in enumerate(values):
        y = 22 * number
        width = max(1, round(420 * count / most))
        parts.append(
            f'<text x="0" y="{y + 15}">{escape(name[:34])}</text>'
            f'<rect x="250" y="{y + 4}" width="{width}" height="14"/>'
            f'<text x="{256 + width}" y="{y + 15}">{count:,}</text>'
        )
    return f'<svg role="img" viewBox="0 0 780 {height}" width="100%">{"".join(parts)}</svg>'
