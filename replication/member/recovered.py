"""The file `tally-recovered`: this member was made the only voter of its group by force (`sole_voter.py`).

It is a JSON object that people can read. It stays until the folder is emptied, so that the accepted loss can be seen
later: in the log at each start, in `GET /node`, `GET /group` and a metric.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tallystick.replication.member.errors import DiskError
from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

NOTE_NAME = "tally-recovered"
ACCEPTED_LOSS, RESTORED = "accepted-loss", "restored"
"""The reasons: a majority was lost for good, or the group was restored from a backup."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """What the member knows. Times are ms since 1970. `possible_loss`: by name, what it may have lost itself."""

    cluster: str
    group: str
    member: int
    voters: list[int]
    learners: list[int]
    term: int
    last_index: int
    last_term: int
    commit_index: int
    """As last noted on the disk: the group may have committed more."""
    last_store_ms: int
    possible_loss: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """The content of the note. `reason`: `accepted-loss` or `restored`; `before`: the member's state before it."""

    reason: str
    at_ms: int
    term: int
    index: int
    before: Standing

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        what = "restored from a backup" if self.reason == RESTORED else "a lost majority was given up"
        return f"{what} at {at:%Y-%m-%dT%H:%M:%SZ}, behind entry {self.before.last_index}, in term {self.term}"

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The note in the log's folder; None if there is none. DiskError: it cannot be read; OSError."""
        path = folder / NOTE_NAME
        try:
            fields = json.loads(path.read_bytes())
            if fields.pop("format") != _FORMAT:
                raise DiskError(f"{path} has an unknown format")
            return cls(before=Standing(**fields.pop("before")), **fields)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DiskError(f"{path} cannot be read: {error}") from error

    def save(self, door: Door, folder: Path) -> None:
        """Durably replaces the note. OSError."""
        replace_file(door, folder / NOTE_NAME, json.dumps({"format": _FORMAT, **asdict(self)}).encode())
