"""What the suites read: a member's view of its group, and the lines of the Java producer."""

from pathlib import Path
from typing import Any

import pytest
from lab.group import Group, Status
from lab.send_again import Sent


def status(member: int, **changes: Any) -> Status:
    fields: dict[str, Any] = {
        **{"member": member, "role": "leader" if member == 1 else "follower", "term": 4, "leader": 1},
        **{"ready": member == 1, "voters": (0, 1, 2), "learners": (), "last_index": 90, "commit_index": 90},
        **{"applied_index": 90, "disk": "ok", "doubt": "none", "trouble": ""},
    }
    return Status(**fields | changes)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """It runs nothing; its members say what is put into `told`."""
    made = Group(tmp_path)
    told = {number: status(number) for number in range(3)}
    monkeypatch.setattr(made, "statuses", lambda: told)
    return made


def told(group: Group) -> dict[int, Status]:
    return group.statuses()


def test_a_whole_group_is_whole(group: Group) -> None:
    assert group.is_whole() is None and group.is_at_rest() is None
    leader = group.leader()
    assert leader is not None and leader.number == 1


@pytest.mark.parametrize(
    ("member", "changes", "amiss"),
    [
        (1, {"role": "follower"}, "0 ready leaders"),
        (1, {"ready": False}, "0 ready leaders"),
        (2, {"role": "leader", "ready": True}, "2 ready leaders"),
        (1, {"voters": (0, 1)}, "voters (0, 1), learners ()"),
        (1, {"learners": (2,)}, "voters (0, 1, 2), learners (2,)"),
        (0, {"term": 3}, "n0 is in term 3 of 1, the leader in 4"),
        (0, {"leader": None}, "n0 is in term 4 of None, the leader in 4"),
        (2, {"doubt": "empty"}, "n2 may have lost data: empty"),
        (0, {"disk": "full"}, "the disk of n0 is full"),
        (2, {"applied_index": 0, "commit_index": 0}, "n2 is at 0 of 2090"),
    ],
)
def test_problems_are_reported(group: Group, member: int, changes: dict[str, Any], amiss: str) -> None:
    if "2090" in amiss:
        told(group)[1] = status(1, last_index=2090, commit_index=2090, applied_index=2090)
    told(group)[member] = status(member, **({"voters": (0, 1, 2)} | changes))
    assert group.is_whole() == amiss


def test_a_member_that_does_not_answer_is_missing(group: Group) -> None:
    del told(group)[2]
    assert group.is_whole() == "n2 do not answer"


def test_at_rest_all_have_applied_all(group: Group) -> None:
    told(group)[2] = status(2, applied_index=89)
    assert group.is_whole() is None
    assert group.is_at_rest() == "entries end at [89, 90]"


def test_of_two_leaders_the_newer_one_leads(group: Group) -> None:
    told(group)[0] = status(0, role="leader", ready=True, term=5)
    leader = group.leader()
    assert leader is not None and leader.number == 0


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("ok 100 120 SEND_OK", Sent(True, 100, 120, "SEND_OK")),
        ("failed 100 120 Send [3] times, still failed", Sent(False, 100, 120, "Send [3] times, still failed")),
        ("failed 100 120", Sent(False, 100, 120, "")),
        ("started", None),
        ("ok then", None),
        ("WARN 12 13 something", None),
    ],
)
def test_lines_of_the_java_producer(line: str, sent: Sent | None) -> None:
    assert Sent.parse(line) == sent
