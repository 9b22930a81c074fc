"""The programs in docs/client.md run."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.client.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
_BLOCK = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS: dict[str, str] = dict(_BLOCK.findall(PAGE.read_text()))
_RUN = "asyncio.run(main())\n"
_ADDRESS = '"127.0.0.1:9876"'
WANTED = {
    "Send": "Orders/broker-a/",
    "Send many": "10000 stored, 0 failed",
    "Order": "['created', 'paid', 'sent']",
    "Consume": "new [] b'hello'",
    "Filter with SQL": "b'high'",
    "Request and reply": "b'hello, world'",
    "Pull": "b'one'",
    "Broadcast": "b'hello'",
    "Values": "['a', 'b']",
    "Values of a model": "Order(id=1, lines=['a'])",
    "Message traces": "processed True",
    "OpenTelemetry": "the current span is that of the message",
    "TLS and access control": "the server closed the connection",
    "Errors": "no such topic: 17 127.0.0.1:",
    "Timeouts": "no message within a second",
    "Events": "connected 127.0.0.1:",
    "Test": "SendResult(",
}
"""What a program prints, if it prints anything that is the same each time."""


@pytest.mark.parametrize("title", PROGRAMS)
async def test_a_program_of_the_page_runs(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = PROGRAMS[title]
    assert code.endswith(_RUN)
    names: dict[str, Any] = {}
    async with Broker(enablePropertyFilter=True) as broker:
        program = code.removesuffix(_RUN).replace(_ADDRESS, repr(broker.nameserver))
        exec(compile(program, f"{PAGE}: {title}", "exec"), names)
        main: Callable[[], Awaitable[None]] = names["main"]
        async with asyncio.timeout(120):
            await main()
    assert WANTED.get(title, "") in capsys.readouterr().out


def test_each_section_with_code_is_a_program() -> None:
    assert len(PROGRAMS) == PAGE.read_text().count("```python")
    assert WANTED.keys() <= PROGRAMS.keys()
