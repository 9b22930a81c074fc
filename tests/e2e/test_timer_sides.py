"""What `make timers` says about a side: which faults it makes, what is wrong, how late deliveries are."""

from lab.timer_sides import KILL, TRANSFER, faults
from timers import Result, Told, lateness, wrong

from tallystick.store.formats.record import Record


def told() -> Told:
    bodies = [b"pending-%d" % number for number in range(4)]
    return Told({body: 1000 + number for number, body in enumerate(bodies)}, set(bodies))


def delivered(number: int, at_ms: int) -> Record:
    return Record("timers", 0, b"pending-%d" % number, store_timestamp_ms=at_ms)


def test_faults_take_turns():
    assert faults(2, 0) == [KILL, KILL]
    assert faults(2, 2) == [KILL, TRANSFER, KILL, TRANSFER]
    assert faults(3, 1) == [KILL, TRANSFER, KILL, KILL]
    assert faults(0, 2) == [TRANSFER, TRANSFER]


def test_what_is_lost_doubled_or_early_is_named():
    found = [delivered(0, 1000), delivered(1, 1000), delivered(2, 1002), delivered(2, 1009)]
    problems = "; ".join(wrong(told(), found))
    assert "1 lost: [b'pending-3']" in problems
    assert "1 delivered twice: [b'pending-2']" in problems
    assert "1 delivered before their time: [b'pending-1']" in problems


def test_a_recalled_timer_is_not_lost_and_one_in_doubt_is_either():
    asked = told()
    asked.recalled, asked.doubtful = {b"pending-0"}, {b"pending-1"}
    assert wrong(asked, [delivered(2, 1002), delivered(3, 1003)]) == []
    assert wrong(asked, [delivered(number, 2000) for number in (1, 2, 3)]) == []
    assert "recalled and delivered" in "".join(wrong(asked, [delivered(number, 2000) for number in range(4)]))


def test_lateness_counts_from_the_last_start():
    late = lateness(told(), [delivered(number, 1010) for number in range(4)], after_ms=1001)
    assert late == [7, 8]
    lines = Result("one", told(), [], [], late).lines(2000)
    assert lines[0] == "one: 4 acknowledged, 0 recalled, 0 delivered; none lost, doubled or early"
    assert "p50 8 ms, p99 8 ms, p99.9 8 ms, most 8 ms" in lines[1]
