"""The group's HTTP API and `tally group`, against a group that answers what a test says."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from tallystick.node.cli import _parser
from tallystick.node.http.server import Probes, application
from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import Role, TransferResult
from tallystick.replication.member.errors import ChangeError, OutcomeUnknownError, TransferError
from tallystick.replication.member.status import GroupStatus, PeerProgress
from tallystick.replication.membership import AddLearner, Promote, Remove

JSON = {"Content-Type": "application/json"}
PEER = PeerProgress(
    member=1,
    voter=True,
    address=("10.0.0.2", 40911),
    connected=True,
    match_index=57,
    lag_bytes=1234,
    state="pipeline",
    seconds_since_heard=0.1,
    disk=DiskState.OK,
    doubt=PossibleLoss.NONE,
)
STATUS = GroupStatus(
    cluster="C1",
    group="g",
    member=0,
    role=Role.LEADER,
    term=4,
    leader=0,
    ready=True,
    accepting=True,
    voters=(0, 1),
    learners=(),
    membership_index=3,
    membership_committed=True,
    first_index=0,
    last_index=60,
    synced_index=60,
    commit_index=57,
    applied_index=57,
    transfer_target=None,
    disk=DiskState.OK,
    doubt=PossibleLoss.NONE,
    fatal=None,
    last_error="",
    peers=(PEER, replace(PEER, member=3, voter=False, match_index=None, lag_bytes=None, disk=None, doubt=None)),
)


class FakeGroup:
    """Answers like `BrokerGroup`; `error` is what a change meets."""

    number = 0
    leads = True

    def __init__(self) -> None:
        self.told = STATUS
        self.error: Exception | None = None
        self.changes: list[object] = []
        self.refusals = 0
        self.tables = SimpleNamespace(saved_index=41)
        self.member = SimpleNamespace(leader=0, change=self._change)

    def status(self) -> GroupStatus:
        return self.told

    def unready(self) -> str | None:
        return None

    async def transfer(self, target: int | None) -> int:
        self.changes.append(("transfer", target))
        if self.error is not None:
            raise self.error
        return 1 if target is None else target

    async def _change(self, change: Any) -> int:
        self.changes.append(change)
        if self.refusals:
            self.refusals -= 1
            raise ChangeError("the learner is 9 MiB behind")
        if self.error is not None:
            raise self.error
        if isinstance(change, AddLearner):
            self.told = replace(self.told, learners=(*self.told.learners, change.member))
        return 61


@pytest.fixture
async def group() -> FakeGroup:
    return FakeGroup()


@pytest.fixture
async def place(group: FakeGroup) -> AsyncIterator[str]:
    probes = Probes(lambda: None, lambda: None, lambda form: iter(()))
    server = TestServer(application(probes, lambda: group))  # type: ignore[arg-type,return-value]
    await server.start_server()
    yield f"127.0.0.1:{server.port}"
    await server.close()


async def run(place: str, *arguments: str) -> int:
    """A command in a separate thread: the server is on this loop."""
    args: argparse.Namespace = _parser().parse_args(["group", *arguments, "--http", place])
    code: int = await asyncio.to_thread(args.call, args)
    return code


async def test_status_for_people_and_for_programs(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(place, "status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["role"], status["disk"], status["peers"][0]["lag_bytes"]) == ("leader", "ok", 1234)
    assert status["broker"] == {"leads": True, "unready": None, "tables_saved_index": 41}
    assert await run(place, "status") == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "group g of cluster C1: n0 leads in term 4"
    assert "57 committed" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("n")]
    assert rows[0] == ["n1", "10.0.0.2:40911", "voter", "yes", "57", "1234", "pipeline", "ok"]
    assert rows[1][:3] == ["n3", "10.0.0.2:40911", "not"]


async def test_leadership_moves_to_the_named_member(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(place, "transfer", "n1") == 0
    assert capsys.readouterr().out == "n1 leads\n"
    assert await run(place, "transfer") == 0
    assert group.changes == [("transfer", 1), ("transfer", None)]


async def test_a_refusal_names_its_reason_and_the_leader(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    group.error = TransferError(TransferResult.UNREACHABLE, 1, 0)
    assert await run(place, "transfer", "1") == 1
    assert "the target does not answer" in capsys.readouterr().err
    group.error, group.member.leader = TransferError(TransferResult.NOT_LEADER, 1, 2), 2
    assert await run(place, "transfer", "1", "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "error": "this member does not lead (n2 leads: send the request to it)",
        "leader": 2,
    }
    group.error = OutcomeUnknownError("leadership was lost")
    assert await run(place, "remove", "n1") == 1
    assert "the outcome is unknown" in capsys.readouterr().err
    assert group.changes[-1] == Remove(1)


async def test_a_new_member_learns_first_and_votes_when_it_has_caught_up(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.node.commands.group._RETRY_S", 0)
    change = group._change

    async def behind(what: Any) -> int:
        group.refusals = 2 if isinstance(what, Promote) and len(group.changes) < 3 else 0
        return await change(what)

    group.member.change = behind
    assert await run(place, "add", "n3") == 0
    assert capsys.readouterr().out == "n3 is a voter\n"
    assert group.changes[0] == AddLearner(3)
    assert group.changes[1:] == [Promote(3)] * (len(group.changes) - 1)
    assert len(group.changes) > 2, "a leader that finds it too far behind is asked again"


async def test_a_learner_that_was_away_is_waited_for(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks a second time finds a learner, and that it is away is no reason to give up."""
    monkeypatch.setattr("tallystick.node.commands.group._RETRY_S", 0)
    group.told = replace(STATUS, learners=(3,))
    group.refusals = 2
    assert await run(place, "add", "n3") == 0
    assert capsys.readouterr().out == "n3 is a voter\n"
    assert group.changes == [Promote(3)] * 3


async def test_a_learner_stays_one(place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(place, "add", "n3", "--learner") == 0
    assert capsys.readouterr().out == "n3 is a learner\n"
    assert group.changes == [AddLearner(3)]


async def test_what_is_asked_for_twice_is_done_once(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who did not get the answer asks again."""
    assert await run(place, "add", "n1", "--json") == 0
    assert await run(place, "remove", "n3", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"index": 3, "role": "voter"}, {"index": 3}]
    assert group.changes == []


@pytest.mark.parametrize("amiss", ["it follows", "the membership is not committed"])
async def test_only_a_leader_says_that_a_change_is_done_already_and_only_when_it_is(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str], amiss: str
) -> None:
    """A follower's membership may be one of the past, and an uncommitted one may come to nothing."""
    if amiss == "it follows":
        group.leads = False
    else:
        group.told = replace(STATUS, membership_committed=False)
    group.error = ChangeError(amiss)
    assert await run(place, "add", "n1") == 1
    assert await run(place, "remove", "n3") == 1
    assert capsys.readouterr().err.count(amiss) == 2
    assert group.changes == [AddLearner(1), Remove(3)]


async def test_a_voter_is_not_waited_for_to_become_a_learner(
    place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(place, "add", "n1", "--learner") == 1
    assert "n1 is a voter already" in capsys.readouterr().err


async def test_an_unknown_member_is_not_added(place: str, group: FakeGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(place, "add", "n9") == 1
    assert "dLegerPeers" in capsys.readouterr().err
    assert group.changes == []


async def test_there_is_no_group() -> None:
    server = TestServer(application(Probes(lambda: None, lambda: None, lambda form: iter(()))))
    await server.start_server()
    assert await run(f"127.0.0.1:{server.port}", "status") == 1
    await server.close()


@pytest.mark.parametrize("body", ["[]", "{", '{"target": -1}', '{"target": true}', '{"target": 99999999999}'])
async def test_an_invalid_request_is_reported_and_changes_nothing(place: str, group: FakeGroup, body: str) -> None:

    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{place}/group/transfer", data=body, headers=JSON) as answer,
    ):
        assert answer.status == 400
        assert "error" in await answer.json()
    assert group.changes == []
