"""Peers that are not there, and may never be: a group's settings name all who may be members some day."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
from transport_lab import QUICK, Member, until

from tallystick.replication.transport import Identity, Lane, Transport, TransportSettings
from tallystick.store.settings import SettingsError


async def test_a_peer_whose_name_leads_nowhere_costs_one_line_a_lane(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def getaddrinfo(host: str, *arguments: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    hours = itertools.count(0, 3600)  # an hour between two looks at the clock: limits by time alone would not do
    settings = replace(QUICK, reconnect_nowhere_ms=20)
    transport = Transport(Identity("c", "g", 0), settings, lambda message, payload: None, clock=lambda: next(hours))
    with caplog.at_level(logging.INFO):
        transport.set_peers({3: ("orders-0-3.shop.svc", 10912)})
        (peer,) = transport.status()
        await until(lambda: all(lane.sent.failures >= 10 for lane in transport.status()[0].lanes.values()))
    said = [record.getMessage() for record in caplog.records]
    assert sorted(said) == [
        f"n3 at orders-0-3.shop.svc:10912 ({lane}): Name or service not known" for lane in ("bulk", "control")
    ]
    assert peer.lanes[Lane.CONTROL].sent.last_error == "Name or service not known"
    await transport.close()


async def test_names_without_an_answer_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the event loop has threads for, and the one that leads somewhere behind them."""
    asked: list[str] = []
    answer = threading.Event()
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        if host != "n9":
            answer.wait()
        return look_up("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    a, b = Member(0, replace(QUICK, connect_timeout_ms=50)), Member(9)
    try:
        a.start()
        b.start()
        a.transport.set_peers({number: (f"n{number}", b.port) for number in range(1, 10)})
        await until(lambda: a.connected(9))
        await until(lambda: all(a.sent(number, Lane.BULK).failures >= 3 for number in range(1, 9)))
        assert a.sent(1, Lane.BULK).last_error == "its name was not resolved within 0.05 s"
        assert asked.count("n1") == 1, "a name is looked up once at a time, however many wait for it, and give up"
    finally:
        answer.set()
        await a.transport.close()
        await b.transport.close()


def test_the_longest_wait_is_not_below_the_first() -> None:
    with pytest.raises(SettingsError) as refused:
        TransportSettings(reconnect_nowhere_ms=10).validate()
    assert refused.value.key == "reconnect_nowhere_ms"
