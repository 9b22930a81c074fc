"""A real Prometheus on loopback: the rules and the dashboard of the chart, and targets that a test gives.

The programs `prometheus` and `promtool` are built from their Go module by `make prometheus-tools`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build" / "prometheus"
CHART = ROOT / "charts" / "tallystick"
RELEASE, NAMESPACE = "mq", "system"
_INTERVAL = "500ms"
_START_S = 60.0
_RATE_INTERVAL = "10s"
"""Value of Grafana's `$__rate_interval`: several scrapes of this server."""


def tool(name: str) -> str:
    """The path of a program; "" if it does not exist."""
    built = TOOLS / name
    return str(built) if built.exists() else shutil.which(name) or ""


def chart_rules(folder: Path) -> Path:
    """Writes the rules of the chart, as helm renders them, into a file of Prometheus' format."""
    words = ["--namespace", NAMESPACE, "--kube-version=1.34.0", "--api-versions=monitoring.coreos.com/v1"]
    words += ["--set", "monitoring.prometheusRule.enabled=true"]
    said = subprocess.run(
        [tool("helm"), "template", RELEASE, str(CHART), *words], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    (found,) = (each for each in yaml.safe_load_all(said.stdout) if each and each["kind"] == "PrometheusRule")
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": found["spec"]["groups"]}))
    return path


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Title of the panel and expression of each query, with all namespaces and clusters chosen."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    chosen = {"namespace": ".*", "cluster": ".*", "__rate_interval": _RATE_INTERVAL}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], re.sub(r"\$(\w+)", lambda match: chosen[match[1]], target["expr"])


def dashboard_variables() -> Iterator[tuple[str, str]]:
    """Metric and label of each variable whose values Grafana takes from Prometheus."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    for variable in dashboard["templating"]["list"]:
        if match := re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", str(variable["query"])):
            yield match[1], match[2]


@dataclass(frozen=True, slots=True)
class Target:
    """What is scraped, and the labels that Prometheus adds as the ServiceMonitors of the chart tell it."""

    address: str
    labels: Mapping[str, str]


class Prometheus:
    """A context manager. `targets` may be replaced while it runs."""

    def __init__(self, folder: Path, rules: Path, targets: list[Target]) -> None:
        self._folder = folder
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        self._targets = folder / "targets.json"
        self.scrape(targets)
        scrape = {
            "job_name": "targets",
            "honor_labels": True,
            "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}],
        }
        times = {"scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL, "evaluation_interval": _INTERVAL}
        whole = {"global": times, "rule_files": [str(rules)], "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(whole))

    def scrape(self, targets: list[Target]) -> None:
        found = [{"targets": [each.address], "labels": dict(each.labels)} for each in targets]
        new = self._targets.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.replace(self._targets)

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    tool("prometheus"),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    async def started(self) -> None:
        """AssertionError: it ended, or does not answer in a minute."""
        async with asyncio.timeout(_START_S):
            while True:
                assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()[-2000:]
                try:
                    await asyncio.to_thread(self._get, "/-/ready")
                    return
                except OSError:
                    await asyncio.sleep(0.1)

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query. AssertionError: Prometheus refuses it, and why."""
        return list((await self._data("/api/v1/query", query=expression))["result"])

    async def label_values(self, metric: str, label: str) -> list[str]:
        return list(await self._data(f"/api/v1/label/{label}/values", **{"match[]": metric}))

    async def rules(self) -> list[dict[str, Any]]:
        """All rules, with their health and the time of their last evaluation."""
        found = await self._data("/api/v1/rules")
        return [rule for group in found["groups"] for rule in group["rules"]]

    async def alerts(self) -> set[str]:
        """Names of the alerts whose expression has a series, whether or not their time has passed."""
        return {each["labels"]["alertname"] for each in (await self._data("/api/v1/alerts"))["alerts"]}

    async def _data(self, path: str, **query: str) -> Any:
        said = json.loads(await asyncio.to_thread(self._get, f"{path}?{urllib.parse.urlencode(query)}"))
        assert said["status"] == "success", said
        return said["data"]

    def _get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{self._address}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                raise ConnectionError("not ready") from error
            raise AssertionError(f"{path}: {error.read().decode()}") from error
