"""A cluster of two brokers in this process, for tests of the admin core."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from two_brokers import TwoBrokers

from tallystick.admin import Admin


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[TwoBrokers]:
    """A name server, and the brokers broker-a and broker-b."""
    async with TwoBrokers() as brokers:
        yield brokers


@pytest_asyncio.fixture
async def admin(cluster: TwoBrokers) -> AsyncIterator[Admin]:
    """The admin core of this cluster."""
    async with Admin(cluster.nameserver, timeout=10.0) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account of a person who runs the tests must not sign requests."""
    monkeypatch.delenv("TALLY_CREDENTIALS", raising=False)
