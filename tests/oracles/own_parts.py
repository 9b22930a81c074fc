"""What fakes of a message store share."""

from __future__ import annotations

from typing import Any


class OwnParts:
    """A fake of `MessageStore` that is each of its parts itself."""

    @property
    def _itself(self) -> Any:
        return self

    admission = connections = figures = group = log_repair = queues = reads = writes = _itself
