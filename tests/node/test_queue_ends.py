"""Where idle queues stand: what is sent is what is got, and what is not understood is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.node.broker.group import queue_ends
from tallystick.node.broker.group.queue_ends import FILE_NAME, QueueEndsError
from tallystick.store._kernel import Door

ENDS = {("%RETRY%g", 0): 7, ("orders", 0): 3, ("orders", 11): 1 << 40}


@pytest.mark.parametrize("ends", [{}, ENDS])
def test_a_state_has_both_parts(ends: dict[tuple[str, int], int]) -> None:
    assert queue_ends.parted(queue_ends.joined(ends, b"the tables")) == (ends, b"the tables")


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    door = Door()
    assert queue_ends.load(tmp_path / "config") == {}
    for ends in ({("T", 1): 2}, ENDS):
        queue_ends.save(door, tmp_path / "config", ends)
        assert queue_ends.load(tmp_path / "config") == ends
    assert [path.name for path in (tmp_path / "config").iterdir()] == [FILE_NAME]
    assert (tmp_path / "config" / FILE_NAME).read_bytes() == (
        b'{"%RETRY%g":{"0":7},"orders":{"0":3,"11":1099511627776}}'
    )


@pytest.mark.parametrize("state", [b"", b"TALLYMD1" + bytes(20), b"TALLYQE1" + (99).to_bytes(8, "big") + b"{}"])
def test_another_state_is_refused(state: bytes) -> None:
    with pytest.raises(QueueEndsError):
        queue_ends.parted(state)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"T": 3}', b'{"T": {"x": 3}}', b'{"T": {"0": null}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(QueueEndsError, match=FILE_NAME):
        queue_ends.load(tmp_path)
