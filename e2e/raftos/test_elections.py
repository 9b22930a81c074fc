"""Elections: one vote a term, counted once, for this term, by a majority of all; and no election without need."""

from __future__ import annotations

from hosting.evidence import on_both
from hosting.group import Group


def test_s1_a_restarted_voter_votes_again() -> None:
    """0 and 1 stand in the same term; 2 votes for 0, is killed, and comes back before it hears of 1."""

    def history(group: Group) -> list[str]:
        group.part({0}, {1})
        late = group.hold("vote", source=1, target=2)
        group.stand(0)
        group.stand(1)
        group.run(0.1)
        assert group.leaders() == {0} and late.packets
        group.restart(2)
        late.release()
        group.run(0.1)
        assert bool(group.double_votes()) is bool(group.rival_leaders())
        return group.rival_leaders()

    both = on_both("S1", "a voter restarts and votes again in the same term: two leaders of it", history)
    assert both.raftos == ["term 1: [0, 1]"]
    assert not both.ours


def test_s1_a_leader_that_steps_down_votes_again() -> None:
    """0 and 1 stand in the same term, 1 leads it by the vote of 2, which dies. 1 steps down, and hears that 0 stood."""

    def history(group: Group) -> list[str]:
        group.part({0}, {1})
        late = group.hold("vote", source=0)
        group.stand(0)
        group.stand(1)
        group.run(0.1)
        assert group.leaders() == {1} and len(late.packets) == 2
        group.kill(2)
        group.run(1.55)
        assert not group.leaders()
        group.heal()
        late.release()
        group.run(0.1)
        assert bool(group.double_votes()) is bool(group.rival_leaders())
        return group.rival_leaders()

    both = on_both("S1", "a leader steps down and votes for another of the same term, who then leads it too", history)
    assert both.raftos == ["term 1: [0, 1]"]
    assert not both.ours


def test_s1_a_voter_that_raised_its_term_cannot_vote_in_it() -> None:
    """All voted for 0, which dies. The next candidate must get the other's vote, or no member leads."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.kill(0)
        group.run(1.0)
        if not group.leaders():
            group.stand(1)
            group.run(0.1)
        assert max(group.term(1), group.term(2)) == 2
        return not group.leaders()

    both = on_both("S1", "a follower takes its old vote along into a higher term, and gives none there", history)
    assert both.raftos and not both.ours


def test_s2_a_candidate_that_hears_of_a_higher_term_loses_the_request() -> None:
    """1 stands for election and reaches no member. 0 requests its vote in a higher term, which only 1 can give."""

    def history(group: Group) -> bool:
        group.kill(2)
        group.hold("vote", source=1)
        group.stand(1)
        group.run(0.05)
        assert group.term(1) == 1
        for _ in range(2):  # our core learns the term by the first, and asks in the next one by the second
            if 0 not in group.leaders():
                group.stand(0)
                group.run(0.05)
        assert group.term(0) == group.term(1) == 2
        return 0 not in group.leaders()

    both = on_both("S2", "a request of a higher term is handled by the role that ended with it, and is lost", history)
    assert both.raftos and not both.ours


def test_s2_a_deposed_leader_raises() -> None:
    """0 led, was cut off, and meets the next leader's term in an answer."""

    def history(group: Group) -> list[str]:
        group.elect(0)
        group.cut_off(0)
        group.restart(2)  # or raftos' 2 would not be free for a vote
        group.run(1.0)
        if not group.leaders() - {0}:
            group.stand(1)
        group.run(0.2)
        group.hold("append", target=0)
        group.hold("heartbeat", target=0)
        group.heal()
        group.run(0.4)
        assert group.leaders() and group.leaders() != {0}
        return group.errors

    both = on_both("S2", "the answer that deposes a leader raises in its handler", history)
    assert both.raftos == ["KeyError: 'request_id'"]
    assert not both.ours


def test_s3_a_doubled_answer_counts_twice() -> None:
    """Of five, only 1 hears that 0 stands, and its answer is doubled on the way. The others elect 2."""

    def history(group: Group) -> list[str]:
        for each in (2, 3, 4):
            group.hold("vote", source=0, target=each)
        double = group.hold("vote reply", source=1, target=0, copies=True)
        group.stand(0)
        group.run(0.05)
        assert len(double.packets) == 1 and not group.leaders()
        group.part({0, 1}, {2, 3, 4})
        double.release()
        group.stand(2)
        group.run(0.1)
        assert 2 in group.leaders()
        return group.rival_leaders()

    both = on_both("S3", "a vote that is delivered twice counts twice: two leaders of one term", history, members=5)
    assert both.raftos == ["term 1: [0, 2]"]
    assert not both.ours


def test_s3_an_answer_of_an_earlier_term_counts() -> None:
    """1 votes for 0 in term 1. The answer comes when 0 stands in term 2, in which 1 and 2 elect 1."""

    def history(group: Group) -> list[str]:
        group.hold("vote", source=0, target=2)
        late = group.hold("vote reply", source=1, target=0)
        group.stand(0)
        group.run(0.05)
        assert len(late.packets) == 1
        group.hold("vote", source=0)
        group.stand(0)
        group.run(0.05)
        assert group.term(0) == 2
        group.part({0}, {1, 2})
        late.release()
        group.stand(1)
        group.run(0.1)
        assert 1 in group.leaders() and group.term(1) == 2
        return group.rival_leaders()

    both = on_both("S3", "a vote of an earlier term is counted: two leaders of one term", history)
    assert both.raftos == ["term 2: [0, 1]"]
    assert not both.ours


def test_s10_two_of_four_elect() -> None:
    """0 and 1 stand in the same term; 2 hears only of 0, 3 hears only of 1."""

    def history(group: Group) -> list[str]:
        for source, target in ((0, 1), (0, 3), (1, 0), (1, 2)):
            group.hold("vote", source=source, target=target)
        group.hold("append")
        group.stand(0)
        group.stand(1)
        group.run(0.1)
        assert group.votes[2, 1] == {0} and group.votes[3, 1] == {1}
        return group.rival_leaders()

    both = on_both("S10", "two of four votes make a leader: two of one term", history, members=4)
    assert both.raftos == ["term 1: [0, 1]"]
    assert not both.ours


def test_l2_who_gave_its_vote_stands_all_the_same() -> None:
    """All others vote for 0, which does not receive the votes. Their timeouts should begin again then."""

    def history(group: Group) -> bool:
        group.hold("vote reply", target=0)
        group.run(0.8 * group.patience_seconds)
        group.stand(0)
        group.run(0.95 * group.patience_seconds)
        assert all(group.votes[each, 1] == {0} for each in range(5))
        return any(group.term(each) > 1 for each in range(5))

    both = on_both("L2", "who has just given its vote stands against the candidate", history, members=5)
    assert both.raftos and not both.ours


def test_l3_who_was_cut_off_deposes_the_leader() -> None:
    """2 hears nothing for half a minute, and comes back."""

    def history(group: Group) -> bool:
        group.elect(0)
        group.cut_off(2)
        group.run(30.0)
        assert group.leaders() == {0}
        group.heal()
        group.run(3.0)
        return group.term(0) > 1

    both = on_both("L3, L5", "a member that was cut off comes back and ends the term of a sound leader", history)
    assert both.raftos and not both.ours


def test_l8_a_group_of_one_has_no_leader() -> None:
    def history(group: Group) -> bool:
        group.run(30.0)
        return not group.leaders()

    both = on_both("L8", "a single member never leads", history, members=1)
    assert both.raftos and not both.ours
