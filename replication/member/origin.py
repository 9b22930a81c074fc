"""The file `tally-group`: the membership that was in force before the first entry of a member's log.

    {"format": 1, "index": -1, "voters": [0, 1, 2], "learners": [], "asynchronous": false}

It is written once when the group is created (M8), and again whenever the log begins later than before: then it holds
the newest membership at the log's start, or a newer one that is committed. `index` is the index of its entry. A start
reads the memberships from here and from the log, never from a setting.

It also states whether entries were acknowledged before they were synced (`asynchronous`): after an unclean stop such a
member may have lost some of them (D9).

It is replaced as a whole: a crash leaves the old or the new one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.member.errors import DiskError
from tallystick.replication.membership import Membership, MembershipEntry, MembershipError
from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-group"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The content of the file. `entry` is None if the member does not know a membership yet."""

    entry: MembershipEntry | None
    asynchronous: bool

    @classmethod
    def load(cls, folder: Path) -> Origin | None:
        """None if there is no file. Raises DiskError if it cannot be read, or OSError."""
        path = folder / FILE_NAME
        try:
            fields = json.loads(path.read_bytes())
            if fields["format"] != _FORMAT:
                raise DiskError(f"{path} has the unknown format {fields['format']}")
            index, asynchronous = fields["index"], fields["asynchronous"]
            membership = Membership.of(fields["voters"], fields["learners"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, MembershipError) as error:
            raise DiskError(f"{path} cannot be read: {error}") from error
        return cls(MembershipEntry(index, membership) if membership.voters else None, asynchronous)

    def save(self, door: Door, folder: Path) -> None:
        """Durably replaces the file. Raises OSError."""
        entry = self.entry or MembershipEntry(-1, Membership(frozenset()))
        fields = {
            "format": _FORMAT,
            "index": entry.index,
            "voters": sorted(entry.membership.voters),
            "learners": sorted(entry.membership.learners),
            "asynchronous": self.asynchronous,
        }
        door.mkdir(folder)
        replace_file(door, folder / FILE_NAME, json.dumps(fields).encode())
