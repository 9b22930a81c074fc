"""Evaluates the part of PromQL that the rules of the chart use, over samples that a test gives.

An instant selector takes the last sample of each series of the last five minutes. `rate` and `increase` take the
difference of the first and the last sample in their range, without the extrapolation of Prometheus. Source: Prometheus'
documentation of its query language.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LOOKBACK_S = 300.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TOKEN = re.compile(
    r"""\s*(?:([0-9.]+)|([A-Za-z_][\w:]*)|("(?:[^"\\]|\\.)*")|(\[\d+[smhd]\])|(=~|!=|==|>=|<=|[-+*/(){},=<>]))"""
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_WORDS = frozenset({"and", "or", "unless", "by", "on"})

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = float | Vector


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one series, as (seconds, value), oldest first."""

    name: str
    labels: Labels
    samples: tuple[tuple[float, float], ...]


def series(name: str, labels: Mapping[str, str], *samples: tuple[float, float]) -> Series:
    """Returns a series."""
    return Series(name, frozenset(labels.items()), samples)


def evaluate(text: str, found: Iterable[Series], now_s: float) -> Value:
    """Returns the value of an expression at a time. ValueError: the text is not of the part that is understood."""
    parser = _Parser(text, list(found), now_s)
    value = parser.either()
    if parser.tokens[parser.at :]:
        raise ValueError(f"{text}: not understood from {parser.tokens[parser.at]!r} on")
    return value


def _quotient(one: float, other: float) -> float:
    return one / other if other else math.nan if one == 0 or math.isnan(one) else math.inf


def _growth(before: float, after: float) -> float:
    """A counter that is lower than before began again at 0."""
    return after if after < before else after - before


class _Parser:
    def __init__(self, text: str, found: list[Series], now_s: float) -> None:
        self.tokens: list[str] = []
        self.at = 0
        self._series, self._now_s = found, now_s
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if match is None:
                raise ValueError(f"{text}: not understood from {text[end:][:20]!r} on")
            self.tokens.append(match[0].strip())
            end = match.end()

    def _next(self, *expected: str) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if expected and token not in expected:
            raise ValueError(f"{token!r} in place of {expected}")
        self.at += 1
        return token

    def _sees(self, *tokens: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at] in tokens

    # -- operators, from the weakest to the strongest ------------------------------------------------------------------

    def either(self) -> Value:
        value = self._both()
        while self._sees("or"):
            self._next()
            on = self._on()
            left, right = _vector(value), _vector(self._both())
            keys = {_key(labels, on) for labels in left}
            value = left | {labels: number for labels, number in right.items() if _key(labels, on) not in keys}
        return value

    def _both(self) -> Value:
        value = self._comparison()
        while self._sees("and", "unless"):
            wanted = self._next() == "and"
            on = self._on()
            left, right = _vector(value), _vector(self._comparison())
            keys = {_key(labels, on) for labels in right}
            value = {labels: number for labels, number in left.items() if (_key(labels, on) in keys) is wanted}
        return value

    def _comparison(self) -> Value:
        value = self._sum()
        while self._sees(*_COMPARE):
            compare = _COMPARE[self._next()]
            other = self._sum()
            left = _vector(value)
            pairs = {labels: other if isinstance(other, float) else other.get(labels) for labels in left}
            value = {
                labels: number
                for labels, number in left.items()
                if (limit := pairs[labels]) is not None and compare(number, limit)
            }
        return value

    def _sum(self) -> Value:
        value = self._product()
        while self._sees("+", "-"):
            value = _combined(operator.add if self._next() == "+" else operator.sub, value, self._product())
        return value

    def _product(self) -> Value:
        value = self._atom()
        while self._sees("*", "/"):
            value = _combined(operator.mul if self._next() == "*" else _quotient, value, self._atom())
        return value

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _atom(self) -> Value:
        token = self._next()
        if token == "(":
            value = self.either()
            self._next(")")
            return value
        if token[0].isdigit():
            return float(token)
        if not re.match(r"[A-Za-z_]", token) or token in _WORDS:
            raise ValueError(f"{token!r} where a value was expected")
        if token in ("sum", "max"):
            return self._aggregate(sum if token == "sum" else max)
        if self._sees("("):
            return self._function(token)
        return {labels: samples[-1][1] for labels, samples in self._selected(token, LOOKBACK_S).items()}

    def _aggregate(self, of: Callable[[list[float]], float]) -> Vector:
        by = self._names() if self._sees("by") and self._next() else frozenset[str]()
        self._next("(")
        grouped: dict[Labels, list[float]] = {}
        for labels, number in _vector(self.either()).items():
            grouped.setdefault(_key(labels, by), []).append(number)
        self._next(")")
        return {labels: of(numbers) for labels, numbers in grouped.items()}

    def _function(self, name: str) -> Vector:
        self._next("(")
        if name in ("rate", "increase"):
            selected = self._selected(self._next(), 0.0)
            self._next(")")
            return {
                labels: sum(_growth(before[1], after[1]) for before, after in itertools.pairwise(samples))
                / (self._range_s if name == "rate" else 1.0)
                for labels, samples in selected.items()
                if len(samples) > 1
            }
        if name == "max_over_time":
            selected = self._selected(self._next(), 0.0)
            self._next(")")
            return {labels: max(value for _, value in samples) for labels, samples in selected.items()}
        if name == "histogram_quantile":
            quantile = float(self._next())
            self._next(",")
        value = _vector(self.either())
        texts = []
        while self._sees(","):
            self._next()
            texts.append(self._next().strip('"'))
        self._next(")")
        if name == "label_replace":
            return _relabeled(value, *texts)
        if name == "floor":
            return {labels: float(math.floor(number)) for labels, number in value.items()}
        if name == "absent":
            return {} if value else {frozenset[tuple[str, str]](): 1.0}
        if name == "histogram_quantile":
            return _quantiles(quantile, value)
        raise ValueError(f"{name} is not understood")

    def _selected(self, name: str, range_s: float) -> dict[Labels, list[tuple[float, float]]]:
        tests: list[Callable[[dict[str, str]], bool]] = []
        if self._sees("{"):
            self._next()
            while not self._sees("}"):
                label, how, wanted = self._next(), self._next("=", "!=", "=~"), self._next().strip('"')
                tests.append(_matcher(label, how, wanted))
                if self._sees(","):
                    self._next()
            self._next("}")
        if not range_s:
            token = self._next()
            range_s = self._range_s = float(token[1:-2]) * _UNITS_S[token[-2]]
        found = {}
        for each in self._series:
            labels = dict(each.labels)
            if each.name == name and all(test(labels) for test in tests):
                samples = [sample for sample in each.samples if self._now_s - range_s <= sample[0] <= self._now_s]
                if samples:
                    found[each.labels] = samples
        return found

    def _on(self) -> frozenset[str] | None:
        return self._names() if self._sees("on") and self._next() else None

    def _names(self) -> frozenset[str]:
        self._next("(")
        names = set()
        while not self._sees(")"):
            names.add(self._next())
            if self._sees(","):
                self._next()
        self._next(")")
        return frozenset(names)


def _matcher(label: str, how: str, wanted: str) -> Callable[[dict[str, str]], bool]:
    if how == "=~":
        return lambda labels: re.fullmatch(wanted, labels.get(label, "")) is not None
    return lambda labels: (labels.get(label, "") == wanted) is (how == "=")


def _key(labels: Labels, names: frozenset[str] | None) -> Labels:
    return labels if names is None else frozenset(pair for pair in labels if pair[0] in names)


def _vector(value: Value) -> Vector:
    if isinstance(value, float):
        raise ValueError("a number where a vector was expected")
    return value


def _combined(of: Callable[[float, float], float], one: Value, other: Value) -> Value:
    if isinstance(one, float):
        return of(one, other) if isinstance(other, float) else {key: of(one, each) for key, each in other.items()}
    if isinstance(other, float):
        return {labels: of(each, other) for labels, each in one.items()}
    return {labels: of(each, other[labels]) for labels, each in one.items() if labels in other}


def _relabeled(value: Vector, target: str, replacement: str, source: str, pattern: str) -> Vector:
    """Prometheus' label_replace: sets a label from another one; `$1` is the first group of the pattern."""
    found = {}
    for labels, number in value.items():
        known = dict(labels)
        match = re.fullmatch(pattern, known.get(source, ""))
        if match is not None:
            known[target] = match.expand(replacement.replace("$", "\\"))
        found[frozenset(known.items())] = number
    return found


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    """Linear within a bucket, as Prometheus does; the last limit, if the quantile is above it."""
    grouped: dict[Labels, list[tuple[float, float]]] = {}
    for labels, total in buckets.items():
        (limit,) = [value for name, value in labels if name == "le"]
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        grouped.setdefault(rest, []).append((float(limit), total))
    found = {}
    for labels, rows in grouped.items():
        rows.sort()
        wanted = quantile * rows[-1][1]
        if not rows[-1][1]:
            found[labels] = math.nan
            continue
        number = next(number for number, (_, total) in enumerate(rows) if total >= wanted)
        low, before = rows[number - 1] if number else (0.0, 0.0)
        high, total = rows[number]
        found[labels] = low if math.isinf(high) else low + (high - low) * (wanted - before) / (total - before)
    return found
