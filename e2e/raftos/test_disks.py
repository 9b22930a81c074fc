"""The disk: what was said must be on it first, and what is on it must survive that the process dies at any moment."""

from __future__ import annotations

from hosting.evidence import on_both, on_raftos
from hosting.group import Group
from hosting.raftos_group import RaftosGroup


def test_d2_d3_a_power_loss_takes_acknowledged_values() -> None:
    """All three lose power a second after a value was acknowledged."""

    def history(group: Group) -> list[str]:
        group.elect(0)
        group.run(6.0)
        group.propose(0, "a")
        group.run(1.0)
        assert group.acknowledged == ["a"]
        group.lose_power(0, 1, 2)
        for each in range(3):
            group.start(each)
        group.run(30.0)
        return group.missing(group.acknowledged)

    both = on_both("D2, D3", "all lose power: what was acknowledged a second ago is lost", history)
    assert both.raftos == ["a"]
    assert both.ours == []


def test_d1_a_power_loss_takes_the_term() -> None:
    """2 votes in term 1 and loses power a second later."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.run(1.0)
        assert group.term(2) == 1
        group.cut_off(2)
        group.lose_power(2)
        group.start(2)
        return group.term(2) == 0

    both = on_both("D1", "a member that loses power forgets the term in which it voted", history)
    assert both.raftos and not both.ours


def test_d1_a_kill_takes_the_term() -> None:
    """2 has voted in term 1. It is killed while it saves that there is a term 2."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.run(6.0)
        group.kill(0)
        group.kill_while_saving_a_vote(2)
        group.run(1.0)
        if group.is_running(2):
            group.stand(1)
            group.run(0.1)
        assert not group.is_running(2)
        group.cut_off(2)
        group.start(2)
        return group.term(2) == 0

    both = on_both("D1", "a member that is killed while it saves its term comes back with term 0", history)
    assert both.raftos and not both.ours


def test_d4_a_kill_takes_committed_entries() -> None:
    """2 led, has an entry too many, and is killed while it cuts that off. Before it lies what is committed."""

    def history(group: Group) -> bool:
        group.elect(2)
        group.propose(2, "a")
        group.run(1.0)
        assert group.committed(0) == group.committed(1) == ["a"]
        group.cut_off(2)
        group.propose(2, "b")
        group.run(30.0)
        group.propose(group.leader(), "c")
        group.run(1.0)
        assert group.log(2) == ["a", "b"] and "c" in group.acknowledged
        group.kill_while_truncating(2)
        group.heal()
        group.run(30.0)
        assert not group.is_running(2)
        return "a" not in group.log(2)

    both = on_both("D4", "a member that is killed while it truncates comes back without its committed entries", history)
    assert both.raftos and not both.ours


def test_format_the_log_cannot_be_read_back() -> None:
    """raftos writes an entry and a line break, reads line by line, and its default serializer takes no line break."""

    def history(group: RaftosGroup) -> list[int]:
        group.elect(0)
        group.propose(0, "a")
        group.run(1.0)
        assert group.acknowledged == ["a"]
        group.restart(0, 1, 2)
        assert {error.split(":")[0] for error in group.errors} == {"ExtraData"}
        return [each for each in range(3) if not group.is_running(each)]

    found = on_raftos(
        "D8",
        "default serializer: with one entry in the log, no member starts again",
        history,
        ours="holds: tests/replication/test_ledger_recovery.py",
        default_serializer=True,
    )
    assert found == [0, 1, 2]


def test_format_the_fifth_entry_is_the_last() -> None:
    """Each fifth time that raftos writes an entry it reads the log back."""

    def history(group: RaftosGroup) -> bool:
        group.elect(0)
        for value in ("a", "b", "c", "d", "e", "f"):
            group.propose(0, value)
            group.run(5.0)
        group.run(60.0)
        assert group.acknowledged == ["a", "b", "c", "d"]
        return "e" not in group.acknowledged and "f" not in group.acknowledged

    assert on_raftos(
        "D8",
        "default serializer: the fifth command fails, and no later one is committed",
        history,
        ours="holds: tests/replication/test_ledger_log.py",
        default_serializer=True,
    )
