"""The commands and programs in docs/admin.md run."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.client.testing import Broker
from tallystick.node.cli import main as tally

PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.removeprefix("$ tally ")
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
_RUN = "asyncio.run(main())\n"
WANTED = ("Orders 0 True", "topic Prices was changed, or deleted, since it was read", "[('broker-a', 0, None, 0)]")


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
async def test_a_program_of_the_page_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = PROGRAMS[number]
    assert code.endswith(_RUN)
    names: dict[str, Any] = {}
    async with Broker() as broker:
        program = code.removesuffix(_RUN).replace('"127.0.0.1:9876"', repr(broker.nameserver))
        exec(compile(program, f"docs/admin.md, program {number}", "exec"), names)
        main: Callable[[], Awaitable[None]] = names["main"]
        async with asyncio.timeout(120):
            await main()
    assert WANTED[number] in capsys.readouterr().out


async def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TALLY_CONTEXTS", str(tmp_path / "contexts.toml"))
    for name in ("TALLY_CONTEXT", "TALLY_CA"):
        monkeypatch.delenv(name, raising=False)
    async with Broker() as broker:
        monkeypatch.setenv("TALLY_NAMESERVER", broker.nameserver)
        for command in COMMANDS:
            text = command.replace("127.0.0.1:9876", broker.nameserver).replace("127.0.0.1:10911", broker.address)
            code = await asyncio.to_thread(tally, shlex.split(text))
            shown = capsys.readouterr()
            assert code == 0, (command, shown.err)


def test_every_action_of_the_admin_commands_is_on_the_page() -> None:
    assert len(PROGRAMS) == len(WANTED)
    first = {command.split()[0] for command in COMMANDS}
    assert first >= {
        *("cluster", "broker", "raft", "topic", "consumer", "message", "offset", "dlq", "config"),
        *("top", "bench", "report", "context", "completion"),
    }
