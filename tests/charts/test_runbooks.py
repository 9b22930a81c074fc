"""Each alert has a page in docs/runbooks/, and what the pages name exists: metrics, commands, fields, messages."""

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from metrics_page import documented, documented_series

from tallystick.node.cli import _parser as parser_of_tally
from tallystick.operator.core.kube import GROUP

ROOT = Path(__file__).resolve().parents[2]
RULES = (ROOT / "charts" / "tallystick" / "templates" / "prometheusrule.yaml").read_text()
RUNBOOKS = ROOT / "docs" / "runbooks"
INDEX = (RUNBOOKS / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in RUNBOOKS.glob("*.md") if path.stem != "README"}
TEXTS = PAGES | {"README": INDEX}
PRODUCT = ("node", "operator", "replication", "store")
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
VARIES = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for a part of a message that its program fills in."""


def rules(kind: str) -> dict[str, str]:
    """Returns the text of each rule of a kind (`alert`, `record`) in the template, by its name."""
    parts = re.split(r"^ +- (alert|record): ([\w:]+).*$", RULES, flags=re.MULTILINE)[1:]
    return {name: text for found, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True) if found == kind}


def alerts() -> dict[str, str]:
    """Returns the text of each alert."""
    return rules("alert")


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert len(alerts()) > 20
    assert sorted(PAGES) == sorted(alerts())


@pytest.mark.parametrize("name", alerts())
def test_each_alert_leads_to_its_page(name: str) -> None:
    assert re.findall(r"runbook_url: (.*)", alerts()[name]) == [f'"{{{{ $runbooks }}}}/{name}.md"']


@pytest.mark.parametrize("name", PAGES)
def test_each_page_has_its_parts(name: str) -> None:
    text = PAGES[name]
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE) == [name, *HEADINGS]
    parts = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert all(len(part.split()) > 5 for part in parts)
    assert "Do not " in parts[3] or "Never " in parts[3], "a page says what makes it worse"
    assert len(text.splitlines()) <= 80, "a page that is read in a hurry is short"


def test_the_index_lists_all_alerts_with_their_severity() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \| `[^`]+` \|$", INDEX, re.MULTILINE)
    severities = {name: re.findall(r"severity: (\w+)", text) for name, text in alerts().items()}
    assert [(name, [severity]) for name, _, severity in rows] == list(severities.items())
    assert all(name == page for name, page, _ in rows)


def test_the_folder_is_a_value_with_a_default() -> None:
    values = yaml.safe_load((ROOT / "charts" / "tallystick" / "values.yaml").read_text())
    assert (ROOT / values["monitoring"]["prometheusRule"]["runbookUrl"]).samefile(RUNBOOKS)


METRIC = re.compile(r"\b((?:rocketmq|tally|tallystick_operator|process)_[a-z0-9_]+)\b")


RECORD = re.compile(r"\b(tallystick:\w+:\w+)")


@pytest.mark.parametrize("name", TEXTS)
def test_metrics_of_the_pages_exist(name: str) -> None:
    """Histograms have the name that the reference shows as well, which is that of no series."""
    assert set(METRIC.findall(TEXTS[name])) - documented_series() - documented().keys() == set()
    assert set(RECORD.findall(TEXTS[name])) - rules("record").keys() == set()


def test_recorded_series_have_a_rule_and_a_use() -> None:
    asked = {name for text in alerts().values() for name in RECORD.findall(text)}
    assert asked == rules("record").keys()


def asks_for(name: str) -> set[str]:
    """Returns the metrics of an alert, also those behind recorded series, without the suffixes of histograms."""
    texts = [alerts()[name], *(rules("record")[record] for record in RECORD.findall(alerts()[name]))]
    return {re.sub("_(bucket|count|sum)$", "", metric) for text in texts for metric in METRIC.findall(text)}


def test_most_pages_name_the_metric_of_their_alert() -> None:
    """The page of an alert on the series that Prometheus itself makes names none of ours."""
    without = {name for name in alerts() if not asks_for(name) & set(METRIC.findall(PAGES[name]))}
    assert without == {"TallystickMetricsMissing"}


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Returns the commands of the pages: lines of code blocks behind a `$`, with their continuations, and `code`."""
    found = []
    for text in TEXTS.values():
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            found += re.findall(r"^\$ (.*)$", block, re.MULTILINE)
        rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        found += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]
    return [command for command in found if re.match(r"(kubectl|ask|tally|for) ", command)]


def understood(arguments: list[str]) -> bool:
    """Whether `tally` has this command, alone or with a folder."""
    for words in (arguments, [*arguments, "DIR"]):
        try:
            return isinstance(parser_of_tally().parse_args(words), argparse.Namespace)
        except SystemExit:
            continue
    return False


def test_commands_of_tally_exist() -> None:
    asked = [match[1] for command in commands() if (match := re.search(r"(?:^|-- )tally ([^|;]+)", command))]
    assert len(asked) > 5
    assert [words for words in asked if not understood(shlex.split(words))] == []


def test_names_for_kubectl_exist() -> None:
    """Kinds and short names of the definitions, labels and annotations, and conditions."""
    ours: set[str] = set()
    for path in (ROOT / "crds").glob("*.yaml"):
        names = yaml.safe_load(path.read_text())["spec"]["names"]
        ours |= {names["plural"], names["singular"], *names.get("shortNames", ())}
    theirs = {"pod", "pods", "pvc", "pv", "svc", "lease", "events", "deploy", "statefulsets", "deploy/tallystick"}
    kinds = [
        kind
        for command in commands()
        for match in re.findall(r"kubectl (?:get|describe|annotate|patch|edit|delete|scale) ([a-z,/]+)", command)
        for kind in match.split(",")
    ]
    assert len(kinds) > 30
    assert set(kinds) - ours - theirs == set()
    source = " ".join(path.read_text() for path in (ROOT / "operator").rglob("*.py"))
    for text in TEXTS.values():
        for key in re.findall(rf"(?<!\.)\b{re.escape(GROUP)}/([a-z-]+)", text):
            assert f'/{key.removesuffix("-")}"' in source, key  # kubectl removes a key with a hyphen behind it


class _Answers(BaseHTTPRequestHandler):
    """Answers as a broker: 401 without the token, 503 for /readyz."""

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer secret":
            self.send_error(401)
            return
        self.send_response(503 if self.path == "/readyz" else 200)
        self.end_headers()
        self.wfile.write(b"no leader is known" if self.path == "/readyz" else b'{"phase": "ready"}')

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize(("path", "status", "shown"), [("/node", 0, '{"phase": "ready"}'), ("/readyz", 1, "no leader")])
def test_the_function_ask_asks_a_broker(tmp_path: Path, path: str, status: int, shown: str) -> None:
    """With a `kubectl exec` that runs the command here. The function itself is the text of the page."""
    (function,) = re.findall(r"```sh\n(ask\(\) \{.*?\n\}\n)", INDEX, re.DOTALL)
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "kubectl").write_text(
        '#!/bin/sh\n[ "$*" != "${*#exec -n shop pod -c broker -- }" ] && shift 7 && exec "$@"\n'
    )
    (tmp_path / "kubectl").chmod(0o755)
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        script = function.replace("/etc/tallystick-admin/token", str(tmp_path / "token"))
        script = script.replace("8080", str(server.server_port)) + f"ask shop pod {path}\n"
        path_of_programs = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        ran = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=60, env={"PATH": path_of_programs}
        )
        server.shutdown()
    assert (ran.returncode, ran.stderr) == (status, "")
    assert ran.stdout.startswith(shown)


# -- fields and messages ----------------------------------------------------------------------------------------------


@cache
def literals() -> tuple[frozenset[str], str]:
    """Returns the strings of the product's code, and all of them as one text in which `VARIES` is what varies."""
    strings: set[str] = set()
    for path in (path for part in PRODUCT for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [each.value if isinstance(each, ast.Constant) else VARIES for each in node.values]
                strings.add("".join(map(str, parts)))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                strings.add(node.target.id)  # a field that `asdict` shows
    return frozenset(strings), re.sub(r"%[.0-9]*[a-z]", VARIES, "\n".join(sorted(strings)))


@pytest.mark.parametrize("name", TEXTS)
def test_fields_of_json_exist(name: str) -> None:
    filters = re.findall(r"jq (?:-c )?'([^']*)'", TEXTS[name])
    fields = {field for each in filters for field in re.findall(r"\.([A-Za-z_]+)", re.sub(r'"[^"]*"', "", each))}
    assert fields - literals()[0] == set()


@pytest.mark.parametrize("name", TEXTS)
def test_messages_are_those_of_the_programs(name: str) -> None:
    """A text in double quotes is a message. `...` is what varies; the rest is in the code, word for word."""
    prose = re.sub(r"`[^`]*`", "", re.sub(r"```.*?```", "", TEXTS[name], flags=re.DOTALL))
    said = literals()[1]
    for message in re.findall(r'"([^"]+)"', prose):
        for piece in " ".join(message.split()).split("..."):
            assert piece.strip() in said, f"{message!r}: no program says {piece.strip()!r}"


def test_examples_of_json_are_json() -> None:
    for text in PAGES.values():
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            for example in re.findall(r"^\{$.*?^\}$", block, re.DOTALL | re.MULTILINE):
                shown: dict[str, Any] = json.loads(example)
                assert shown.keys() <= literals()[0]
