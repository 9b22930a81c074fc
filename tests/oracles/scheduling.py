"""Which tests `make check` leaves out, and which of the processes of `make test` runs which test, and when."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling
from xdist.workermanage import WorkerController

SHARED = "tests/spark/test_"
"""Tests whose names begin so share a Spark, which takes long to start: one process runs all of them."""


SLOW = frozenset(
    {
        "tests/node/test_backup.py",
        "tests/node/test_backup_member.py",
        "tests/node/test_backup_s3.py",
        "tests/node/test_bit_maps.py",
        "tests/node/test_broker_written_forms.py",
        "tests/node/test_cli.py",
        "tests/node/test_copy_protocol.py",
        "tests/node/test_copying.py",
        "tests/node/test_expiry_of_a_broker.py",
        "tests/node/test_feed_fuzz.py",
        "tests/node/test_offsets.py",
        "tests/node/test_promotion.py",
        "tests/node/test_pull_quick.py",
        "tests/node/test_remoting_server.py",
        "tests/node/test_schedule.py",
        "tests/node/test_slaves.py",
        "tests/node/test_sql92_twin.py",
        "tests/node/test_table_processors.py",
        "tests/node/test_timers.py",
        "tests/node/test_tls_ports.py",
        "tests/node/test_transactions.py",
        "tests/operator/jobs/test_jobs_runs.py",
        "tests/operator/jobs/test_jobs_schedule.py",
        "tests/operator/schedules/test_schedules_passes.py",
        "tests/operator/test_operator_ownership.py",
        "tests/operator/test_operator_passes.py",
        "tests/operator/topics/test_topics_deleted.py",
        "tests/operator/topics/test_topics_kept.py",
        "tests/operator/topics/test_topics_model.py",
        "tests/operator/topics/test_topics_mutations.py",
        "tests/replication/test_ledger_log.py",
        "tests/replication/test_ledger_recovery.py",
        "tests/replication/test_ledger_verify.py",
        "tests/replication/test_member_chaos.py",
        "tests/replication/test_member_crashes.py",
        "tests/replication/test_member_damage.py",
        "tests/replication/test_member_damaged_membership.py",
        "tests/replication/test_member_faults.py",
        "tests/replication/test_member_group.py",
        "tests/replication/test_member_strangers.py",
        "tests/replication/test_metadata_patches.py",
        "tests/replication/test_metadata_tables.py",
        "tests/replication/test_transport_faults.py",
        "tests/replication/test_transport_shipping.py",
        "tests/replication/test_transport_tls.py",
        "tests/spark/cluster/test_broker_files.py",
        "tests/spark/test_mirror.py",
        "tests/spark/test_audit_agrees.py",
        "tests/spark/test_audit_index.py",
        "tests/spark/test_every_field.py",
        "tests/spark/test_export.py",
        "tests/spark/test_jobs.py",
        "tests/spark/test_live_group.py",
        "tests/spark/test_rebuild.py",
        "tests/spark/test_scan_golden.py",
        "tests/spark/test_scan_twin.py",
        "tests/store/test_checkers_agree.py",
        "tests/store/test_convert.py",
        "tests/store/test_dispatch_faults.py",
        "tests/store/test_dispatch_golden.py",
        "tests/store/test_dispatch_twin.py",
        "tests/store/test_engine_crash.py",
        "tests/store/test_every_start_rebuilds.py",
        "tests/store/test_expiry.py",
        "tests/client/test_fastjson.py",
        "tests/store/test_golden.py",
        "tests/store/test_index_geometry.py",
        "tests/store/test_queues_are_compared.py",
        "tests/store/test_rebuilt_queues.py",
        "tests/store/test_recovery.py",
        "tests/store/test_repair.py",
        "tests/store/test_scrub.py",
        "tests/store/test_timers.py",
        "tests/store/test_units_are_compared_with_records.py",
        "tests/store/test_verify.py",
        "tests/store/test_zeroing.py",
        "tests/test_mutants.py",
        "tests/test_references.py",
    }
)
"""Files whose tests start no processes and still need seconds: `make check` leaves them out."""


TOGETHER = ("tests/test_layout.py", "[s3]", "tests/node/test_backup_s3.py", "tests/console/test_console_")
"""Parts of the names of tests that share something expensive: what a process has parsed, a server for S3, or a browser.
The process that gets one of them gets all."""

_REAR = 3
"""Every third process takes its tests from the end."""
_CHUNK = 8
"""So many quick tests are handed out at once, as long as many are left: the message costs more than the test."""
_MANY = 1000


class InTurn(LoadScheduling):
    """Each process gets the next test when it has only one left. The tests that share come first and go to one process.

    The first tests mostly wait for processes, timers and disks, the last ones compute. So every third process begins at
    the end: the processors are busy while the others wait, and all of them meet at tests of a few seconds at most.

    The schedulers of xdist hand out many tests at once: a process with the long ones among them ends last. Its groups
    of tests go by names that newer versions of pytest do not let it change.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self.maxschedchunk = 1
        self._has_spark = "not spark" not in config.getoption("markexpr")

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        if len(self.node2pending[node]) < 2 or not self.pending:
            super().check_schedule(node, duration)

    def _send_tests(self, node: WorkerController, num: int) -> None:
        assert self.collection is not None
        if self._has_spark and (shared := list(itertools.takewhile(self._needs_spark, self.pending))):
            self._hand_out(node, shared)
        elif self.nodes.index(node) % _REAR == _REAR - 1:
            count = max(num, _CHUNK) if len(self.pending) > _MANY else num
            self._hand_out(node, self.pending[: -count - 1 : -1])
        else:
            self._hand_out(node, self.pending[:num])

    def _needs_spark(self, number: int) -> bool:
        assert self.collection is not None
        return self.collection[number].startswith(SHARED)

    def _hand_out(self, node: WorkerController, numbers: list[int]) -> None:
        """Sends these tests, with those that belong together with one of them."""
        assert self.collection is not None
        parts = [part for part in TOGETHER if any(part in self.collection[number] for number in numbers)]
        for number in list(self.pending) if parts else ():
            if number not in numbers and any(part in self.collection[number] for part in parts):
                numbers = [*numbers, number]
        if numbers:
            for number in numbers:
                self.pending.remove(number)
            self.node2pending[node].extend(numbers)
            node.send_runtest_some(numbers)
