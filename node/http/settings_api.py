"""The settings of a broker over HTTP. Bodies are JSON.

    GET /settings   {"settings": {"fileReservedTime": {"value": 72, "unit": "hours", "change": "while running"}, ...}}
    PUT /settings   {"fileReservedTime": 48, ...}: changes these settings; all or none; answered as GET

A change takes effect at once, is on disk before the answer, and holds after a restart. It is a change of this process:
in a replicated group, send it to each member.

A failure is {"error": "...", "leader": 1 or null}. 400: a setting is unknown, needs a restart, or has a wrong value;
the text names it. 503: there is no broker yet, or the change cannot be saved. Then nothing has changed.
"""

from __future__ import annotations

import enum
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tallystick.node.core.configuration import ConfigurationError
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.http.admin_api import AdminView, leader_of
from tallystick.node.http.json_api import ApiError, failed, object_of
from tallystick.store.setting import declaration_of
from tallystick.store.settings import StoreSettings

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker


def settings_routes(view: AdminView) -> list[web.RouteDef]:
    """The routes."""

    async def show(_: web.Request) -> web.Response:
        broker = view.broker()
        return failed(503, view.absent()) if broker is None else _shown(broker)

    async def change(request: web.Request) -> web.Response:
        broker = view.broker()
        if broker is None:
            return failed(503, view.absent())
        try:
            changes = {key: _text(key, value) for key, value in (await object_of(request)).items()}
            broker.change_settings(changes)
        except ApiError as error:
            return failed(error.status, str(error), leader_of(broker))
        except ConfigurationError as error:
            return failed(400, str(error), leader_of(broker))
        except OSError as error:
            return failed(503, f"the settings cannot be saved: {error}", leader_of(broker))
        return _shown(broker)

    return [web.get("/settings", show), web.put("/settings", change)]


def _shown(broker: Broker) -> web.Response:
    shown = {}
    for kind, settings in ((BrokerSettings, broker.settings), (StoreSettings, broker.store.settings)):
        for item in fields(kind):
            known, value = declaration_of(item), getattr(settings, item.name)
            shown[item.name] = {
                "value": value.name if isinstance(value, enum.Enum) else value,
                "unit": known.unit,
                "change": known.change.value,
            }
    return web.json_response({"settings": shown})


def _text(key: str, value: Any) -> str:
    """ApiError: the value is not one of a setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ApiError(400, f"{key} must be a text, a number, true or false")
    return str(value)
