"""Whether the logs of members tell one story: each way in which they can disagree is a problem."""

from lab.ledger import Problems
from lab.roles import Reign, check_roles, reigns

LEADER = """\
2026-11-23 05:00:00,000 INFO log: n0: became leader of group a in term 3 (votes: n0, n1; no leader was heard before)
2026-11-23 05:00:09,000 WARNING tallystick.replication: n0: lost leadership of group a, now in term 5: n2 leads term 5
2026-11-23 05:00:09,000 INFO tallystick.replication: n0: follows n2, leader of group a in term 5
"""
FOLLOWER = """\
n2: follows n0, leader of group a in term 3
n2: asks for votes to lead group a after term 3: 900 ms after n0 was last heard
n2: became leader of group a in term 5 (votes: n1, n2; 912 ms after n0 was last heard)
"""
NOW = {"n0": Reign(5, 2), "n2": Reign(5, 2)}


def problems_of(logs: dict[str, str], now: dict[str, Reign] = NOW) -> list[str]:
    problems = Problems()
    check_roles(logs, now, problems)
    return problems.lines()


def test_lines_are_read_in_both_formats() -> None:
    assert reigns(LEADER) == [Reign(3, 0), Reign(5, 2)]
    assert reigns('{"level": "INFO", "message": "n1: follows n2, leader of group a in term 5"}') == [Reign(5, 2)]


def test_a_story_that_agrees_has_no_problem() -> None:
    problems = Problems()
    assert check_roles({"n0": LEADER, "n2": FOLLOWER}, NOW, problems) == 2
    assert problems.lines() == []


def test_two_leaders_of_a_term_are_a_problem() -> None:
    assert problems_of({"n0": LEADER, "n2": FOLLOWER.replace("follows n0", "follows n1")}) == [
        "term 3: n0 logged n0 as leader, n2 logged n1"
    ]


def test_a_term_that_goes_back_is_a_problem() -> None:
    log = LEADER + "n0: follows n0, leader of group a in term 3\n"
    assert problems_of({"n0": log}, {}) == ["n0: its log names term 3 after term 5"]


def test_a_log_that_ends_with_another_leader_than_the_status_is_a_problem() -> None:
    assert problems_of({"n0": LEADER}, {"n0": Reign(6, 1)}) == [
        "n0: its log ends with n2 in term 5, its status says n1 in term 6"
    ]
    assert problems_of({"n0": ""}, {"n0": Reign(6, 1)}) == [
        "n0: its log ends with no leader, its status says n1 in term 6"
    ]
    left_out = "n0: follows n2, leader of group a in term 5 (and 3 more since the last such line)"
    assert problems_of({"n0": left_out}, {"n0": Reign(6, 1)}) == []
