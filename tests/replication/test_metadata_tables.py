"""The replicated tables over whole histories: a leader's, each follower's, after changes of leadership and restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.entry import MetadataError
from tallystick.replication.metadata.staging import StagedTables
from tallystick.replication.metadata.tables import ReplicatedTables

TABLES = ("topics.json", "consumerOffset.json")
NAMES = st.sampled_from(["T1", "T2", "T3", "T1@g"])
ROWS = st.dictionaries(st.sampled_from(["perm", "0", "1"]), st.integers(0, 3), max_size=3)
FIELD = "table"


def twin(history: list[bytes | None], count: int) -> ReplicatedTables:
    """The slow, obvious way: everything from the log's first entry on."""
    tables = ReplicatedTables()
    for index, body in enumerate(history[:count]):
        if body is None:
            tables.pass_over(index)
        else:
            tables.apply(index, body)
    return tables


class Group(RuleBasedStateMachine):
    """One log, a leader that stages, three members that apply. `None` in the log is an entry of another kind."""

    @initialize()
    def begin(self) -> None:
        self.log: list[bytes | None] = []
        self.committed = 0
        self.members = [ReplicatedTables() for _ in range(3)]
        self.files: list[bytes] = [snapshot.encode(ReplicatedTables())]
        self.lead()

    def lead(self) -> None:
        """A new leader takes proposals when all before is committed and applied (S11)."""
        self.committed = len(self.log)
        self.staged = StagedTables(twin(self.log, self.committed), max_body_bytes=120)
        self.live: dict[str, dict[str, Any]] = {
            name: {row: dict(value) for row, value in self.staged.picture(name).get(FIELD, {}).items()}
            for name in TABLES
        }
        self.counters = {name: self.staged.picture(name).get("counter", 0) for name in TABLES}

    def put(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.log.append(body)
            self.staged.took(body)

    @rule(table=st.sampled_from(TABLES), rows=st.dictionaries(NAMES, ROWS | st.none(), min_size=1, max_size=4))
    def change_rows(self, table: str, rows: dict[str, dict[str, int] | None]) -> None:
        for name, row in rows.items():
            if row is None:
                self.live[table].pop(name, None)
            else:
                self.live[table][name] = dict(row)
        self.counters[table] += 1
        self.put(self.staged.replace_rows(table, FIELD, rows, {"counter": self.counters[table]}))

    @rule(table=st.sampled_from(TABLES), rows=st.dictionaries(NAMES, ROWS, max_size=4))
    def replace_table(self, table: str, rows: dict[str, dict[str, int]]) -> None:
        self.live[table] = {name: dict(row) for name, row in rows.items()}
        self.put(self.staged.replace(table, {FIELD: rows, "counter": self.counters[table]}))

    @rule()
    def send(self) -> None:
        self.log.append(None)

    @rule(count=st.integers(1, 5))
    def commit(self, count: int) -> None:
        self.committed = min(len(self.log), self.committed + count)

    @rule(member=st.integers(0, 2), count=st.integers(1, 7))
    def apply(self, member: int, count: int) -> None:
        tables = self.members[member]
        # From some entries before, as a start from an older hint does: those count once.
        for index in range(max(0, tables.applied_index - 2), min(self.committed, tables.applied_index + 1 + count)):
            body = self.log[index]
            if body is None:
                tables.pass_over(index)
            else:
                tables.apply(index, body)

    @rule(member=st.integers(0, 2), data=st.data())
    def tell_an_old_entry_again(self, member: int, data: st.DataObject) -> None:
        tables = self.members[member]
        body = self.log[index] if (index := data.draw(st.integers(0, 30))) <= tables.applied_index else None
        if body is not None:
            assert tables.apply(index, body) is None

    @rule(member=st.integers(0, 2))
    def save(self, member: int) -> None:
        self.files.append(snapshot.encode(self.members[member]))

    @rule(member=st.integers(0, 2), data=st.data())
    def restart_from_any_snapshot(self, member: int, data: st.DataObject) -> None:
        self.members[member] = snapshot.decode(data.draw(st.sampled_from(self.files)))

    @precondition(lambda self: self.committed < len(self.log))
    @rule(data=st.data())
    def lose_leadership(self, data: st.DataObject) -> None:
        """What was not committed may be kept by the next leader or cut; its tables go by the log alone."""
        del self.log[data.draw(st.integers(self.committed, len(self.log))) :]
        self.lead()

    @invariant()
    def the_leaders_tables_are_what_its_log_makes(self) -> None:
        tables = twin(self.log, len(self.log))
        for name in TABLES:
            assert tables.picture(name).get(FIELD, {}) == self.live[name]
            assert self.staged.picture(name) == tables.picture(name)

    @invariant()
    def every_member_has_what_the_log_made_up_to_its_index(self) -> None:
        for tables in self.members:
            assert tables == twin(self.log, tables.applied_index + 1)


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=40)


def test_equal_states_are_equal_bytes_whatever_the_order_of_their_making() -> None:
    first = ReplicatedTables(7, {"b": {"x": {"1": 1, "2": 2}}, "a": {}})
    second = ReplicatedTables(7, {"a": {}, "b": {"x": {"2": 2, "1": 1}}})
    assert snapshot.encode(first) == snapshot.encode(second)


def test_a_picture_that_was_handed_out_stays_as_it_was() -> None:
    tables = ReplicatedTables()
    staged = StagedTables(tables)
    for body in staged.replace("t", {"rows": {"a": {"n": 1}}}):
        staged.took(body)
        tables.apply(0, body)
    seen = tables.picture("t")
    for body in staged.replace_rows("t", "rows", {"a": {"n": 2}}):
        tables.apply(1, body)
    assert (seen, tables.picture("t")) == ({"rows": {"a": {"n": 1}}}, {"rows": {"a": {"n": 2}}})


def test_a_row_that_went_and_came_again_between_two_batches_keeps_nothing_of_the_old_one() -> None:
    tables = ReplicatedTables()
    staged = StagedTables(tables)
    index = 0
    for row in ({"0": 5, "1": 6}, {"1": 1}):
        for body in staged.replace_rows("o", "offsetTable", {"T@g": row}):
            staged.took(body)
            tables.apply(index, body)
            index += 1
    assert tables.picture("o") == {"offsetTable": {"T@g": {"1": 1}}}


def test_an_entry_that_is_not_understood_changes_nothing() -> None:
    tables = ReplicatedTables()
    with pytest.raises(MetadataError, match="format 9"):
        tables.apply(0, b'{"format":9,"patch":{},"table":"t"}')
    assert tables == ReplicatedTables()


def test_an_entry_that_is_applied_again_changes_nothing() -> None:
    tables = ReplicatedTables()
    staged = StagedTables(tables)
    bodies = [body for n in range(3) for body in staged.replace("t", {"rows": {"a": {"n": n}}})]
    for index, body in enumerate(bodies):
        assert tables.apply(index, body) is not None
    for index, body in enumerate(bodies):
        assert tables.apply(index, body) is None
    assert (tables.applied_index, tables.picture("t")) == (2, {"rows": {"a": {"n": 2}}})


def test_entries_that_the_log_did_not_take_are_made_again() -> None:
    staged = StagedTables(ReplicatedTables(), max_body_bytes=100)
    rows = {name: {"perm": 6} for name in ("T1", "T2", "T3", "T4")}
    bodies = staged.replace_rows("t", "rows", rows)
    assert len(bodies) > 1
    staged.took(bodies[0])
    assert staged.replace_rows("t", "rows", rows) == bodies[1:]


def test_the_applied_index_only_rises() -> None:
    tables = ReplicatedTables(5)
    tables.pass_over(3)
    assert tables.applied_index == 5
    tables.pass_over(8)
    assert tables.applied_index == 8
