"""What the tables that are administered over HTTP share: topics and consumer groups. Bodies are JSON.

    GET    /things                 all of them                                                200
    GET    /things/{name}          one, with figures                                          200, 404
    PUT    /things/{name}          {"field": value, ...}: make it, or change these fields     201 made, 200
    POST   /things                 [{"name": ..., "field": value}, ...]: many with one wait   200
    DELETE /things/{name}          ?ifEmpty=true: only if nothing of it is in use             200, 412

A change is answered when it is durable: in a replicated group, when it is committed. Fields that a PUT or an item of a
POST omits stay as they are, or get the default in a new row. Each item of a POST is done or refused separately.

A failure is {"error": "...", "leader": 1 or null}. 400: the request is invalid. 409: this member does not lead, or
accepts no changes now. 503: there is no broker yet, or it is unknown whether the change was made: retry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from aiohttp import web

from tallystick.node.broker.tables.saving import FollowsError, NotReplicatedError
from tallystick.node.http.json_api import ApiError, failed, json_of, object_of

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker

MAX_ITEMS = 1000
"""Limit of one POST."""
MAX_BODY_BYTES = 4 << 20
_INT = (1 << 31) - 1
CREATED, UPDATED, UNCHANGED, REFUSED = "created", "updated", "unchanged", "refused"


@dataclass(frozen=True, slots=True)
class AdminView:
    """What the routes need from their process."""

    broker: Callable[[], Broker | None]
    """The broker, once it has started."""
    absent: Callable[[], str]
    """Why there is no broker."""
    node: Callable[[], dict[str, Any]]
    """The body of GET /node."""


class Table(ABC):
    """One table as its routes see it; created for each request. Rows are frozen dataclasses."""

    path: ClassVar[str]
    plural: ClassVar[str]
    what: ClassVar[str]
    fields: ClassVar[Mapping[str, tuple[str, type]]]
    """By the name in JSON: the row's field, and whether it is a number or a boolean."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @abstractmethod
    def names(self) -> Iterable[str]:
        """The names of all rows."""

    @abstractmethod
    def get(self, name: str) -> Any | None:
        """One row; None if it does not exist."""

    @abstractmethod
    def fresh(self, name: str) -> Any:
        """A new row with its defaults."""

    @abstractmethod
    def problem(self, row: Any) -> str | None:
        """Why a row is invalid; None if it is valid."""

    @abstractmethod
    def is_system(self, name: str) -> bool:
        """Whether it cannot be created, changed or deleted over HTTP."""

    @abstractmethod
    def version(self) -> dict[str, int]:
        """The version of the whole table: it differs after each change."""

    @abstractmethod
    def figures(self, name: str, row: Any) -> dict[str, Any]:
        """What GET of one row returns in addition to its fields."""

    @abstractmethod
    async def update(self, rows: list[Any]) -> None:
        """Creates or changes rows; returns when they and earlier changes are durable."""

    @abstractmethod
    async def delete(self, name: str, query: Mapping[str, str]) -> bool:
        """Deletes a row; returns when that is durable. False if it does not exist. Raises ApiError."""

    def shown(self, name: str, row: Any) -> dict[str, Any]:
        """A row as JSON."""
        values = {key: getattr(row, field) for key, (field, _) in self.fields.items()}
        return {"name": name, **values, "system": self.is_system(name)}

    def planned(self, name: str, values: Mapping[str, Any]) -> tuple[Any, str]:
        """The row as it will be, and whether that is `created`, `updated` or `unchanged`. Raises ApiError."""
        known = self.get(name)
        changes = {}
        for key, value in values.items():
            if key not in self.fields:
                raise ApiError(400, f"a {self.what} has no field {key!r}, only {', '.join(self.fields)}")
            field, kind = self.fields[key]
            # -1 means no limit in some fields. For Python a boolean is a number, which is not wanted here.
            if type(value) is not kind or (isinstance(value, int) and not -1 <= value <= _INT):
                raise ApiError(400, f"{key} is {'a number' if kind is int else 'true or false'}, not {value!r:.100}")
            changes[field] = value
        row = replace(self.fresh(name) if known is None else known, **changes)
        if problem := self.problem(row):
            raise ApiError(400, problem)
        self.must_not_be_system(name)
        return row, CREATED if known is None else UNCHANGED if row == known else UPDATED

    def must_not_be_system(self, name: str) -> None:
        """ApiError."""
        if self.is_system(name):
            raise ApiError(400, f"{name} is a {self.what} of the system: it cannot be changed or deleted")


T = TypeVar("T", bound=Table)
Handle = Callable[[web.Request], Awaitable[web.Response]]


def served(view: AdminView, work: Callable[[Broker, web.Request], Awaitable[web.Response]], *, changes: bool) -> Handle:
    """The handler of a route of the broker: it reports errors as described above. `changes`: it changes something."""

    async def handle(request: web.Request) -> web.Response:
        broker = view.broker()
        if broker is None:
            return failed(503, view.absent())
        try:
            if changes:
                _must_take_changes(broker)
            return await work(broker, request)
        except ApiError as error:
            return failed(error.status, str(error), leader_of(broker), **error.more)
        except FollowsError as error:
            return failed(409, str(error), leader_of(broker))
        except NotReplicatedError as error:
            return failed(503, f"the outcome is unknown: {error}", leader_of(broker))
        except OSError as error:
            return failed(503, f"it is not on disk yet: {error}", leader_of(broker))

    return handle


def table_routes(kind: type[T], view: AdminView) -> list[web.RouteDef]:
    """The routes of one table."""

    def route(work: Callable[[T, web.Request], Awaitable[web.Response]], *, changes: bool) -> Handle:
        return served(view, lambda broker, request: work(kind(broker), request), changes=changes)

    one = kind.path + "/{name}"
    return [
        web.get(kind.path, route(_list, changes=False)),
        web.post(kind.path, route(_put_many, changes=True)),
        web.get(one, route(_show, changes=False)),
        web.put(one, route(_put, changes=True)),
        web.delete(one, route(_delete, changes=True)),
    ]


def leader_of(broker: Broker) -> int | None:
    """The leader of the broker's group, if it is known; None without a group."""
    return None if broker.group is None else broker.group.member.leader


def _must_take_changes(broker: Broker) -> None:
    if broker.group is not None and (reason := broker.group.refusal()) is not None:
        raise ApiError(409, reason)


async def _list(table: Table, request: web.Request) -> web.Response:
    rows = [table.shown(name, table.get(name)) for name in sorted(table.names())]
    return web.json_response({table.plural: rows, "version": table.version()})


async def _show(table: Table, request: web.Request) -> web.Response:
    name = request.match_info["name"]
    row = table.get(name)
    if row is None:
        raise ApiError(404, f"there is no {table.what} {name}")
    return web.json_response(table.shown(name, row) | table.figures(name, row))


async def _put(table: Table, request: web.Request) -> web.Response:
    name = request.match_info["name"]
    values = await object_of(request)
    if values.pop("name", name) != name:
        raise ApiError(400, "the name in the body differs from the name in the path")
    row, result = table.planned(name, values)
    await table.update([] if result == UNCHANGED else [row])
    return web.json_response(table.shown(name, row) | {"result": result}, status=201 if result == CREATED else 200)


async def _put_many(table: Table, request: web.Request) -> web.Response:
    items = await json_of(request)
    if not isinstance(items, list) or not 0 < len(items) <= MAX_ITEMS:
        raise ApiError(400, f"the body is not a list of 1 to {MAX_ITEMS} objects")
    results, rows = [], {}
    for item in items:
        values = dict(item) if isinstance(item, dict) else {}
        name = values.pop("name", None)
        try:
            if not isinstance(name, str):
                raise ApiError(400, "it is not an object with a name")
            if name in rows:
                raise ApiError(400, f"{name} is listed twice")
            row, result = table.planned(name, values)
        except ApiError as error:
            results.append({"name": name, "result": REFUSED, "error": str(error)})
        else:
            rows[name] = None if result == UNCHANGED else row
            results.append({"name": name, "result": result})
    if rows:
        await table.update([row for row in rows.values() if row is not None])
    return web.json_response({"results": results})


async def _delete(table: Table, request: web.Request) -> web.Response:
    name = request.match_info["name"]
    table.must_not_be_system(name)
    return web.json_response({"name": name, "existed": await table.delete(name, request.query)})


def flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean in a query; false if it is missing. Raises ApiError."""
    value = query.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ApiError(400, f"{name} must be true or false, not {value!r}")
    return value == "true"
