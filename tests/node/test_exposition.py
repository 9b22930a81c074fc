"""The text of a page of metrics, read by the parsers of another project, and the limit on its series."""

import itertools
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from tallystick.node.http import metric
from tallystick.node.http.bounded_series import BoundedSeries
from tallystick.node.http.exposition import Form, form_for
from tallystick.node.http.metric import MetricDeclaration, MetricsPart, counter, gauge, histogram
from tallystick.store.engine.distribution import Distribution, Tally

ODD = ('a"b', "c\\d", "e\nf", "%s %d %%", "{}", "ä€", "")
DECLARED: tuple[MetricDeclaration[None], ...] = (
    gauge("g", "x", 'A "gauge" with a \\ sign.', "test", lambda source: 1.5),
    counter(
        *("c_total", "x", "A counter.", "test"),
        lambda source: ((pair, 7) for pair in itertools.product(ODD, ODD)),
        *("topic", "consumer_group"),
    ),
    gauge("none", "x", "A gauge without a sample.", "test", lambda source: iter(())),
    histogram(
        *("h", "A histogram.", "test"),
        lambda source: (((code,), Distribution((1, 2.5), (3, 0, 4), 50)) for code in ("0", "1")),
        "code",
    ),
)


class Part(MetricsPart[None]):
    def common(self) -> dict[str, str]:
        return {"cluster": 'x"%s', "node_id": "n"}


def page(form: Form) -> str:
    return "".join(Part(None, DECLARED).pieces(form)) + form.end


@pytest.mark.parametrize("form", Form)
def test_other_programs_read_what_was_declared(form: Form) -> None:
    read = {
        Form.TEXT: text_string_to_metric_families,
        Form.OPEN_METRICS: openmetrics_parser.text_string_to_metric_families,
    }[form]
    families = {family.name: family for family in read(page(form))}
    assert {name: family.type for name, family in families.items()} == {
        "g": "gauge", "c": "counter", "none": "gauge", "h": "histogram",
    }  # fmt: skip
    assert families["g"].documentation == 'A "gauge" with a \\ sign.'
    assert [(sample.labels, sample.value) for sample in families["g"].samples] == [
        ({"cluster": 'x"%s', "node_id": "n"}, 1.5)
    ]
    pairs = {(sample.labels["topic"], sample.labels["consumer_group"]) for sample in families["c"].samples}
    assert pairs == set(itertools.product(ODD, ODD))
    assert {(sample.name, sample.value) for sample in families["c"].samples} == {("c_total", 7.0)}
    of_code = [sample for sample in families["h"].samples if sample.labels["code"] == "1"]
    assert {sample.labels["le"]: sample.value for sample in of_code if sample.name == "h_bucket"} == {
        "1.0": 3, "2.5": 3, "+Inf": 7,
    }  # fmt: skip
    assert {sample.name: sample.value for sample in of_code if sample.name != "h_bucket"} == {"h_count": 7, "h_sum": 50}


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.TEXT),
        ("*/*", Form.TEXT),
        ("text/html,*/*;q=0.1", Form.TEXT),
        # what Prometheus sends
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
            "version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,"
            "*/*;q=0.2",
            Form.OPEN_METRICS,
        ),
        ("application/openmetrics-text; version=1.0.0, text/plain;q=0.5", Form.OPEN_METRICS),
        ('application/openmetrics-text; version="1.0.0"', Form.OPEN_METRICS),
        ("application/openmetrics-text", Form.OPEN_METRICS),
        ("application/openmetrics-text;version=9.0.0", Form.TEXT),
        ("application/openmetrics-text;q=0.2,text/plain", Form.TEXT),
        ("application/openmetrics-text;q=none", Form.TEXT),
        ("application/openmetrics-text;q=0", Form.TEXT),
        (",;,;q=,text/plain;;", Form.TEXT),
    ],
)
def test_a_client_gets_the_format_that_it_prefers(accept: str, form: Form) -> None:
    assert form_for(accept) is form


def test_a_long_page_has_short_pieces() -> None:

    def found(_: None) -> Iterator[tuple[tuple[str, ...], float]]:
        return (((str(number),), 1) for number in range(1000))

    many = counter("m_total", "x", "Many.", "test", found, "topic")
    pieces = list(Part(None, [many]).pieces(Form.TEXT))
    assert max(piece.count("\n") for piece in pieces) <= 200
    assert sum(piece.count("\n") for piece in pieces) == 1002


def shown(bound: BoundedSeries, limit: int, **values: float) -> dict[str, float]:
    steps = bound.bounded([((key,), value) for key, value in values.items()], limit)
    while True:
        try:
            assert next(steps) == ""
        except StopIteration as end:
            return {key: value for (key,), value in end.value}


def test_no_series_of_a_counter_goes_back_whatever_is_created_and_deleted() -> None:
    bound = BoundedSeries(1, is_counter=True)
    assert shown(bound, 2, a=1, b=2) == {"a": 1, "b": 2}
    assert shown(bound, 2, a=1, b=2, c=10, d=20) == {"a": 1, "b": 2, "(other)": 30}
    assert shown(bound, 2, b=2, c=10, d=20) == {"b": 2, "(other)": 30}, "c does not leave the shared series"
    assert bound.left_out == 2
    assert shown(bound, 2, b=2, d=20) == {"b": 2, "(other)": 30}, "c was deleted, its counts stay"
    assert shown(bound, 2, b=2, c=1, d=5) == {"b": 2, "c": 1, "(other)": 35}, "d was deleted and created again"
    assert shown(bound, 2, a=7, b=3, c=1, d=6) == {"b": 3, "c": 1, "(other)": 30 + 7 + 6}
    assert shown(bound, 2) == {"(other)": 43}
    assert bound.left_out == 0


def test_a_series_of_a_gauge_appears_when_there_is_room() -> None:
    bound = BoundedSeries(1, is_counter=False, combine=max)
    assert shown(bound, 1, a=5, b=2, c=3) == {"a": 5, "(other)": 3}
    assert shown(bound, 1, b=2, c=3) == {"b": 2, "(other)": 3}
    assert shown(bound, 1, b=2) == {"b": 2}


def test_each_page_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric, "MAX_SERIES", 2)

    def found(_: None) -> Iterator[tuple[tuple[str, ...], float]]:
        return (((name,), 1) for name in "abc")

    part = Part(None, [counter("m_total", "x", "Many.", "test", found, "topic", shared=sum)])
    assert part.text().count(b"m_total{") == 3 and b'topic="(other)"' in part.text()
    assert dict(part.left_out()) == {("m_total",): 1}


def test_a_value_counts_in_the_first_class_whose_limit_it_does_not_exceed() -> None:
    tally = Tally((1, 5))
    for value in (-3.0, 0.0, 1.0, 1.5, 5.0, 6.0):
        tally.add(value)
    assert tally.distribution() == Distribution((1, 5), [3, 2, 1], 13.5)
