"""Looks at the pods of a cluster during an event: how many were away at a time, and who was replaced when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.api import ApiError
from harness.brokers import Brokers
from harness.release import is_ready

_LOOK_S = 0.25


@dataclass(slots=True)
class Watched:
    """`replaced`: nodes in the order in which their pods became others. `unready`: each set that was seen, once."""

    brokers: Brokers
    replaced: list[str] = field(default_factory=list)
    unready: list[tuple[str, ...]] = field(default_factory=list)
    _uids: dict[str, str] = field(default_factory=dict)

    @property
    def most_unready(self) -> int:
        return max((len(names) for names in self.unready), default=0)

    def look(self) -> None:
        """ApiError."""
        pods = self.brokers.pods()
        for name, pod in pods.items():
            uid = pod["metadata"]["uid"]
            if self._uids.setdefault(name, uid) != uid:
                self._uids[name] = uid
                self.replaced.append(name)
        away = {name for name, pod in pods.items() if not is_ready(pod)} | (self._uids.keys() - pods.keys())
        names = tuple(sorted(away))
        if names and names not in self.unready:
            self.unready.append(names)

    def look_for(self, seconds: float) -> None:
        """So long, in which something must not happen."""
        time.sleep(seconds)


@contextmanager
def watching(brokers: Brokers) -> Iterator[Watched]:
    """Calls `look` several times a second in a separate thread, until the context ends."""
    watched, done = Watched(brokers), threading.Event()
    watched.look()

    def work() -> None:
        while not done.wait(_LOOK_S):
            try:
                watched.look()
            except ApiError:
                continue  # the next look tells
        watched.look()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        done.set()
        thread.join(60)
