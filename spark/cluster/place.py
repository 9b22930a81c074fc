"""Runs the items of a job beside their volumes, and records where each was read.

The `source` of an item names its store. Spark gets the host of the worker that has the store's volume. A task on that
worker reads the mounted volume (`local`); a task on any other worker reads the store from its broker (`http`,
`mirror.py`). Each worker reads backups alike (`backup`). The result is the same; the placement only makes it faster.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from tallystick.spark.access import Access
from tallystick.spark.cluster.plan import Place
from tallystick.spark.cluster.progress import PLANNING, READING, Progress
from tallystick.spark.job_stores import BACKUP, HTTP, LOCAL
from tallystick.spark.places import address_of, reached, relocated
from tallystick.spark.planning import PlanTask
from tallystick.spark.runner import Runner
from tallystick.spark.store_client import StoreClientError
from tallystick.spark.volume import Source, VolumeError
from tallystick.store._kernel import DamageError

NODE_VARIABLE = "TALLYSTICK_NODE"
"""Variable in a worker's environment: the node whose volume it has."""
HOST_VARIABLE = "SPARK_LOCAL_HOSTNAME"

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Visit:
    """The result of an item and where it was read. `error`: instead of a result, an error that a retry would repeat."""

    node: str
    via: str
    host: str
    result: Any
    error: str | None = None


class SourceError(Exception):
    """The store of `node` could not be read. The text is that of the task."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node = node


def visit(pair: tuple[Any, Place], function: Callable[[Any], Any]) -> Visit:
    """Runs `function` of an item here. StoreClientError: the broker does not answer; a retry may succeed."""
    item, place = pair
    host = os.environ.get(HOST_VARIABLE) or socket.gethostname()
    found = partial(Visit, place.node, host=host)
    try:
        if os.environ.get(NODE_VARIABLE) == place.node and Path(place.root).is_dir():
            return found(via=LOCAL, result=function(item))
        root, via = (place.root, BACKUP) if place.http is None else (address_of(place.http), HTTP)
        with reached(Source(place.node, root, access=Access.of(None, None, None, None))) as store:
            here = relocated(item, place.root, store.here)
            return found(via=via, result=relocated(function(here), store.here, place.root))
    except StoreClientError:
        raise
    except (OSError, ValueError, VolumeError, DamageError) as error:
        return found(via="", result=None, error=str(error) or repr(error))


@dataclass
class Book:
    """Counts how the items of each node were read, and on which hosts."""

    visits: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)

    def add(self, visit: Visit) -> None:
        self.visits.setdefault(visit.node, Counter())[visit.via, visit.host] += 1

    def via(self, node: str) -> str | None:
        """Returns `local`, `http` or `mixed`; None: nothing was read from the node's store."""
        ways = {via for via, _ in self.visits.get(node, ())}
        return None if not ways else ways.pop() if len(ways) == 1 else "mixed"

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"node": node, "via": via, "host": host, "items": items}
            for node, counts in sorted(self.visits.items())
            for (via, host), items in sorted(counts.items())
        ]


class PlacedRunner:
    """A `Runner` that places items according to `places` (by their source). SourceError: a store cannot be read.

    `progress`: informed of each step and each finished item. `hosts`: returns the hosts that have an executor now;
    None: all have one. A task that prefers a host without an executor would wait for it as long as other tasks run. If
    several workers have a volume, its items take turns with them.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        runner_of: Callable[[Callable[[Any], str | None]], Runner],
        progress: Progress,
        hosts: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._places = places
        self._runner = runner_of(lambda pair: pair[1].host)
        self._progress = progress
        self._hosts = hosts
        self.book = Book()

    @property
    def at_once(self) -> int:
        return self._runner.at_once

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        pairs = self._placed(items)
        return list(self._results(self._runner(partial(visit, function=function), pairs)))

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        pairs = self._placed(items)
        return self._results(self._runner.stream(partial(visit, function=function), pairs))

    def _placed(self, items: Sequence[Item]) -> list[tuple[Item, Place]]:
        planning = any(isinstance(item, PlanTask) for item in items)
        self._progress.step(PLANNING if planning else READING, len(items))
        there = None if self._hosts is None else self._hosts()
        turns = {
            name: cycle([host for host in place.hosts if there is None or host in there] or [None])
            for name, place in self._places.items()
        }
        names = [getattr(item, "source") for item in items]  # noqa: B009 -- every item has one
        return [
            (item, replace(self._places[name], host=next(turns[name]))) for item, name in zip(items, names, strict=True)
        ]

    def _results(self, visits: Iterable[Visit]) -> Iterator[Any]:
        for each in visits:
            if each.error is not None:
                raise SourceError(each.node, each.error)
            self.book.add(each)
            self._progress.advance()
            yield each.result
