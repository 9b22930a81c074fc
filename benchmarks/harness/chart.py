"""A bar chart of the advantages as an SVG: one bar a line, the floor and the aim as marks on it.

The scale is logarithmic because 1.0 and 40 are both on it and what counts is "how many times": the same distance is the
same factor everywhere. Bars begin at 1, where both sides are equal; a bar to the left of it is a loss.
"""

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from harness.report import ratio
from harness.verdict import Result, Verdict

_WIDTH = 980
_LABELS = 420
_RIGHT = 80
_ROW = 30
_TOP = 78
_BOTTOM = 44
_COLOURS = {
    Verdict.AIM: "#1a7f4b",
    Verdict.FLOOR: "#4c78a8",
    Verdict.BELOW: "#c8442b",
    Verdict.NONE: "#8a8f98",
    Verdict.VOID: "#8a8f98",
}
_GRID = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)


def svg(results: Sequence[Result], caption: str) -> str:
    """The chart; lines that are not compared with RocketMQ are left out."""
    rows = [
        result
        for result in results
        if result.advantage is not None and result.line.against is not None and result.line.against[0] == "peer"
    ]
    values = [value for result in rows for value in (result.advantage, result.line.floor, result.line.aim) if value]
    low = min([0.8, *(value * 0.8 for value in values)])
    high = max([4.0, *(value * 1.15 for value in values)])
    span = math.log(high / low)

    def x(value: float) -> float:
        return _LABELS + (_WIDTH - _LABELS - _RIGHT) * math.log(value / low) / span

    height = _TOP + _ROW * len(rows) + _BOTTOM
    bottom = _TOP + _ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="16" font-weight="bold" fill="#1b1f24">Times better than RocketMQ 4.8.0</text>',
        f'<text x="16" y="46" fill="#57606a">{escape(caption)}</text>',
    ]
    for value in _GRID:
        if low <= value <= high:
            colour, thickness = ("#57606a", 1.5) if value == 1 else ("#d8dee4", 1)
            parts.append(
                f'<line x1="{x(value):.1f}" y1="{_TOP - 6}" x2="{x(value):.1f}" y2="{bottom}" stroke="{colour}" '
                f'stroke-width="{thickness}"/>'
                f'<text x="{x(value):.1f}" y="{_TOP - 12}" text-anchor="middle" fill="#57606a">{value:g}x</text>'
            )
    for index, result in enumerate(rows):
        parts += _bar(result, _TOP + _ROW * index, x)
    parts += _legend(bottom + 26)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(result: Result, top: float, x: Callable[[float], float]) -> list[str]:
    line = result.line
    assert result.advantage is not None, "left out before"
    begin, end = sorted((x(1), x(result.advantage)))
    middle = top + _ROW / 2
    label = f"{line.title}: {line.metric.heading}"
    parts = [
        f'<text x="{_LABELS - 12}" y="{middle + 4:.1f}" text-anchor="end" font-size="11" fill="#1b1f24">'
        f"{escape(label)}</text>",
        f'<rect x="{begin:.1f}" y="{top + 6:.1f}" width="{max(1.0, end - begin):.1f}" height="{_ROW - 12}" '
        f'fill="{_COLOURS[result.verdict]}"/>',
    ]
    if line.floor is not None:
        parts.append(_mark(x(line.floor), top + 3, _ROW - 6, ""))
    if line.aim is not None:
        parts.append(_mark(x(line.aim), top + 3, _ROW - 6, ' stroke-dasharray="3 2"'))
    furthest = max(end, *(x(mark) for mark in (line.floor, line.aim) if mark is not None), x(1))
    parts.append(
        f'<text x="{furthest + 7:.1f}" y="{middle + 4:.1f}" font-weight="bold" fill="#1b1f24">'
        f"{escape(ratio(line.metric, result.advantage))}</text>"
    )
    return parts


def _mark(at: float, top: float, height: float, dashes: str) -> str:
    return (
        f'<line x1="{at:.1f}" y1="{top:.1f}" x2="{at:.1f}" y2="{top + height:.1f}" stroke="#1b1f24" '
        f'stroke-width="2"{dashes}/>'
    )


def _legend(y: float) -> list[str]:
    parts = []
    at = 16.0
    for verdict in (Verdict.AIM, Verdict.FLOOR, Verdict.BELOW):
        parts.append(f'<rect x="{at:.0f}" y="{y - 10:.0f}" width="12" height="12" fill="{_COLOURS[verdict]}"/>')
        parts.append(f'<text x="{at + 18:.0f}" y="{y:.0f}" fill="#57606a">{verdict.lower()}</text>')
        at += 120
    for text, dashes in (("floor", ""), ("aim", ' stroke-dasharray="3 2"')):
        parts.append(_mark(at, y - 11, 14, dashes))
        parts.append(f'<text x="{at + 8:.0f}" y="{y:.0f}" fill="#57606a">{text}</text>')
        at += 70
    return parts
