"""The benchmark's table, document, object and chart."""

import json
import math
from xml.etree import ElementTree

import pytest
from harness import chart, report
from harness.rows import Line, Metric
from harness.verdict import Result, Turn, judge

RATE = Line("4 x 64", Metric.RATE, "sends", ("peer", "sends"), floor=8, aim=17)
CPU = Line("4 x 64", Metric.CPU, "sends", ("peer", "sends"), floor=6, aim=11)
RESTART = Line("restart", Metric.SECONDS, "restart", None, floor=3, aim=1)
TURNS = [
    *(Turn("sends", "ours", {Metric.RATE: rate, Metric.CPU: 2.4}, 0.1) for rate in (500_123.0, 544_262.0, 585_000.0)),
    Turn("sends", "peer", {Metric.RATE: 51_723.0, Metric.CPU: 27.0}, 0.2, notes=("code 2 7 times: busy",)),
    Turn("restart", "ours", {Metric.SECONDS: 0.84}),
]


def results() -> list[Result]:
    judged = [judge(line, TURNS) for line in (RATE, CPU, RESTART)]
    return [result for result in judged if result is not None]


def test_the_rows_of_the_table() -> None:
    assert [report.cells(result) for result in results()] == [
        (
            "4 x 64",
            "messages/s",
            "544 000/s [500k..585k]",
            "51 700/s",
            "10.5",
            "8",
            "17",
            "above floor",
            "0.20",
        ),
        ("4 x 64", "CPU s per million", "2.4 s [2.4..2.4]", "27 s", "1/11.2", "1/6", "1/11", "aim reached", "0.20"),
        ("restart", "seconds", "0.84 s", "-", "-", "3 s", "1 s", "aim reached", "0.00"),
    ]


def test_a_third_side_has_two_columns_behind_the_ratio() -> None:
    turns = [*TURNS, Turn("sends", "rust", {Metric.RATE: 250_061.5, Metric.CPU: 4.8}, 0.1)]
    judged = [judge(line, turns) for line in (RATE, CPU, RESTART)]
    found = [result for result in judged if result is not None]
    assert [report.cells(result, third=True)[4:8] for result in found] == [
        ("10.5", "250 000/s", "2", "8"),
        ("1/11.2", "4.8 s", "1/2", "1/6"),
        ("-", "-", "-", "3 s"),
    ]
    heads = report.text_table(found).splitlines()[0]
    assert heads.index("ratio") < heads.index("rocketmq-rust 1.0.0") < heads.index("ours to it") < heads.index("floor")
    table = report.markdown(found, {}, None).splitlines()
    assert {row.count("|") for row in table if row.startswith("|")} == {12}


def test_a_void_turn_of_the_third_side_leaves_the_verdict() -> None:
    turns = [*TURNS, Turn("sends", "rust", {}, void="10 acknowledged, 9 stored")]
    result = judge(RATE, turns)
    assert result is not None and result.verdict == "above floor" and result.third_advantage is None
    assert report.cells(result, third=True)[5:7] == ("void", "-")
    assert "sends: void, the third: 10 acknowledged, 9 stored" in report.remarks([result])


def test_the_columns_stand_below_each_other() -> None:
    lines = report.text_table(results()).splitlines()
    assert len(lines) == 5
    assert len({line.index(word) for line, word in zip(lines[2:4], ("above", "aim re"), strict=True)}) == 1


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        (Metric.RATE, 868_999.0, "869 000/s"),
        (Metric.RATE, 832.4, "832/s"),
        (Metric.P99, 1304.0, "1.3 ms"),
        (Metric.P50, 59.04, "59 us"),
        (Metric.CPU, 0.9512, "0.951 s"),
        (Metric.MEMORY, 17_400_000.0, "17.4 MB"),
        (Metric.SECONDS, 10.42, "10.4 s"),
    ],
)
def test_quantities_have_three_digits_and_a_unit(metric: Metric, value: float, text: str) -> None:
    assert report.quantity(metric, value) == text


def test_ratios_are_written_as_people_say_them() -> None:
    assert report.ratio(Metric.RATE, 0.83) == "0.83"
    assert report.ratio(Metric.CPU, 11) == "1/11"
    assert report.ratio(Metric.CPU, 0.5) == "2"
    assert report.ratio(Metric.CPU, 1 / 1.2) == "1.2"
    assert report.ratio(Metric.CPU, 1.0) == "1"
    assert report.ratio(Metric.CPU, None) == "-"


def test_void_rows_and_refused_sends_are_reported() -> None:
    lying = [Turn("sends", "ours", {Metric.RATE: 9e9}, void="7 acknowledged, 0 stored"), *TURNS[3:]]
    result = judge(RATE, lying)
    assert result is not None
    assert report.cells(result)[2:8] == ("void", "51 700/s", "-", "8", "17", "VOID")
    assert report.remarks([result]) == [
        "sends: void, ours: 7 acknowledged, 0 stored",
        "sends: peer: code 2 7 times: busy",
    ]


def test_the_document_keeps_what_people_wrote() -> None:
    first = report.into_document("", report.markdown(results(), {"processors": 2}, "chart.svg"))
    assert first.startswith("# Benchmarks\n\n") and "](chart.svg)" in first and "processors 2" in first
    edited = first.replace("# Benchmarks", "# Benchmarks\n\nHow to read this.") + "\nAfterwards.\n"
    second = report.into_document(edited, report.markdown(results()[:1], {"processors": 4}, None))
    assert "How to read this." in second and second.endswith("\nAfterwards.\n")
    assert "processors 4" in second and "processors 2" not in second and second.count(report.BEGIN) == 1


def test_the_object_is_json_with_every_turn() -> None:
    found = json.loads(json.dumps(report.json_object(results(), TURNS, {"processors": 2})))
    assert [line["verdict"] for line in found["lines"]] == ["above floor", "aim reached", "aim reached"]
    assert found["lines"][0]["advantage"] == pytest.approx(544_262 / 51_723)
    assert len(found["turns"]) == 5 and found["turns"][0]["rate"] == 500_123.0


def test_the_chart_is_drawn_to_scale() -> None:
    drawn = ElementTree.fromstring(chart.svg(results(), "caption <with> marks"))
    name = "{http://www.w3.org/2000/svg}"
    bars = [float(bar.attrib["width"]) for bar in drawn.iter(f"{name}rect") if bar.attrib["height"] == "18"]
    assert len(bars) == 2  # the restart has no side to compare with
    rate, cpu = bars
    assert cpu / rate == pytest.approx(math.log(27 / 2.4) / math.log(544_262 / 51_723), rel=0.01)
    texts = [element.text for element in drawn.iter(f"{name}text")]
    assert "caption <with> marks" in texts and "1/11.2" in texts and "10.5" in texts
