"""What a topic or a consumer group is on a broker, as values: the wire form, and the rule for putting one right.

`wanted.repaired(found)` is what to write where `found` is: equal to `found` if nothing is to be done. Numbers of queues
only go up: a queue that is no longer read hides its messages, so what is above the wanted number stays and is told
(`excess`). Write queues alone may have been lowered by an administrator who empties a topic's upper queues; that is
left to him as long as they are not below what is wanted.

The wire form is that of the brokers' HTTP admin API, `GET /topics` and `GET /consumergroups`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

PERMISSIONS = {"ReadWrite": 6, "ReadOnly": 4, "WriteOnly": 2}
_PERMISSION_NAMES = {bits: name for name, bits in PERMISSIONS.items()}
MAX_QUEUES = 1024


class SpecError(ValueError):
    """The resource says something that cannot be; only its author can mend it."""


class Settings(Protocol):
    """What both kinds have in common. Immutable; compared by value."""

    @property
    def name(self) -> str: ...

    def repaired(self, found: Self) -> Self:
        """What to write where `found` is; `found` itself if it will do."""

    def excess(self, found: Self) -> str:
        """What of `found` is wrong and stays so, in words; empty: nothing."""

    def difference(self, found: Self) -> str:
        """What differs between this and `found`, in words for an event."""

    def to_wire(self) -> dict[str, Any]:
        """The object that the admin API takes and gives."""

    def shown(self) -> dict[str, Any]:
        """What a group's line in the resource's status says."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic of one broker. `perm`: bits 4 read, 2 write, 1 inherit."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERMISSIONS["ReadWrite"]
    order: bool = False

    @classmethod
    def from_spec(cls, name: str, spec: Mapping[str, Any]) -> Self:
        """SpecError: a number of queues or a permission that cannot be."""
        queues = _number(spec, "queues", 8, 1, MAX_QUEUES)
        permission = spec.get("permission", "ReadWrite")
        if permission not in PERMISSIONS:
            raise SpecError(f"spec.permission must be one of {', '.join(PERMISSIONS)}, not {permission!r}")
        return cls(name, queues, queues, PERMISSIONS[permission], _flag(spec, "ordered", False))

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Self:
        """KeyError, TypeError, ValueError: no topic."""
        return cls(
            str(value["name"]),
            int(value["readQueues"]),
            int(value["writeQueues"]),
            int(value["perm"]),
            bool(value.get("order", False)),
        )

    def to_wire(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "readQueues": self.read_queues,
            "writeQueues": self.write_queues,
            "perm": self.perm,
            "order": self.order,
        }

    def repaired(self, found: Self) -> Self:
        write = max(self.write_queues, found.write_queues)
        return replace(self, read_queues=max(self.read_queues, found.read_queues, write), write_queues=write)

    def excess(self, found: Self) -> str:
        most = max(found.read_queues, found.write_queues)
        return f"{most} queues instead of {self.read_queues}" if most > self.read_queues else ""

    def difference(self, found: Self) -> str:
        return ", ".join(f"{what} {is_now} instead of {wanted}" for what, is_now, wanted in self._differences(found))

    def _differences(self, found: Self) -> list[tuple[str, Any, Any]]:
        rows = (
            ("read queues", found.read_queues, self.read_queues),
            ("write queues", found.write_queues, self.write_queues),
            ("permission", permission_name(found.perm), permission_name(self.perm)),
            ("ordered", str(found.order).lower(), str(self.order).lower()),
        )
        return [row for row in rows if row[1] != row[2]]

    def shown(self) -> dict[str, Any]:
        return {"queues": self.write_queues, "permission": permission_name(self.perm)}


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """A consumer group of one broker; the defaults are what a broker makes by itself for an unknown group."""

    name: str
    consume_enabled: bool = True
    consume_from_min_enabled: bool = True
    broadcast_enabled: bool = True
    retry_queues: int = 1
    max_retries: int = 16
    broker_id: int = 0
    slow_consumer_broker_id: int = 1
    notify_consumer_ids_changed: bool = True

    @classmethod
    def from_spec(cls, name: str, spec: Mapping[str, Any]) -> Self:
        """SpecError: a field is not of its type, or a number is out of its bounds."""
        flags = {field: _flag(spec, key, True) for key, field in _FLAGS.items()}
        numbers = {
            field: _number(spec, key, default, low, high) for key, (field, default, low, high) in _NUMBERS.items()
        }
        return cls(name, **flags, **numbers)  # type: ignore[arg-type]  # the tables name fields of these types

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Self:
        """KeyError, TypeError, ValueError: no consumer group."""
        flags = {field: bool(value[key]) for key, field in _WIRE_FLAGS.items()}
        numbers = {field: int(value[key]) for key, field in _WIRE_NUMBERS.items()}
        return cls(str(value["name"]), **flags, **numbers)  # type: ignore[arg-type]  # as above

    def to_wire(self) -> dict[str, Any]:
        pairs = (*_WIRE_FLAGS.items(), *_WIRE_NUMBERS.items())
        return {"name": self.name, **{key: getattr(self, field) for key, field in pairs}}

    def repaired(self, found: Self) -> Self:
        return self  # the retry topic has its queues since it was made: their number here takes nothing away

    def excess(self, found: Self) -> str:
        return ""

    def difference(self, found: Self) -> str:
        names = (field.name for field in fields(self))
        return ", ".join(
            f"{name.replace('_', ' ')} {getattr(found, name)} instead of {getattr(self, name)}"
            for name in names
            if getattr(found, name) != getattr(self, name)
        )

    def shown(self) -> dict[str, Any]:
        return {"consumeEnabled": self.consume_enabled}


_FLAGS = {
    "consumeEnabled": "consume_enabled",
    "consumeFromMinEnabled": "consume_from_min_enabled",
    "broadcastEnabled": "broadcast_enabled",
    "notifyConsumerIdsChanged": "notify_consumer_ids_changed",
}
_NUMBERS = {
    "retryQueues": ("retry_queues", 1, 1, MAX_QUEUES),
    "maxRetries": ("max_retries", 16, 0, 1000),
    "brokerId": ("broker_id", 0, 0, 5),
    "slowConsumerBrokerId": ("slow_consumer_broker_id", 1, 0, 5),
}
"""Of the resource: field, default, least and most."""
_WIRE_FLAGS = {
    "consumeEnable": "consume_enabled",
    "consumeFromMinEnable": "consume_from_min_enabled",
    "consumeBroadcastEnable": "broadcast_enabled",
    "notifyConsumerIdsChangedEnable": "notify_consumer_ids_changed",
}
_WIRE_NUMBERS = {
    "retryQueueNums": "retry_queues",
    "retryMaxTimes": "max_retries",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "slow_consumer_broker_id",
}
"""Of the admin API: RocketMQ's names."""


def permission_name(perm: int) -> str:
    """ReadWrite, ReadOnly or WriteOnly; the bits themselves for what no resource can say."""
    return _PERMISSION_NAMES.get(perm, str(perm))


def _number(spec: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = spec.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SpecError(f"spec.{key} must be a number from {low} to {high}, not {value!r}")
    return value


def _flag(spec: Mapping[str, Any], key: str, default: bool) -> bool:
    value = spec.get(key, default)
    if not isinstance(value, bool):
        raise SpecError(f"spec.{key} must be true or false, not {value!r}")
    return value
