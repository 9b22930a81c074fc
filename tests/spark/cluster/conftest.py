"""Clusters for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make(places: list[dict[str, Any]], **more: Any) -> Cluster:
        made.append(Cluster(tmp_path, places, **more))
        return made[-1]

    yield make
    for each in made:
        each.end()
