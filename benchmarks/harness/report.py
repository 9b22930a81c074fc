"""The table, as text for a terminal, as Markdown for the documentation, and the whole as one JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.rows import Metric
from harness.verdict import Figure, Result, Turn

HEADINGS = ("load", "figure", "ours", "RocketMQ 4.8.0", "ratio", "floor", "aim", "verdict", "foreign")
THIRD_HEADINGS = ("rocketmq-rust 1.0.0", "ours to it")
"""Behind the ratio to RocketMQ, if the third side was measured."""
BEGIN = "<!-- begin: written by make bench -->"
END = "<!-- end: written by make bench -->"


def quantity(metric: Metric, value: float) -> str:
    """A figure with its unit, three digits of it: more would claim more than the machine can say."""
    match metric:
        case Metric.RATE:
            return f"{_three(value):,.0f}/s".replace(",", " ")
        case Metric.P50 | Metric.P99 | Metric.P999 | Metric.MAX:
            return f"{_digits(value / 1000)} ms" if value >= 1000 else f"{_digits(value)} us"
        case Metric.CPU:
            return f"{_digits(value)} s"
        case Metric.MEMORY:
            return f"{_digits(value / 1e6)} MB"
        case _:
            return f"{_digits(value)} s"


def _three(value: float) -> float:
    return float(f"{value:.3g}")


def _digits(value: float) -> str:
    rounded = _three(value)
    return f"{rounded:.0f}" if rounded >= 100 else f"{rounded:.3g}"


def ratio(metric: Metric, advantage: float | None) -> str:
    """Ours to the other as people say it: 10.5, or 1/11 where less is better."""
    if advantage is None:
        return "-"
    if metric.more_is_better:
        return f"{advantage:.3g}"
    if advantage > 1 and f"{advantage:.3g}" != "1":
        return f"1/{advantage:.3g}"
    return f"{1 / advantage:.3g}"


def headings(*, third: bool) -> tuple[str, ...]:
    """The headings of the table."""
    return HEADINGS[:5] + (THIRD_HEADINGS if third else ()) + HEADINGS[5:]


def cells(result: Result, *, third: bool = False) -> tuple[str, ...]:
    """The row of the table, in the order of `headings`."""
    line = result.line

    def mark(advantage: float | None) -> str:
        if advantage is None:
            return "-"
        return quantity(line.metric, advantage) if line.against is None else ratio(line.metric, advantage)

    figures = [figure for figure in (result.ours, result.base) if figure is not None]
    return (
        line.title,
        line.metric.heading,
        _figure(line.metric, result.ours),
        _figure(line.metric, result.base),
        ratio(line.metric, result.advantage),
        *((_figure(line.metric, result.third), ratio(line.metric, result.third_advantage)) if third else ()),
        mark(line.floor),
        mark(line.aim),
        f"{result.verdict} (noisy)" if result.noisy else str(result.verdict),
        f"{max(figure.foreign_cores for figure in figures):.2f}",
    )


def _figure(metric: Metric, figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if figure.void:
        return "void"
    middle = quantity(metric, figure.median)
    if figure.turns == 1:
        return middle
    return f"{middle} [{_bare(metric, figure.low)}..{_bare(metric, figure.high)}]"


def _bare(metric: Metric, value: float) -> str:
    """The number as in `quantity`, short, for the ends of a range."""
    if metric is Metric.RATE:
        return f"{_digits(value / 1000)}k" if value >= 10_000 else f"{_three(value):.0f}"
    if metric is Metric.MEMORY:
        return _digits(value / 1e6)
    if metric in (Metric.P50, Metric.P99, Metric.P999, Metric.MAX):
        return f"{_digits(value / 1000)} ms" if value >= 1000 else f"{_digits(value)} us"
    return _digits(value)


def has_third(results: Sequence[Result]) -> bool:
    """Whether the third side was measured in any row."""
    return any(result.third is not None for result in results)


def text_table(results: Sequence[Result]) -> str:
    """The table for a terminal."""
    third = has_third(results)
    rows = [headings(third=third), *(cells(result, third=third) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = {0, 1, len(rows[0]) - 2}

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(rows[0]), line(["-" * width for width in widths]), *(line(row) for row in rows[1:])])


def remarks(results: Sequence[Result]) -> list[str]:
    """What a reader has to know beside the table: void rows first."""
    lines = []
    for result in results:
        sides = ((result.ours, "ours"), (result.base, "the other"), (result.third, "the third"))
        for figure, side in sides:
            if figure is not None and figure.void:
                lines.append(f"{result.line.run}: void, {side}: {figure.void}")
        lines += [f"{result.line.run}: {note}" for note in result.notes]
    return list(dict.fromkeys(lines))


def markdown(results: Sequence[Result], machine: Mapping[str, Any], chart: str | None) -> str:
    """The table and what it was measured on, between marks that a later run replaces."""
    conditions = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = [BEGIN, "", f"Measured with `make bench`: {conditions}.", ""]
    what = "Medians of the turns [lowest..highest]; a ratio is the median of the turns' ratios. Foreign: others' cores."
    lines += [what, ""]
    if chart is not None:
        lines += [f"![Ratios, ours to RocketMQ 4.8.0]({chart})", ""]
    third = has_third(results)
    numbers = len(headings(third=third)) - 4
    lines += ["| " + " | ".join(headings(third=third)) + " |", "|---|---|" + "---:|" * numbers + "---|---:|"]
    lines += ["| " + " | ".join(cells(result, third=third)) + " |" for result in results]
    if notes := remarks(results):
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join([*lines, "", END])


def into_document(document: str, block: str) -> str:
    """The document with its measured block replaced, or the block behind it when it has none."""
    begin, end = document.find(BEGIN), document.find(END)
    if begin >= 0 and end > begin:
        return document[:begin] + block + document[end + len(END) :]
    return f"{document.rstrip()}\n\n{block}\n" if document.strip() else f"# Benchmarks\n\n{block}\n"


def _figure_object(figure: Figure | None) -> dict[str, Any] | None:
    if figure is None:
        return None
    return {
        "median": figure.median,
        "low": figure.low,
        "high": figure.high,
        "turns": figure.turns,
        "foreign_cores": round(figure.foreign_cores, 3),
        "noisy": figure.noisy,
        "void": figure.void or None,
    }


def json_object(results: Sequence[Result], turns: Sequence[Turn], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything: the lines with their figures, and every turn."""
    return {
        "machine": dict(machine),
        "lines": [
            {
                "title": result.line.title,
                "row": result.line.run,
                "metric": result.line.metric.key,
                "ours": _figure_object(result.ours),
                "against": None if result.line.against is None else "/".join(result.line.against),
                "base": _figure_object(result.base),
                "advantage": result.advantage,
                "third": _figure_object(result.third),
                "third_advantage": result.third_advantage,
                "floor": result.line.floor,
                "aim": result.line.aim,
                "verdict": str(result.verdict),
                "noisy": result.noisy,
                "notes": list(result.notes),
            }
            for result in results
        ],
        "turns": [
            {
                "row": turn.run,
                "side": turn.side,
                "foreign_cores": round(turn.foreign_cores, 3),
                "void": turn.void or None,
                "notes": list(turn.notes),
                **{metric.key: value for metric, value in turn.values.items()},
            }
            for turn in turns
        ],
    }
