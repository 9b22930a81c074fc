"""A flood of events of one kind is a line per interval."""

import logging

import pytest

from tallystick.node.remoting.limited_log import LimitedLog


def test_one_line_per_kind_and_interval_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("tallystick.test"), lambda: now, interval_s=10)
    for n in range(100):
        now = n / 4
        log.warning("bad", "%d is bad", n)
    log.warning("worse", "worse")
    assert [record.getMessage() for record in caplog.records] == [
        "0 is bad",
        "40 is bad (and 39 more since the last such line)",
        "80 is bad (and 39 more since the last such line)",
        "worse",
    ]
    assert log.counts == {"bad": 100, "worse": 1}
