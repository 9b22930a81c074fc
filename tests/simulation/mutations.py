"""Bugs to be found: small changes of the product's text, as a programmer might make them with good intentions.

A simulation that finds nothing is worth what it would have found. Each mistake states after how many seeds of which
profile it is found at the latest, and has a test. The text that a mutation replaces must be in its module exactly once:
a test fails if the product changes there, and then the mutation has to be adapted.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """In one function of a module (`Class.method` or `function`), text that is replaced."""

    module: str
    function: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """`rules`: those that it breaks. `seeds`: after how many runs of `profile` that shows at the latest,
    from seed `first` on."""

    name: str
    rules: tuple[str, ...]
    profile: str
    edits: tuple[Edit, ...]
    seeds: int = 100
    first: int = 0


class MutationError(Exception):
    """The product does not have the text that a mutation replaces, or has it more than once."""


def plant(mutation: Mutation) -> None:
    """From here on, in this process, the product has the mistake."""
    for edit in mutation.edits:
        _replace(edit)


def _replace(edit: Edit) -> None:
    module = importlib.import_module(edit.module)
    owner: Any = module
    *path, name = edit.function.split(".")
    for part in path:
        owner = getattr(owner, part)
    held = inspect.getattr_static(owner, name)
    function: FunctionType = held.__func__ if isinstance(held, classmethod | staticmethod) else held  # type: ignore[assignment]
    source = _source(module, edit.function)
    if source.count(edit.old) != 1:
        raise MutationError(f"{edit.module}.{edit.function} has {source.count(edit.old)} times: {edit.old}")
    names: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + source.replace(edit.old, edit.new), edit.function, "exec")
    exec(code, module.__dict__, names)
    function.__code__ = names[name].__code__


def _source(module: ModuleType, function: str) -> str:
    """The text of one function, without indentation and decorators."""
    text = Path(inspect.getsourcefile(module) or "").read_text()
    body: list[Any] = ast.parse(text).body
    *path, name = function.split(".")
    for part in path:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part)
    node = next(node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name)
    return textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]) + "\n")


_SAVING = "tallystick.node.broker.tables.saving"
MUTATIONS = (
    Mutation(
        "a send does not wait for its topic's row",
        ("A1",),
        "sync",
        (
            Edit(_SAVING, "SavedTable.row_durable", "return row not in self._unsaved", "return True"),
            Edit(_SAVING, "SavedTable._save_quietly", "while self.dirty:", "if self.dirty:"),
        ),
        first=2,
    ),
    Mutation(
        "SYNC_FLUSH answers what is written",
        ("A1", "A2", "A3", "A4"),
        "power",
        (
            Edit(
                "tallystick.store.engine.appender",
                "Appender.write",
                "            self._request_sync()\n",
                "            self._request_sync()\n            self._deliver(self.log.release(written, wall_ms()))\n",
            ),
        ),
        first=3,
    ),
    Mutation(
        "recovery believes queues that lack units",
        ("A1", "A2", "A3", "A4", "L1"),
        "rot",
        (
            Edit(
                "tallystick.store.engine.queue_recovery",
                "QueueRecovery.add",
                "self.broken.setdefault(queue, reason)",
                "pass",
            ),
        ),
        first=24,
    ),
    Mutation(
        "recovery ends the log at a damaged record",
        ("A1", "A2", "A3", "A4"),
        "rot",
        (Edit("tallystick.store.engine.recovery", "_Recovery._behind_damage", "return step.pos", "return None"),),
        first=27,
    ),
    Mutation(
        "a lock is granted to every client",
        ("K1",),
        "sync",
        (
            Edit(
                "tallystick.node.broker.tables.locks",
                "QueueLocks.try_lock_batch",
                "if owner is None or owner == client_id:",
                "if True:",
            ),
        ),
        first=1,
    ),
    Mutation(
        "an offset is never set back",
        ("O2",),
        "sync",
        (
            Edit(
                "tallystick.node.broker.tables.offsets",
                "ConsumerOffsets.commit",
                "self._set(group, topic, queue_id, offset)",
                "self._set(group, topic, queue_id, max(offset, self.query(group, topic, queue_id)))",
            ),
        ),
        first=5,
    ),
    Mutation(
        "a leader does not tell name servers that it leads",
        ("N1",),
        "group",
        (
            Edit(
                "tallystick.node.broker.broker",
                "Broker.take_role",
                "self.settings = self.registration.settings = with_role(",
                "self.settings = with_role(",
            ),
        ),
        first=2,
    ),
    Mutation(
        "a delayed message loses its properties",
        ("A1",),
        "sync",
        (
            Edit(
                "tallystick.node.broker.services.delay",
                "again",
                "properties=record.properties,",
                'properties=record.properties.replace("TAGS", "GATS"),',
            ),
        ),
        first=5,
    ),
    Mutation(
        "a delivery does not name the timer that it ends",
        ("A2",),
        "timers",
        (
            Edit(
                "tallystick.node.broker.services.timer_messages",
                "delivered",
                "names[properties.TIMER_ORIGIN] = _origin(record)",
                "pass",
            ),
        ),
        seeds=10,
    ),
    Mutation(
        "a recall is acknowledged and not stored",
        ("A12",),
        "timers",
        (
            Edit(
                "tallystick.node.broker.services.timers",
                "TimerService._recall",
                "results = await self._store.writes.put_all([recalled(record, extra) for record in records])",
                "timers.index.give_all_back(); results = [PutResult(PutStatus.PUT_OK)]",
            ),
        ),
        seeds=10,
    ),
    Mutation(
        "a timer is delivered up to a second early",
        ("A11",),
        "timers",
        (
            Edit(
                "tallystick.node.broker.services.timers",
                "TimerService.step",
                "rows = timers.index.take_due(now_ms, WINDOW)",
                "rows = timers.index.take_due(now_ms + 1000, WINDOW)",
            ),
        ),
        seeds=10,
    ),
    Mutation(
        "pulls of a closed connection stay",
        ("L6",),
        "sync",
        (Edit("tallystick.node.broker.broker", "Broker._connection_closed", "self.holds.release(connection)", "pass"),),
    ),
    Mutation(
        "memory of a closed connection stays charged",
        ("L6",),
        "sync",
        (
            Edit(
                "tallystick.node.remoting.connection",
                "Connection.connection_lost",
                "self.endpoint.budget.charge(self, 0, keep=self.endpoint.cut_last)",
                "pass",
            ),
        ),
    ),
    Mutation(
        "a header that cannot be read is not expected",
        ("X1",),
        "sync",
        (
            Edit(
                "tallystick.node.remoting.connection",
                "Connection._dispatch",
                "except HeaderError as error:",
                "except ZeroDivisionError as error:",
            ),
        ),
        first=1,
    ),
    Mutation(
        "recovery cuts an index in front of the mark",
        ("A10",),
        "power",
        (
            Edit(
                "tallystick.store.engine.recovery",
                "_Recovery._cut_derived",
                "self._restore_index(point, cache_lost)",
                "self._restore_index(point._replace(index_count=point.index_count // 4), cache_lost)",
            ),
        ),
        first=74,
        seeds=200,
    ),
)
BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
