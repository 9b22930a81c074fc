"""What a person asks of a replicated group: its state, another leader, another member. HTTP and remoting use it.

A repeated change has no further effect: it succeeds if the member to add is in the group, or the one to remove is not.

A new member begins as a learner (M5) and can become a voter when it is close to the leader's end. A request for `voter`
adds an unknown member as a learner, or promotes a learner: one step per request. If the leader does not reach the
learner, or it is too far behind, the change is refused with the role `learner`: retry.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

from tallystick.replication.member.errors import ChangeError, OutcomeUnknownError, TransferError
from tallystick.replication.membership import AddLearner, Promote, Remove

if TYPE_CHECKING:
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.replication.member.status import GroupStatus

ROLES = ("learner", "voter")
_MAX_NUMBER = (1 << 31) - 1


class Outcome(enum.Enum):
    """Why a change did not succeed."""

    INVALID = "the request is wrong"
    REFUSED = "the group cannot make the change, or not now, or not at this member"
    UNKNOWN = "leadership was lost before the outcome was known"


class GroupChangeError(Exception):
    """A change did not succeed. `leader`: the member that leads; `more`: further fields for the caller."""

    def __init__(self, outcome: Outcome, reason: str, leader: int | None = None, **more: Any) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.leader = leader
        self.more = more


def group_json(group: BrokerGroup) -> dict[str, Any]:
    """The state of a member. Members are numbers; only the leader knows the peers' `lag_bytes` and `match_index`."""
    status = asdict(group.status())
    status["broker"] = {
        "leads": group.leads,
        "unready": group.unready(),
        "tables_saved_index": group.tables.saved_index,
    }
    return {key: _plain(value) for key, value in status.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value.value, int) else value.value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


async def change_group(group: BrokerGroup, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a change and returns the answer: `transfer` ({"target": 1}, {}: to the longest log) {"leader": 1}; `add`
    ({"member": 3, "role": "voter"}) {"index": 57, "role": "learner"}; `remove` ({"member": 3}) {"index": 58}.

    GroupChangeError.
    """
    works = {"transfer": _transfer, "add": _add, "remove": _remove}
    if action not in works:
        raise GroupChangeError(Outcome.INVALID, f"action must be one of {', '.join(works)}, not {action!r:.40}")
    try:
        return await works[action](group, request)
    except (TransferError, ChangeError) as error:
        raise GroupChangeError(Outcome.REFUSED, _with_leader(group, str(error)), group.member.leader) from error
    except OutcomeUnknownError as error:
        raise GroupChangeError(Outcome.UNKNOWN, f"the outcome is unknown: {error}", group.member.leader) from error


def _with_leader(group: BrokerGroup, reason: str) -> str:
    leader = group.member.leader
    if leader == group.number:
        return reason
    who = "no leader is known" if leader is None else f"n{leader} leads: send the request to it"
    return f"{reason} ({who})"


async def _transfer(group: BrokerGroup, request: Mapping[str, Any]) -> dict[str, Any]:
    target = None if request.get("target") is None else _member(group, request["target"])
    return {"leader": await group.transfer(target)}


async def _add(group: BrokerGroup, request: Mapping[str, Any]) -> dict[str, Any]:
    member, role = _member(group, request.get("member")), request.get("role", "voter")
    if role not in ROLES:
        raise _invalid(group, f"role must be one of {', '.join(ROLES)}, not {role!r}")
    status = group.status()
    if member in status.learners and role == "voter":
        try:
            return {"index": await group.member.change(Promote(member)), "role": "voter"}
        except ChangeError as error:
            if not _holds(group, status):
                raise
            leader = group.member.leader  # a later retry may succeed
            raise GroupChangeError(Outcome.REFUSED, str(error), leader, role="learner") from error
    if member in status.voters + status.learners and _holds(group, status):
        return {"index": status.membership_index, "role": "voter" if member in status.voters else "learner"}
    known = {peer.member for peer in status.peers if peer.address is not None}
    if member not in known:
        raise _invalid(group, f"the address of n{member} is unknown: add it to dLegerPeers of every member")
    return {"index": await group.member.change(AddLearner(member)), "role": "learner"}


async def _remove(group: BrokerGroup, request: Mapping[str, Any]) -> dict[str, Any]:
    member, status = _member(group, request.get("member")), group.status()
    if member not in status.voters + status.learners and _holds(group, status):
        return {"index": status.membership_index}
    return {"index": await group.member.change(Remove(member))}


def _holds(group: BrokerGroup, status: GroupStatus) -> bool:
    """Whether the membership is the group's as far as known: only then can a change be reported as done already."""
    return group.leads and status.membership_committed


def _member(group: BrokerGroup, value: Any) -> int:
    text = str(value).removeprefix("n") if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text.isdecimal() or int(text) > _MAX_NUMBER:
        raise _invalid(group, f"a member must be a number from 0, not {value!r}")
    return int(text)


def _invalid(group: BrokerGroup, reason: str) -> GroupChangeError:
    return GroupChangeError(Outcome.INVALID, reason, group.member.leader)
