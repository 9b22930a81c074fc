"""The options of `spark.read.format("tallystick")`. Spark passes all options as texts; this module parses them.

path             stores, separated by commas, or as Spark's list: directories, brokers, name servers, backups
                 (`places.py`); `name=directory` gives a source its name, `group/name=directory` also names its group
                 (write a relative directory with = in it as ./a=b). Without it, in a program of a StoreJob: the stores
                 of the job
stores           the same; for CREATE TABLE, where Spark changes `path`
token, tokenFile, ca, keyFile     the token for brokers, or a file with it; certificates in PEM format that a broker's
                 must be signed with; the key file of encrypted backups
topic, queue     one or several, separated by commas
from, to         half-open, [from, to): whole numbers are queue offsets, anything else an ISO 8601 time of storing
                 (UTC if it names no zone)
key              messages with this unique key or key; several, separated by commas
committed        position in the log up to which to read, from the broker; without it, the files determine it
columns          separated by commas, `*`: all with the body as it is stored; without it, all but the body; `content`
                 and `content_error`, the decompressed body and why there is none, are named in addition
maxContentBytes  of a body after its decompression (64 MiB); a larger one has no content
verify           true: the CRC of every body is checked; without it, only if the body is read
mode             PERMISSIVE: damage is skipped and reported; FAILFAST: it ends the job, as does a body without content
damagePath       folder (shared by the executors) for damage: a file of JSON lines for each split
view             messages, or damage: the damage as a separate table
splitBytes       approximate bytes of a file for one task
pushdown         false: Spark applies its filters, not the scanner
pruning          false: the whole log is read, also where queues, index and store times exclude a part
maxBytesPerTrigger, failOnDataLoss, startingPosition (earliest, latest)          streams only
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from tallystick.spark.access import NO_ACCESS, Access, AccessError
from tallystick.spark.columns import ALL, BODIES, SCHEMA, WITHOUT_BODY
from tallystick.spark.job_stores import stores_of_job
from tallystick.spark.places import JOB, FoundStore, PlaceError, opened, stores_at
from tallystick.spark.scan import CONTENT_BYTES, Int64Range, Wanted
from tallystick.spark.splits import SPLIT_BYTES
from tallystick.spark.volume import Source, Volume

T = TypeVar("T")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

KNOWN = (
    *(
        "path",
        "paths",
        "stores",
        "token",
        "tokenFile",
        "ca",
        "keyFile",
        "topic",
        "queue",
        "from",
        "to",
        "key",
        "committed",
        "columns",
        "verify",
        "mode",
        "damagePath",
    ),
    *("view", "splitBytes", "pushdown", "pruning", "maxBytesPerTrigger", "failOnDataLoss", "startingPosition"),
    "maxContentBytes",
)


class OptionError(ValueError):
    """An option is unknown, missing or wrong; `option` is its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option}: {reason}")
        self.option = option


_NAMED = re.compile(r"(?:(?P<group>[^/.=][^/=]*)/)?(?P<member>[^/=]+)=(?P<folder>.+)")


@dataclass(frozen=True, slots=True)
class StorePath:
    """One entry of `path`. `group` and `member`: its names, None if they are not given. `http`: the address of the
    broker of a folder."""

    folder: str
    member: str | None = None
    group: str | None = None
    http: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read: see the module's docstring. `parse` refuses invalid values."""

    paths: tuple[StorePath, ...]
    access: Access = NO_ACCESS
    wanted: Wanted = Wanted()  # noqa: RUF009 -- frozen
    columns: tuple[str, ...] = WITHOUT_BODY
    committed: int | None = None
    verify: bool | None = None
    fail_fast: bool = False
    damage_path: str | None = None
    view: str = "messages"
    split_bytes: int = SPLIT_BYTES
    pushdown: bool = True
    pruning: bool = True
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    start_at_latest: bool = False
    max_content_bytes: int = CONTENT_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parses the options. OptionError: one of them is unknown, missing or invalid."""
        given = {}
        names = {name.lower(): name for name in KNOWN}
        for name, text in options.items():
            if name.lower() not in names:
                raise OptionError(name, f"is unknown; the options are {', '.join(KNOWN)}")
            given[names[name.lower()]] = text
        take = given.get
        offsets, times = _range(take("from"), take("to"))
        wanted = Wanted(
            topics=_list(take("topic")),
            queues=_integers("queue", take("queue")),
            queue_offsets=offsets,
            store_times_ms=times,
            keys=_list(take("key")),
        )
        committed = take("committed")
        limit = take("maxBytesPerTrigger")
        verify = take("verify")
        return cls(
            paths=_paths(take("stores", take("path")), take("paths")),
            access=_access(take("token"), take("tokenFile"), take("ca"), take("keyFile")),
            wanted=wanted,
            columns=_columns(take("columns")),
            committed=None if committed is None else _integer("committed", committed, 0),
            verify=None if verify is None else _choice("verify", verify, {"true": True, "false": False}),
            fail_fast=_choice("mode", take("mode", "PERMISSIVE"), {"permissive": False, "failfast": True}),
            damage_path=take("damagePath"),
            view=_choice("view", take("view", "messages"), {"messages": "messages", "damage": "damage"}),
            split_bytes=_integer("splitBytes", take("splitBytes", str(SPLIT_BYTES)), 1),
            pushdown=_choice("pushdown", take("pushdown", "true"), {"true": True, "false": False}),
            pruning=_choice("pruning", take("pruning", "true"), {"true": True, "false": False}),
            max_bytes_per_trigger=None if limit is None else _integer("maxBytesPerTrigger", limit, 1),
            fail_on_data_loss=_choice("failOnDataLoss", take("failOnDataLoss", "true"), {"true": True, "false": False}),
            start_at_latest=_choice(
                "startingPosition", take("startingPosition", "earliest"), {"earliest": False, "latest": True}
            ),
            max_content_bytes=_integer("maxContentBytes", take("maxContentBytes", str(CONTENT_BYTES)), 1, 1 << 30),
        )

    @property
    def check_crc(self) -> bool:
        """Whether CRCs are checked: always if bodies are read, because it costs little more then."""
        return not BODIES.isdisjoint(self.columns) if self.verify is None else self.verify

    def reading(self, columns: Iterable[str]) -> ReadOptions:
        """Returns these options with other columns. OptionError: a column does not exist."""
        return replace(self, columns=_known(columns))

    def sources(self, *, members: bool = False) -> list[Source]:
        """Finds the stores, by the names that their rows have. OptionError: a place has none, or two have the same
        name; StoreClientError, VolumeError, OSError: see `places.stores_at`.

        A member of a group has the group's name, because all members have the same log; with `members` its own name.
        """
        try:
            access = self.access.for_tasks()
        except AccessError as error:
            raise OptionError(error.option, str(error)) from error
        found = [source for path in self.paths for source in self._sources_at(path, access, members)]
        names = [source.source for source in found]
        if len(set(names)) < len(names):
            raise OptionError("path", f"two sources have the same name: {', '.join(names)} (give names: name=place)")
        return found

    def _sources_at(self, path: StorePath, access: Access, members: bool) -> Iterator[Source]:
        if path.http is not None:
            stores, access = [FoundStore(path.folder, http=path.http)], self.access  # each worker has its file
        else:
            try:
                stores = stores_at(path.folder, access)
            except PlaceError as error:
                raise OptionError("path", str(error)) from error
        if path.member is not None and len(stores) > 1:
            raise OptionError("path", f"{path.member}={path.folder} names {len(stores)} stores: leave out the name")
        for store in stores:
            group = path.group or (store.group if path.member is None else None)
            member = path.member or store.member
            yield Source(
                (member if members else group or member) or group or store.root,
                store.root,
                group,
                store.http,
                store.committed if self.committed is None else self.committed,
                access,
            )

    def volumes(self) -> list[Volume]:
        """Looks at the stores in their present state. OptionError: two have the same name; VolumeError,
        StoreClientError, OSError."""
        found = []
        for source in self.sources():
            with opened(source, with_queues=False) as volume:
                found.append(volume)
        return found


def _access(token: str | None, token_file: str | None, ca: str | None, key_file: str | None) -> Access:
    try:
        return Access.of(token, token_file, ca, key_file)
    except AccessError as error:
        raise OptionError(error.option, str(error)) from error


def _paths(path: str | None, paths: str | None) -> tuple[StorePath, ...]:
    listed = [str(item) for item in json.loads(paths)] if paths else []
    listed += [item.strip() for item in (path or "").split(",") if item.strip()]
    if not listed and stores_of_job() is not None:
        listed = [JOB]
    if not listed:
        raise OptionError("path", "name a store: a directory or an address; or several, separated by commas")
    named = [(item, _NAMED.fullmatch(item)) for item in listed]
    return tuple(
        StorePath(match["folder"], match["member"], match["group"]) if match else StorePath(item)
        for item, match in named
    )


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(item.strip() for item in text.split(",") if item.strip())


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return WITHOUT_BODY
    return tuple(SCHEMA.names) if text.strip() == "*" else _known(_list(text) or ())


def _known(columns: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(columns)
    for name in chosen:
        if name not in ALL.names:
            raise OptionError("columns", f"there is no column {name!r}; there are {', '.join(ALL.names)}")
    return chosen


def _integer(option: str, text: str, least: int, most: int = INT64_MAX) -> int:
    try:
        value = int(text)
    except ValueError:
        raise OptionError(option, f"must be a whole number, not {text!r}") from None
    if not least <= value <= most:
        bounds = f"{least} or more" if most == INT64_MAX else f"{least} to {most}"
        raise OptionError(option, f"must be {bounds}, not {value}")
    return value


def _integers(option: str, text: str | None) -> tuple[int, ...] | None:
    items = _list(text)
    return None if items is None else tuple(_integer(option, item, -(2**31)) for item in items)


def _choice(option: str, text: str, choices: Mapping[str, T]) -> T:
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise OptionError(option, f"must be one of {', '.join(choices)}, not {text!r}") from None


def _range(low: str | None, high: str | None) -> tuple[Int64Range | None, Int64Range | None]:
    """Returns the ranges of queue offsets and of store times of `from` and `to`, both inclusive."""
    offsets, times = [INT64_MIN, INT64_MAX], [INT64_MIN, INT64_MAX]
    for end, option, text in ((0, "from", low), (1, "to", high)):
        if text is None:
            continue
        try:
            bounds, value = offsets, int(text)
        except ValueError:
            bounds, value = times, _time_ms(option, text)
        bounds[end] = value - end
    whole = [INT64_MIN, INT64_MAX]
    return (
        None if offsets == whole else (offsets[0], offsets[1]),
        None if times == whole else (times[0], times[1]),
    )


def _time_ms(option: str, text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(option, f"must be a queue offset or an ISO 8601 time, not {text!r}") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
