"""An export during which something else happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tallystick.spark.jobs.export_files import MergeTask
from tallystick.spark.runner import Inline


class Meanwhile(Inline):
    """Something happens when everything was read and written."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def __call__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        results = super().__call__(function, items)
        if items and isinstance(items[0], MergeTask):
            self._happens()
        return results
