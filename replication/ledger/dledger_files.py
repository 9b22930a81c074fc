"""The small files of dledger beside a log, `checkpoint` and `currterm`: Java properties text.

    checkpoint   endIndex=41
                 committedIndex=40
    currterm     currTerm=3
                 voteLeader=n1        (empty: no vote)

tallystick does not rely on them: the log itself shows its end, and `tally-vote` keeps term and vote, durably. They are
written from time to time so that dledger finds them when it opens the log. They are read if dledger wrote the log. A
committed index is a hint: it is limited to what the log contains (D6).

Source: dledger 0.2.2, DLedgerMmapFileStore.persistCheckPoint and MemberState.persistTerm.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

CHECKPOINT = "checkpoint"
CURRENT_TERM = "currterm"


def read_properties(path: Path) -> dict[str, str]:
    """The pairs in the file; empty if there is no file. Lines without `=` and comments are ignored. Raises OSError."""
    try:
        text = path.read_text(encoding="latin-1")
    except FileNotFoundError:
        return {}
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, value in pairs}


def write_properties(door: Door, path: Path, pairs: dict[str, object]) -> None:
    """Replaces the file; a crash leaves the old or the new one. It is not durable on return. Raises OSError."""
    text = "".join(f"{key}={value}\n" for key, value in pairs.items())
    replace_file(door, path, text.encode("latin-1"), durable=False)


def read_committed_index(folder: Path) -> int:
    """The committed index of the checkpoint; -1 if it has none, or no number."""
    try:
        return int(read_properties(folder / CHECKPOINT).get("committedIndex", "-1"))
    except ValueError:
        return -1


def write_checkpoint(door: Door, folder: Path, end_index: int, committed_index: int) -> None:
    write_properties(door, folder / CHECKPOINT, {"endIndex": end_index, "committedIndex": committed_index})


def read_term(folder: Path) -> tuple[int, int | None]:
    """(current term, member voted for) as dledger saved them; (-1, None) if it saved none."""
    pairs = read_properties(folder / CURRENT_TERM)
    vote = pairs.get("voteLeader", "")
    try:
        term = int(pairs.get("currTerm", "-1"))
        return term, int(vote.removeprefix("n")) if vote else None
    except ValueError:
        return -1, None


def write_term(door: Door, folder: Path, term: int, voted_for: int | None) -> None:
    vote = "" if voted_for is None else f"n{voted_for}"
    write_properties(door, folder / CURRENT_TERM, {"currTerm": term, "voteLeader": vote})
