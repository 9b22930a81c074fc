"""A start waits until its advertised name can be resolved, within bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from tallystick.node.core import addresses
from tallystick.node.core.addresses import wait_for_address
from tallystick.store.settings import SettingsError


class Names:
    """A resolver that knows a name from the n-th question on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, from_question: float) -> None:
        self.asked = 0
        self._from = from_question
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)
        monkeypatch.setattr(addresses, "_PAUSE_FIRST_S", 0.0)
        monkeypatch.setattr(addresses, "_PAUSE_MAX_S", 0.0)

    def _look_up(self, name: str, port: Any, **more: Any) -> list[Any]:
        self.asked += 1
        if self.asked < self._from:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


async def test_a_name_that_gets_an_address_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names(monkeypatch, 20)
    with caplog.at_level(logging.WARNING):
        await wait_for_address("brokerIP1", "orders-0-1.shop.svc", 3_600_000, asyncio.Event())
    assert names.asked == 20
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "not a line for each try"
    assert "brokerIP1 'orders-0-1.shop.svc' has no address yet (Name or service not known)" in said[0]


async def test_a_name_that_has_one_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch, 1)
    await wait_for_address("brokerIP1", "here", 0, asyncio.Event())
    assert names.asked == 1


async def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, float("inf"))
    with pytest.raises(SettingsError, match="'nowhere' has no address: Name or service not known") as refused:
        await wait_for_address("brokerIP1", "nowhere", 5, asyncio.Event())
    assert refused.value.key == "brokerIP1"


async def test_a_process_that_is_to_stop_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, float("inf"))
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    await wait_for_address("brokerIP1", "nowhere", 3_600_000, stop)
