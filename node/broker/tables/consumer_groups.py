"""The consumer groups that a broker knows: whether they may consume, and how often a message is retried.

An administrator (200) or the first consumer that names it creates a group. Its name becomes part of the topics
`%RETRY%group` and `%DLQ%group`, so the same characters are allowed as for a topic. The file is
`config/subscriptionGroup.json`.

Source: SubscriptionGroupConfig, SubscriptionGroupManager of RocketMQ 4.8.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.tables.saving import ReplicatedTable, TableFile, rows
from tallystick.node.core.settings import BrokerSettings
from tallystick.store.tables import DataVersion

if TYPE_CHECKING:
    from typing import Self

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TOOLS_GROUP = "TOOLS_CONSUMER"
MAX_GROUP_LENGTH = 255
MAX_RETRY_QUEUE_NUMS = 65535

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def validate_group_name(name: str | None) -> str | None:
    """Why this is not a valid group name; None if it is."""
    if not name or not name.strip():
        return "the specified group is blank"
    if not _NAME.fullmatch(name):
        return "the specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > MAX_GROUP_LENGTH:
        return f"the specified group is longer than group max length {MAX_GROUP_LENGTH}"
    return None


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One group. `retry_max_times`: attempts before a message becomes a dead letter."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True

    def problem(self) -> str | None:
        """Why this group is invalid: its name or its number of retry queues; None if it is valid."""
        problem = validate_group_name(self.group_name)
        if not 0 <= self.retry_queue_nums <= MAX_RETRY_QUEUE_NUMS:
            problem = problem or f"retryQueueNums is 0 to {MAX_RETRY_QUEUE_NUMS}, not {self.retry_queue_nums}"
        return problem

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """From the object in subscriptionGroup.json and in request 200; missing fields get their defaults.

        Raises ValueError or TypeError if it is not a group configuration.
        """
        name = value.get("groupName")
        if not isinstance(name, str):
            raise ValueError(f"a group configuration without a name: {dict(value)!r:.200}")
        flags = {field: bool(value[key]) for key, field in _FLAGS.items() if value.get(key) is not None}
        numbers = {field: int(value[key]) for key, field in _NUMBERS.items() if value.get(key) is not None}
        return cls(name, **flags, **numbers)  # type: ignore[arg-type]  # the two tables name fields of these types

    def to_json(self) -> dict[str, Any]:
        pairs = {key: getattr(self, field) for key, field in (*_FLAGS.items(), *_NUMBERS.items())}
        return {"groupName": self.group_name, **pairs}


_FLAGS = {
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "notifyConsumerIdsChangedEnable": "notify_consumer_ids_changed_enable",
}
_NUMBERS = {
    "brokerId": "broker_id",
    "retryMaxTimes": "retry_max_times",
    "retryQueueNums": "retry_queue_nums",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
}

PREDEFINED = (
    *(SubscriptionGroup(name) for name in (TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP")),
    *(
        SubscriptionGroup(name, consume_broadcast_enable=True)
        for name in ("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER")
    ),
)
"""The groups that every broker has from the beginning."""
_PREDEFINED_BY_NAME = {group.group_name: group for group in PREDEFINED}


class SubscriptionGroupTable(ReplicatedTable):
    """All groups of this broker."""

    what = "subscriptionGroup.json"
    rows_field = "subscriptionGroupTable"
    at_once = True

    def __init__(self, file: TableFile, settings: BrokerSettings, now_ms: Callable[[], int]) -> None:
        """The predefined groups, then the content of `file`. Raises ValueError if that is not a table of groups."""
        super().__init__(file)
        self.settings = settings  # replaced when settings change while the broker runs
        self._now_ms = now_ms
        self._groups = {group.group_name: group for group in PREDEFINED}
        self.data_version = DataVersion(0, now_ms())
        stored = file.load()
        if stored is None:
            self.changed()
            return
        table = rows(stored, "subscriptionGroupTable")
        self._groups.update((name, SubscriptionGroup.from_json(value)) for name, value in table.items())
        if stored.get("dataVersion"):
            self.data_version = DataVersion.from_json(stored["dataVersion"])

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def items(self) -> Iterable[tuple[str, SubscriptionGroup]]:
        return self._groups.items()

    def find(self, name: str) -> SubscriptionGroup | None:
        """The group if it exists; none is created."""
        return self._groups.get(name)

    def get(self, name: str) -> SubscriptionGroup | None:
        """The group, created if it is unknown and that is allowed; None if it is not allowed or the name is invalid."""
        known = self._groups.get(name)
        if known is not None:
            return known
        if not (self.settings.autoCreateSubscriptionGroup or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        if validate_group_name(name) is not None:
            return None
        group = SubscriptionGroup(name)
        self._put(group)
        return group

    @staticmethod
    def is_system(name: str) -> bool:
        """Whether it is one that every broker has, or one of RocketMQ."""
        return name in _PREDEFINED_BY_NAME or name.startswith(SYSTEM_GROUP_PREFIX)

    def update(self, *groups: SubscriptionGroup) -> None:
        """Creates or replaces groups, all or none of them. Raises ValueError if one of them is invalid."""
        self.must_lead()
        for group in groups:
            if problem := group.problem():
                raise ValueError(problem)
        self._put(*groups)

    def disable_consume(self, name: str) -> None:
        """Stops an existing group from consuming."""
        group = self._groups.get(name)
        if group is not None and group.consume_enable:
            self._put(replace(group, consume_enable=False))

    def delete(self, name: str) -> bool:
        """Deletes a group; False if it does not exist. Raises ValueError if this broker is a follower."""
        self.must_lead()
        if self._groups.pop(name, None) is None:
            return False
        self._note(name)
        return True

    def to_json(self) -> dict[str, Any]:
        """The file's content, and the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return {
            "dataVersion": self.data_version.to_json(),
            "subscriptionGroupTable": {name: group.to_json() for name, group in self._groups.items()},
        }

    def row_names(self) -> Collection[str]:
        return self._groups.keys()

    def row_json(self, name: str) -> dict[str, Any] | None:
        group = self._groups.get(name)
        return None if group is None else group.to_json()

    def head_json(self) -> dict[str, Any]:
        return {"dataVersion": self.data_version.to_json()}

    def take_row(self, name: str, row: Any) -> None:
        group = SubscriptionGroup.from_json(row) if row is not None else _PREDEFINED_BY_NAME.get(name)
        if group is None:
            self._groups.pop(name, None)
        else:
            self._groups[name] = group

    def take_head(self, picture: Mapping[str, Any]) -> None:
        if picture.get("dataVersion"):
            self.data_version = DataVersion.from_json(picture["dataVersion"])

    def _put(self, *groups: SubscriptionGroup) -> None:
        if self.follows or not groups:
            return  # a consumer can read here as if it existed; the leader creates it for all members
        for group in groups:
            self._groups[group.group_name] = group
        self._note(*(group.group_name for group in groups))

    def _note(self, *names: str) -> None:
        self.data_version = self.data_version.next(self._now_ms())
        self.changed(*names)
        self.save_soon()
