"""The log: what was committed stays, what is counted is there, and what was acknowledged was committed."""

from __future__ import annotations

from hosting.evidence import on_both, on_raftos
from hosting.group import Group
from hosting.raftos_group import RaftosGroup


def test_s6_s7_a_late_append_erases_committed_entries() -> None:
    """The first append to each follower is doubled, and the doubles come when two values are acknowledged."""

    def history(group: Group) -> list[str]:
        double = group.hold("append", source=0, copies=True)
        group.elect(0)
        double.stop()
        for value in ("a", "b"):
            group.propose(0, value)
            group.run(1.0)
        assert group.acknowledged == ["a", "b"] and group.holders("b") == {0, 1, 2}
        assert {packet.target for packet in double.packets} == {1, 2}
        double.release()
        group.run(0.0015)  # delivered, not yet answered
        group.kill(0)
        group.run(30.0)
        return group.missing(group.acknowledged)

    both = on_both("S6, S7", "a late empty append erases committed entries: acknowledged values are lost", history)
    assert both.raftos == ["a", "b"]
    assert both.ours == []


def test_s8_a_late_answer_makes_the_leader_count_what_is_gone() -> None:
    """1 stored a value and said so. A late append erases it again (S6); then what 1 said arrives, twice."""

    def history(group: Group) -> list[str]:
        old = group.hold("append", source=0, target=1, copies=True)
        group.elect(0)
        old.stop()
        group.cut_off(2)
        late = group.hold("append reply", source=1)
        group.propose(0, "a")
        group.run(0.02)
        assert group.holders("a") == {0, 1}
        late.stop()
        group.hold("append reply", source=1)
        old.release()
        group.run(0.002)
        late.release(times=2)
        group.run(0.02)
        assert "a" in group.committed(0) and group.acknowledged == ["a"]
        group.kill(0)
        group.heal()
        group.post.holds.clear()
        group.run(30.0)
        return group.missing(group.acknowledged)

    both = on_both("S6, S8", "a late answer counts what was erased since: committed on one of three, and lost", history)
    assert both.raftos == ["a"]
    assert both.ours == []


def test_s3_an_answer_of_an_earlier_term_counts() -> None:
    """In term 1, 1 stored an entry and said so; power is lost. In the next term of 0 the answer arrives."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.run(6.0)  # long enough for term and vote to be on raftos' disk
        late = group.hold("append reply", source=1)
        group.propose(0, "a")
        group.run(0.05)
        late.stop()
        assert late.packets
        group.lose_power(0, 1)
        group.start(0)
        group.start(1)
        group.hold("append", source=0)
        group.elect(0)
        assert group.term(0) == 2
        group.propose(0, "b")
        late.release()
        group.run(0.05)
        return "b" in group.committed(0)

    both = on_both("S3", "an answer of an earlier term is counted: a commit that only the leader holds", history)
    assert both.raftos and not both.ours


def test_s10_two_of_four_commit() -> None:
    """Four in two halves; a value is proposed in each."""

    def history(group: Group) -> list[str]:
        group.elect(0)
        group.part({0, 1}, {2, 3})
        group.propose(0, "a")
        group.run(20.0)
        for leader in group.leaders() & {2, 3}:
            group.propose(leader, "b")
        group.run(2.0)
        group.heal()
        group.run(30.0)
        return group.missing(group.acknowledged)

    both = on_both("S10", "two of four commit: one half's acknowledged value is lost", history, members=4)
    assert both.raftos in (["a"], ["b"])
    assert both.ours == []


def test_s10_one_of_two_commits() -> None:
    """The other is cut off; answers of it to earlier appends are still on their way."""

    def history(group: Group) -> bool:
        late = group.hold(source=1, target=0, copies=True)
        group.elect(0)
        group.run(0.5)
        late.stop()
        assert late.packets
        group.cut_off(1)
        group.propose(0, "a")
        group.run(0.05)
        late.release()
        group.run(0.05)
        return "a" in group.acknowledged and group.holders("a") == {0}

    both = on_both("S10", "one of two commits and acknowledges", history, members=2)
    assert both.raftos and not both.ours


def test_s11_nothing_is_committed_after_a_restart_of_all() -> None:
    def history(group: Group) -> bool:
        group.elect(0)
        group.propose(0, "a")
        group.run(1.0)
        assert group.acknowledged == ["a"]
        group.restart(0, 1, 2)
        group.run(30.0)
        group.propose(group.leader(), "b")
        group.run(120.0)
        return "b" not in group.acknowledged

    both = on_both("S11", "after a restart of all members nothing further is committed", history)
    assert both.raftos and not both.ours


def test_s11_nothing_is_committed_behind_an_older_entry() -> None:
    """0 dies in the moment in which the others have its entry and it does not know that."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.hold("append reply", target=0)
        group.propose(0, "a")
        group.run(0.05)
        assert group.holders("a") == {0, 1, 2}
        group.kill(0)
        group.run(30.0)
        group.propose(group.leader(), "b")
        group.run(120.0)
        assert group.holders("b") >= {1, 2}
        return group.acknowledged == []

    both = on_both("S11", "nothing further is committed after an entry of an earlier leader", history)
    assert both.raftos and not both.ours


def test_l6_l7_an_entry_a_round_trip() -> None:
    """2 misses forty values."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.cut_off(2)
        values = [f"v{number}" for number in range(40)]
        for value in values:
            group.propose(0, value)
            group.run(0.7)
        assert group.acknowledged == values
        group.heal()
        before = group.post.carried["append", 2]
        while len(group.log(2)) < 40:
            group.run(0.01)
        return group.post.carried["append", 2] - before >= 40

    both = on_both("L6, L7", "who missed forty values gets them in forty round trips", history)
    assert both.raftos and not both.ours


def test_r1_a_leader_that_was_replaced_answers_reads() -> None:
    """0 leads by the vote of 1. It is cut off; answers to its heartbeats of before still arrive, one a second."""

    def history(group: Group) -> bool:
        group.hold("vote", source=0, target=2)
        group.elect(0)
        group.propose(0, "a")
        group.run(1.0)
        late = group.hold(target=0)
        group.run(1.2)
        late.stop()
        assert len(late.packets) >= 8
        group.cut_off(0)
        for packet in late.packets[:8:2]:
            group.post.carry(packet)
            group.run(1.0)
        (leader,) = group.leaders() - {0}
        group.propose(leader, "b")
        group.run(0.4)
        group.read(0)
        group.run(0.1)
        assert group.acknowledged == ["a", "b"]
        return group.answers == ["a"]

    both = on_both("R1", "late answers keep a leader that was cut off and replaced; what it answers is old", history)
    assert both.raftos and not both.ours


def test_ack_of_another_command() -> None:
    """Two commands at once. Connections break when the first is on its way to the others, the second not yet."""

    def history(group: Group) -> list[str]:
        group.elect(0)
        group.propose(0, "a")
        group.propose(0, "b")
        group.run(0.0015)
        group.cut_off(0)
        group.run(0.05)
        group.kill(0)
        group.run(30.0)
        return group.missing(group.acknowledged)

    both = on_both("B1", "of two commands the second is acknowledged when the first is applied: it is lost", history)
    assert both.raftos == ["b"]
    assert both.ours == []


def test_b2_a_command_hangs_when_the_leader_steps_down() -> None:
    def history(group: RaftosGroup) -> bool:
        group.elect(0)
        group.cut_off(0)
        group.propose(0, "a")
        group.run(60.0)
        assert 0 not in group.leaders()
        return group.waits("a")

    assert on_raftos(
        "B2",
        "a client waits forever when the leader steps down",
        history,
        ours="holds: tests/replication/test_member_group.py",
    )


def test_s12_a_restart_applies_everything_again() -> None:
    """2 restarts on its files: the state with both values in it, and the log."""

    def history(group: RaftosGroup) -> list[str]:
        group.elect(0)
        for value in ("a", "b"):
            group.propose(0, value)
            group.run(1.0)
        group.restart(2)
        group.run(2.0)
        return group.applied(2)

    found = on_raftos(
        "S12",
        "a restarted member applies all entries again, to the state that has them",
        history,
        ours="holds: tests/replication/test_metadata_snapshot.py",
    )
    assert found == ["a", "b", "a", "b"]
