"""Fixtures for pytest, which finds them when the wheel is installed. They need the wheel `tallystick`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tallystick.client.client import Client
from tallystick.client.testing import Broker


def _asynchronous() -> object:
    """The decorator of asynchronous fixtures: that of pytest-asyncio, if it is installed, else that of anyio."""
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture
    return pytest_asyncio.fixture


_fixture = _asynchronous()


@_fixture  # type: ignore[operator]
async def tallystick_broker() -> AsyncIterator[Broker]:
    """A broker and a name server that are running."""
    async with Broker() as broker:
        yield broker


@_fixture  # type: ignore[operator]
async def tallystick_client(tallystick_broker: Broker) -> AsyncIterator[Client]:
    """A client of the broker."""
    async with Client(tallystick_broker.nameserver) as client:
        yield client
