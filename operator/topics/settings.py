"""Settings of topics and consumer groups on a broker as values: their JSON form, and how they are corrected.

`wanted.repaired(found)` returns what to write in place of `found`; it equals `found` if nothing must be written.
Numbers of queues are never lowered, because the messages of a removed queue would be unreachable; additional queues are
reported (`excess`). An administrator may lower only the write queues to drain the other queues; they are kept unless
they are below the declared number.

The JSON form is that of the HTTP admin API of brokers, `GET /topics` and `GET /consumergroups`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

PERMISSIONS = {"ReadWrite": 6, "ReadOnly": 4, "WriteOnly": 2}
_PERMISSION_NAMES = {bits: name for name, bits in PERMISSIONS.items()}
MAX_QUEUES = 1024
MAX_RETENTION_HOURS = 87_600


class SpecError(ValueError):
    """The spec is invalid; retrying will not help."""


class Settings(Protocol):
    """The interface of the settings of both kinds. Values are immutable and compared by value."""

    @property
    def name(self) -> str: ...

    def repaired(self, found: Self) -> Self:
        """Returns what to write in place of `found`; `found` if nothing must be written."""

    def excess(self, found: Self) -> str:
        """Returns a description of differences that are not corrected; empty: there are none."""

    def difference(self, found: Self) -> str:
        """Returns a description of the differences for an event."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object of the admin API."""

    def shown(self) -> dict[str, Any]:
        """Returns the fields for the status of one group."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic on one broker. `perm`: bits 4 read, 2 write, 1 inherit.

    `retention_hours`: None if it is not stated, so that a broker that does not know the field gets none. A resource
    without a retention wants none; only where a topic has one, 0 is written.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERMISSIONS["ReadWrite"]
    order: bool = False
    retention_hours: int | None = None

    @classmethod
    def from_spec(cls, name: str, spec: Mapping[str, Any]) -> Self:
        """Parses a spec. SpecError: the number of queues, the permission or the retention is invalid."""
        queues = _number(spec, "queues", 8, 1, MAX_QUEUES)
        permission = spec.get("permission", "ReadWrite")
        if permission not in PERMISSIONS:
            raise SpecError(f"spec.permission must be one of {', '.join(PERMISSIONS)}, not {permission!r}")
        retention = spec.get("retention")
        if not isinstance(retention, Mapping | None):
            raise SpecError(f"spec.retention must be an object, not {retention!r}")
        hours = _number(retention or {}, "hours", 0, 0, MAX_RETENTION_HOURS, "spec.retention")
        return cls(name, queues, queues, PERMISSIONS[permission], _flag(spec, "ordered", False), hours or None)

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Self:
        """Parses a JSON object. KeyError, TypeError, ValueError: it is not a topic."""
        return cls(
            str(value["name"]),
            int(value["readQueues"]),
            int(value["writeQueues"]),
            int(value["perm"]),
            bool(value.get("order", False)),
            int(value.get("retentionHours", 0)) or None,
        )

    def to_wire(self) -> dict[str, Any]:
        retention = {} if self.retention_hours is None else {"retentionHours": self.retention_hours}
        return {
            "name": self.name,
            "readQueues": self.read_queues,
            "writeQueues": self.write_queues,
            "perm": self.perm,
            "order": self.order,
            **retention,
        }

    def repaired(self, found: Self) -> Self:
        write = max(self.write_queues, found.write_queues)
        hours = self.retention_hours or (0 if found.retention_hours else found.retention_hours)
        return replace(
            self,
            read_queues=max(self.read_queues, found.read_queues, write),
            write_queues=write,
            retention_hours=hours,
        )

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
            ("retention", _hours_text(found.retention_hours), _hours_text(self.retention_hours)),
        )
        return [row for row in rows if row[1] != row[2]]

    def shown(self) -> dict[str, Any]:
        retention = {"retentionHours": self.retention_hours} if self.retention_hours else {}
        return {"queues": self.write_queues, "permission": permission_name(self.perm), **retention}


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """A consumer group on one broker. The defaults are those that a broker uses for an unknown group."""

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
        """Parses a spec. SpecError: a field has a wrong type or is out of range."""
        flags = {field: _flag(spec, key, True) for key, field in _FLAGS.items()}
        numbers = {
            field: _number(spec, key, default, low, high) for key, (field, default, low, high) in _NUMBERS.items()
        }
        return cls(name, **flags, **numbers)  # type: ignore[arg-type]  # the tables name fields of these types

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Self:
        """Parses a JSON object. KeyError, TypeError, ValueError: it is not a consumer group."""
        flags = {field: bool(value[key]) for key, field in _WIRE_FLAGS.items()}
        numbers = {field: int(value[key]) for key, field in _WIRE_NUMBERS.items()}
        return cls(str(value["name"]), **flags, **numbers)  # type: ignore[arg-type]  # as above

    def to_wire(self) -> dict[str, Any]:
        pairs = (*_WIRE_FLAGS.items(), *_WIRE_NUMBERS.items())
        return {"name": self.name, **{key: getattr(self, field) for key, field in pairs}}

    def repaired(self, found: Self) -> Self:
        return self  # the retry topic keeps its queues: this number is used only when it is created

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
"""Fields of the resource: attribute, default, minimum and maximum."""
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
"""Fields of the admin API, with the names of RocketMQ."""


def permission_name(perm: int) -> str:
    """Returns ReadWrite, ReadOnly or WriteOnly; the number for other bits."""
    return _PERMISSION_NAMES.get(perm, str(perm))


def _hours_text(hours: int | None) -> str:
    return f"{hours} h" if hours else "none"


def _number(spec: Mapping[str, Any], key: str, default: int, low: int, high: int, where: str = "spec") -> int:
    value = spec.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SpecError(f"{where}.{key} must be a number from {low} to {high}, not {value!r}")
    return value


def _flag(spec: Mapping[str, Any], key: str, default: bool) -> bool:
    value = spec.get(key, default)
    if not isinstance(value, bool):
        raise SpecError(f"spec.{key} must be true or false, not {value!r}")
    return value
