"""The chart as it lies in the repository, without helm: versions, the copied definitions, values and their schema."""

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from metrics_page import documented, documented_series

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tallystick"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def test_the_chart_has_the_products_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version), "run `make chart`"


def test_the_chart_has_the_definitions() -> None:
    there = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    copied = {path.name: path.read_text() for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert copied == there, "run `make chart`"
    for name, text in there.items():  # what templates/crds.yaml takes a definition's name from
        assert yaml.safe_load(text)["metadata"]["name"] == f"{name.removesuffix('.yaml')}s.tallystick.dev"


def errors(values: dict[str, Any]) -> list[str]:
    return [".".join(map(str, error.absolute_path)) for error in Draft7Validator(SCHEMA).iter_errors(values)]


def test_the_values_are_as_their_schema_says() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert errors(VALUES) == []


def schema_paths(schema: dict[str, Any], path: str = "") -> set[str]:
    found = set()
    for name, field in schema.get("properties", {}).items():
        found |= {f"{path}{name}"} | schema_paths(field, f"{path}{name}.")
    return found


def value_paths(values: dict[str, Any], path: str = "") -> set[str]:
    found = set()
    for name, value in values.items():
        found.add(f"{path}{name}")
        if isinstance(value, dict) and f"{path}{name}" not in ("sampleCluster.spec", "resources"):
            found |= value_paths(value, f"{path}{name}.")
    return found


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    in_schema = {path for path in schema_paths(SCHEMA) if not path.startswith("resources.")}
    in_values = {path for path in value_paths(VALUES) if not path.endswith("grafana_dashboard")}
    assert in_schema == in_values


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", "two"),
        ("replicas", 6),
        ("image.operator.tag", "a b"),
        ("image.node.repository", ""),
        ("image.pullPolicy", "Sometimes"),
        ("watchNamespaces", "shop"),
        ("watchNamespaces", ["Shop"]),
        ("crds.install", "true"),
        ("logLevel", "info"),
        ("env", [{"name": "WORKERS", "value": 8}]),
        ("monitoring.serviceMonitor.interval", "soon"),
        ("monitoring.prometheusRule.diskUsageRatio", 80),
        ("monitoring.prometheusRule.sendSuccessRatio", 1),
        ("monitoring.prometheusRule.sendLatencySeconds", 0.3),
        ("monitoring.prometheusRule.runbookUrl", ""),
        ("monitoring.prometheusRule.runbookUrl", "https://a b"),
        ("monitoring.prometheusRule.runbookUrl", 'a"b'),
        ("sampleCluster.name", "Sample"),
        ("podLabels", {"a": 1}),
        ("replica", 1),
        ("fullnameOverride", "UPPER"),
        ("fullnameOverride", "1st"),
        ("fullnameOverride", "a.b"),
        ("nameOverride", "My-Name"),
        ("nameOverride", "name-"),
        ("image.tag", "1"),
    ],
)
def test_the_schema_refuses_wrong_values(path: str, value: Any) -> None:
    values = copy.deepcopy(VALUES)
    *parents, last = path.split(".")
    target = values
    for name in parents:
        target = target[name]
    target[last] = value
    assert errors(values) != []


def test_namespaces_go_with_the_scope() -> None:
    assert errors({**VALUES, "watchNamespaces": ["shop"]}) == []
    assert errors({**VALUES, "clusterWide": True, "secretNamespaces": ["shop"]}) == []
    assert errors({**VALUES, "clusterWide": True, "watchNamespaces": ["shop"]}) != []
    assert errors({**VALUES, "secretNamespaces": ["shop"]}) != []


@pytest.mark.parametrize("path", ["templates/prometheusrule.yaml", "files/dashboard.json"])
def test_alerts_and_dashboard_ask_for_metrics_of_the_reference(path: str) -> None:
    """docs/metrics.md, which another test compares with what processes expose."""
    text = (CHART / path).read_text()
    asked = set(re.findall(r"\b((?:rocketmq|tally|tallystick_operator|process)_[a-z0-9_]+)\b", text))
    assert len(asked) > 8
    assert asked - documented_series() == set()


def expressions() -> dict[str, str]:
    """Returns all queries of rules and dashboard, by where they are, without what helm fills in."""
    rules = (CHART / "templates" / "prometheusrule.yaml").read_text()
    found = re.findall(
        r"- (?:alert|record): ([\w:]+).*\n +expr: (?:\|-\n)?((?:.*\n)+?)(?= +(?:for|labels|- |#)|\{)", rules
    )
    queries = {name: re.sub(r"\{\{.*?\}\}", "", text).replace("{ ", "{").replace("{,", "{") for name, text in found}
    for panel in json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            queries[f"{panel['title']} {target['refId']}"] = target["expr"]
    return queries


RECORDS = re.compile(r"\btallystick:[\w:]+")
SERIES = re.compile(r"\b((?:rocketmq|tally|tallystick_operator|process)_[a-z0-9_]+)\b(?:\{([^}]*)\})?")
OF_TARGETS = {"namespace", "pod", "job"}
"""Labels that Prometheus adds."""


def labels_of(series: str) -> set[str]:
    """Returns the labels of a series, by docs/metrics.md."""
    found = documented()
    name = series if series in found else re.sub("_(bucket|sum|count)$", "", series)
    return set(found[name][1]) | OF_TARGETS | ({"le"} if series.endswith("_bucket") else set())


@pytest.mark.parametrize("name", expressions())
def test_queries_ask_for_labels_that_their_metrics_have(name: str) -> None:
    """Prometheus answers a query for a label that does not exist with nothing, and no alert fires."""
    query = expressions()[name]
    asked = SERIES.findall(query)
    assert asked or RECORDS.search(query) or "up{" in query
    for series, selectors in asked:
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selectors)) - labels_of(series) == set(), series
    made = set(re.findall(r'label_replace\(.*?, "(\w+)",', query))
    known = set[str]().union(*(labels_of(series) for series, _ in asked), made)
    grouped = {label for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in part.split(", ")}
    assert RECORDS.search(query) or grouped - known == set()


def test_all_queries_are_looked_at() -> None:
    rules = (CHART / "templates" / "prometheusrule.yaml").read_text()
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    count = len(re.findall("^ +expr:", rules, re.MULTILINE))
    assert len(expressions()) == count + sum(len(panel["targets"]) for panel in dashboard["panels"])


def test_legends_have_labels_that_their_queries_keep() -> None:
    for panel in json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            kept = {label for part in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in part.split(", ")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, panel["title"]


def test_the_dashboard_is_one() -> None:
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["description"] and panel["targets"] for panel in dashboard["panels"])


def test_no_text_of_an_alert_begins_with_a_brace() -> None:
    """What `{{ "{{ $labels.pod }}" }}` renders to is a mapping in YAML where a value begins with it."""
    path = CHART / "templates" / "prometheusrule.yaml"
    found = [line for line in path.read_text().splitlines() if re.match(r'\s*(summary|description): \{\{ "\{\{', line)]
    assert found == []
