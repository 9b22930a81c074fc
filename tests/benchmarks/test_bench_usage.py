"""Reading /proc: what is ours, what is the broker's, what is foreign."""

import os
import subprocess
import sys
import time

from harness.usage import (
    ProcessStat,
    Snapshot,
    anonymous_bytes,
    busy_seconds,
    cpu_seconds,
    parse_stat,
    process_stat,
    seconds_since_start,
    with_descendants,
)

LINE = "4242 (a) b (c d) S 17 4242 4242 0 -1 4194560 1 2 3 4 250 50 30 20 20 0 1 0 123456 1000 200 18446744073709551615"
TICKS = os.sysconf("SC_CLK_TCK")


def test_a_name_with_brackets_does_not_shift_the_fields() -> None:
    assert parse_stat(LINE) == ProcessStat(4242, 17, 300 / TICKS, 50 / TICKS, 123456)


def test_descendants_are_found_at_any_depth() -> None:
    processes = [ProcessStat(pid, parent, 1.0, 0.0, 0) for pid, parent in ((5, 3), (3, 1), (1, 0), (2, 0), (6, 5))]
    assert [stat.pid for stat in with_descendants([3], processes)] == [5, 3, 6]
    assert with_descendants([99], processes) == []


def test_the_busy_time_leaves_idle_and_interrupts_out() -> None:
    assert busy_seconds("cpu  100 20 300 4000 50 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n") == 428 / TICKS


def test_a_child_is_counted_until_it_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(sum(range(30_000_000)), flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_seconds([child.pid]) > 0.05
        assert 1_000_000 < anonymous_bytes([child.pid]) < 1_000_000_000
        age = seconds_since_start(child.pid)
        assert age is not None and 0.05 < age < 60
        child.communicate(b"\n")
    assert process_stat(child.pid) is None
    assert (cpu_seconds([child.pid]), anonymous_bytes([child.pid]), seconds_since_start(child.pid)) == (0, 0, None)


def test_foreign_time_is_the_time_that_no_measured_process_used() -> None:
    before = Snapshot(at=10, busy_s=100, broker_cpu_s=20, own_cpu_s=30, kernel_cpu_s={7: 5.0, 8: 90.0})
    after = Snapshot(
        at=12, busy_s=104, broker_cpu_s=21.5, own_cpu_s=32.5, kernel_cpu_s={7: 5.25, 9: 0.25}
    )  # 8 ended, 9 began
    assert after.foreign_cores(before) == 0.5
    assert after._replace(own_cpu_s=40).foreign_cores(before) == 0  # ticks round
    assert before.foreign_cores(before) == 0


def test_our_own_work_is_not_foreign() -> None:
    before = Snapshot.take([])
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = Snapshot.take([])
    assert after.own_cpu_s - before.own_cpu_s > 0.25
    assert after.busy_s - before.busy_s > 0.2
