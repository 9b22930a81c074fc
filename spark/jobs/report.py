"""The report of a job: a text with tables, and for `stats` and `audit` a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

Summary = dict[str, Any]
_MOST_ROWS = 40

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;
background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.good{color:#176f2c}.bad{color:#b3261e}svg text{font:12px system-ui,sans-serif;fill:currentColor}svg rect{fill:#3b6fb6}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181a1b}td,th{border-color:#444}svg rect{fill:#7aa5de}
.good{color:#7fd694}.bad{color:#ff8a80}}"""


def text_of(summary: Summary) -> str:
    """Returns the summary as text."""
    return _TEXTS[summary["job"]](summary)


def page_of(summary: Summary) -> str | None:
    """Returns the summary as an HTML page; None: this job has no page."""
    made = _PAGES.get(summary["job"])
    return None if made is None else made(summary)


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


def _topic_rows(summary: Summary) -> list[list[object]]:
    return [
        [
            topic["topic"],
            topic["queues"],
            topic["messages"],
            bytes_text(topic["bytes"]),
            topic["size_p50"],
            topic["size_p90"],
            topic["size_p99"],
            len(topic["producers"]),
        ]
        for topic in summary["topics"]
    ]


_TOPIC_HEADS = ("topic", "queues", "messages", "size", "p50", "p90", "p99", "producers")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _stats_text(summary: Summary) -> str:
    head = f"{_counted(summary['messages'], 'message')}, {bytes_text(summary['bytes'])}"
    head += f", {_counted(len(summary['topics']), 'topic')}"
    if summary["damaged"]:
        head += f", {_counted(summary['damaged'], 'damaged place')}"
    return "\n".join([head, "", table_text(_TOPIC_HEADS, _topic_rows(summary)), *summary["damage"]])


def _audit_text(summary: Summary) -> str:
    word = "clean" if summary["clean"] else f"differences: {summary['differing']:,}"
    names = ("source", "records", "queues", "begin", "bound")
    rows = [[source[name] for name in names] for source in summary["sources"]]
    lines = [word, "", table_text(names, rows), *_replica_lines(summary)]
    for source in summary["sources"]:
        if source["expired_bytes"]:
            lines.append(f"expired before they were read: {source['expired_bytes']:,} bytes of {source['source']}")
    lines += [f"behind: {count} {what}" for what, count in summary["behind"].items()]
    lines += [difference_text(each) for each in summary["differences"][:_MOST_ROWS]]
    if summary["differing"] > _MOST_ROWS:
        lines.append(f"... and {summary['differing'] - _MOST_ROWS} more")
    return "\n".join(lines)


def _replica_lines(summary: Summary) -> list[str]:
    lines = []
    for each in summary["replicas_compared"]:
        name = f" of {each['group']}" if each["group"] else ""
        if each["members"] > 1:
            lines.append(f"{each['members']} replicas{name} compared from {each['begin']:,} to {each['end']:,}")
        lines += [f"{source} holds nothing yet: it was not compared" for source in each["empty"]]
    return lines


def difference_text(each: dict[str, Any]) -> str:
    place = f"{each['file']} at byte {each['offset']}" if each["file"] else f"position {each['offset']}"
    return f"{each['source']}: {each['what']}: {place}: {each['reason']}"


def _export_text(summary: Summary) -> str:
    rows = [
        [each["source"], each["added_rows"], bytes_text(each["added_bytes"]), str(each["ranges"])]
        for each in summary["sources"]
    ]
    rows_text, files_text = _counted(summary["added_rows"], "row"), _counted(summary["added_files"], "file")
    head = f"{rows_text} in {files_text} added to {summary['out']}"
    return "\n".join([head, "", table_text(("source", "rows", "of log", "ranges now"), rows), *summary["damage"]])


def _rebuild_text(summary: Summary) -> str:
    lines = []
    for each in summary["volumes"]:
        place = f" into {each['folder']}" if each["folder"] else ""
        lines.append(f"{each['source']}: {each['records']:,} records up to {each['end']:,}{place}")
        lines.append(f"  {each['same']} of {each['files']} files are as the store has them")
        lines += [f"  differs: {name}" for name in each["differing"]]
        lines += [f"  not in the store: {name}" for name in each["missing"]]
        lines += [f"  behind: {count:,} {what}" for what, count in each["behind"].items()]
        compared = each["compared"]
        words = "every byte" if compared["to_the_byte"] else "what lies below the bound and is kept"
        counts = f"{compared['queue_units']:,} queue units, {compared['index_entries']:,} index entries"
        lines.append(f"  compared: {words}; {counts}")
        if each["stopped"]:
            lines.append(f"  stopped: {each['stopped']}")
    return "\n".join(lines)


def _trace_text(summary: Summary) -> str:
    rows = [
        [
            time_text(event["stored_ms"]),
            event["what"],
            event["topic"],
            f"{event['queue_id']}/{event['queue_offset']}",
            event["message_id"],
            ",".join(event["sources"]),
        ]
        for event in summary["events"]
    ]
    if not rows:
        return f"nothing is known of {summary['sought']}"
    return table_text(("stored (UTC)", "what", "topic", "queue/offset", "message id", "on"), rows)


# -- pages -------------------------------------------------------------------------------------------------------------


def _page(title: str, parts: Iterable[str]) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + f"\n<p>{made}</p></html>\n"
    )


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
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


def _stats_page(summary: Summary) -> str:
    hours: dict[int, int] = {}
    tags: dict[str, int] = {}
    for row in summary["groups"]:
        hours[row["hour_ms"]] = hours.get(row["hour_ms"], 0) + row["messages"]
        tags[row["tags"] or "(none)"] = tags.get(row["tags"] or "(none)", 0) + row["messages"]
    top = sorted(tags.items(), key=lambda item: (-item[1], item[0]))[:_MOST_ROWS]
    shown = sorted(hours.items())[-72:]
    return _page(
        "What is in the stores",
        [
            f"<p>{summary['messages']:,} messages, {bytes_text(summary['bytes'])}.</p>",
            "<h2>Messages by topic</h2>",
            bars([(topic["topic"], topic["messages"]) for topic in summary["topics"][:_MOST_ROWS]]),
            "<h2>Messages by hour of storing (UTC)</h2>",
            bars([(time_text(hour)[:16], count) for hour, count in shown]),
            "<h2>Messages by tag</h2>",
            bars(top),
            "<h2>Topics</h2>",
            _html_table(_TOPIC_HEADS, _topic_rows(summary)),
        ],
    )


def _audit_page(summary: Summary) -> str:
    word = (
        '<p class="good">Clean: log, queues, index and replicas agree.</p>'
        if summary["clean"]
        else f'<p class="bad">Differences: {summary["differing"]:,}.</p>'
    )
    kinds: dict[str, int] = {}
    for each in summary["differences"]:
        kinds[each["what"]] = kinds.get(each["what"], 0) + 1
    names = ("source", "records", "queues", "begin", "bound")
    parts = [
        word,
        "<h2>Records read</h2>",
        bars([(source["source"], source["records"]) for source in summary["sources"]]),
        _html_table(names, [[source[name] for name in names] for source in summary["sources"]]),
        *(f"<p>{escape(line)}</p>" for line in _replica_lines(summary)),
    ]
    if summary["behind"]:
        parts += ["<h2>Behind the log, for moments</h2>", bars(sorted(summary["behind"].items()))]
    if kinds:
        rows = [
            [each["source"], each["what"], each["file"], each["offset"], each["reason"]]
            for each in summary["differences"]
        ]
        heads = ("source", "what", "file", "byte", "difference")
        parts += ["<h2>Differences by kind</h2>", bars(sorted(kinds.items())), _html_table(heads, rows)]
    return _page("Audit of the stores", parts)


_TEXTS: dict[str, Callable[[Summary], str]] = {
    "stats": _stats_text,
    "audit": _audit_text,
    "export": _export_text,
    "rebuild": _rebuild_text,
    "trace": _trace_text,
}
_PAGES: dict[str, Callable[[Summary], str]] = {"stats": _stats_page, "audit": _audit_page}
