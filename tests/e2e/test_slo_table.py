"""The table of changes of leader: percentiles of all samples, batches that add up, no rows without samples."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "e2e" / "kind" / "harness" / "slo.py"


@pytest.fixture
def slo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module under a name that no other module has: `harness` is also the name of a folder of the benchmark."""
    spec = importlib.util.spec_from_file_location("e2e_kind_slo", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "e2e_kind_slo", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("changes", "sizes"), [(30, [10, 10, 10]), (3, [3]), (11, [10, 1]), (0, [])])
def test_batches_add_up(slo: Any, changes: int, sizes: list[int]) -> None:
    assert list(slo.batches(changes)) == sizes


def test_the_table_has_percentiles_of_all_samples(slo: Any, tmp_path: Path) -> None:
    row = slo.Row("pod deleted", [0.001 * number for number in range(1, 201)], failed=2, acknowledged=12345, lost=0)
    rows = [row, slo.Row("planned transfer")]
    assert slo.table(rows).splitlines() == [
        "| change of leader | changes | p50 | p99 | longest | failed sends | acknowledged | lost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| pod deleted | 200 | 100 ms | 198 ms | 200 ms | 2 | 12,345 | 0 |",
    ]
    slo.write(rows, tmp_path / "slo.json")
    assert json.loads((tmp_path / "slo.json").read_text())["changes"]["pod deleted"]["outages_s"] == row.outages_s


def test_of_few_samples_the_99th_percentile_is_the_highest(slo: Any) -> None:
    assert slo.percentile([3.0, 1.0, 2.0], 0.99) == 3.0 and slo.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
