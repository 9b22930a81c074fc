"""Runs a job's items beside their volumes, and keeps book of where each was read.

An item says by `source` which store it is of. Spark is told the host of the worker that has that volume; wherever the
task then runs, it looks: on the worker of this node the volume is mounted and is read (`local`), anywhere else the
store is read from its broker (`http`, `mirror.py`). Placement is for speed alone; either way the answer is the same.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tallystick.spark.cluster.mirror import Mirror
from tallystick.spark.cluster.plan import Place
from tallystick.spark.cluster.progress import PLANNING, READING, Progress
from tallystick.spark.jobs.runner import Runner
from tallystick.spark.planning import PlanTask
from tallystick.spark.presence import bringing
from tallystick.spark.store_client import StoreClientError
from tallystick.spark.volume import VolumeError
from tallystick.store._kernel import DamageError

NODE_VARIABLE = "TALLYSTICK_NODE"
"""In a worker's environment: whose volume it has."""
HOST_VARIABLE = "SPARK_LOCAL_HOSTNAME"
LOCAL, HTTP = "local", "http"

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of an item, and where. `error`: in place of a result, what another try would meet as well, in words."""

    node: str
    via: str
    host: str
    result: Any
    error: str | None = None


class SourceError(Exception):
    """A store could not be read, as the one who tried says; `node` is whose."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node = node


def visit(pair: tuple[Any, Place], function: Callable[[Any], Any]) -> Visit:
    """`function` of an item, here. StoreClientError: the broker does not answer, which another try may find better."""
    item, place = pair
    host = os.environ.get(HOST_VARIABLE) or socket.gethostname()
    found = partial(Visit, place.node, host=host)
    try:
        if os.environ.get(NODE_VARIABLE) == place.node and Path(place.root).is_dir():
            return found(via=LOCAL, result=function(item))
        with Mirror(place.http) as mirror, bringing(mirror):
            here = str(mirror.root)
            result = function(relocated(item, place.root, here))
            return found(via=HTTP, result=relocated(result, here, place.root))
    except StoreClientError:
        raise
    except (OSError, ValueError, VolumeError, DamageError) as error:
        return found(via="", result=None, error=str(error) or repr(error))


def relocated(value: Any, old: str, new: str) -> Any:
    """`value` with every path in it that is `old` or below it put below `new`: texts, in containers and dataclasses."""
    move = partial(relocated, old=old, new=new)
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(old + "/") else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: move(getattr(value, each.name)) for each in fields(value)})
    if type(value) in (list, tuple, set):
        return type(value)(move(each) for each in value)
    if type(value) is dict:
        return {key: move(each) for key, each in value.items()}
    return value


@dataclass
class Book:
    """How many items of each node were read in which way, and on which hosts."""

    visits: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)

    def add(self, visit: Visit) -> None:
        self.visits.setdefault(visit.node, Counter())[visit.via, visit.host] += 1

    def via(self, node: str) -> str | None:
        """`local`, `http` or `mixed`; None: nothing was read of it."""
        ways = {via for via, _ in self.visits.get(node, ())}
        return None if not ways else ways.pop() if len(ways) == 1 else "mixed"

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"node": node, "via": via, "host": host, "items": items}
            for node, counts in sorted(self.visits.items())
            for (via, host), items in sorted(counts.items())
        ]


class PlacedRunner:
    """A `Runner` whose items go where `places` (by the items' source) says. SourceError: a store cannot be read.

    `progress`: told of each step, and of each item that is done. `hosts`: those that have an executor now, asked at
    each step; None: all have. What prefers a host that has none would wait for it while the others' tasks last.
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

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        pairs = self._placed(items)
        return list(self._results(self._runner(partial(visit, function=function), pairs)))

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        pairs = self._placed(items)
        return self._results(self._runner.stream(partial(visit, function=function), pairs))

    def _placed(self, items: Sequence[Item]) -> list[tuple[Item, Place]]:
        planning = any(isinstance(item, PlanTask) for item in items)
        self._progress.step(PLANNING if planning else READING, len(items))
        places = dict(self._places)
        if self._hosts is not None:
            there = self._hosts()
            places = {
                name: place if place.host in there else replace(place, host=None) for name, place in places.items()
            }
        return [(item, places[getattr(item, "source")]) for item in items]  # noqa: B009 -- every item has one

    def _results(self, visits: Iterable[Visit]) -> Iterator[Any]:
        for each in visits:
            if each.error is not None:
                raise SourceError(each.node, each.error)
            self.book.add(each)
            self._progress.advance()
            yield each.result
