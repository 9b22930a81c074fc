"""`tally report`: the state of a cluster in one archive, for those who help to find a problem.

It has what the other commands show: brokers, replicated groups, topics, consumer groups, settings and the audit log. It
has no messages, and no secrets: settings that may be secret are hidden, and texts that look like secrets are replaced
everywhere. Each part that could not be read has its error instead.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import platform
import re
import sys
import tarfile
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.admin.config import HIDDEN, is_secret
from tallystick.admin.models import json_of
from tallystick.client.core.errors import ClientError
from tallystick.node.commands.admin_command import add_cluster_options, run
from tallystick.store.clock import wall_ms

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin

_MODE = 0o600
_MOST_GROUPS = 200
_AUDIT_LINES = 500
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


def add_parsers(commands: Any) -> None:
    """Adds `report`."""
    report = commands.add_parser("report", help="write the state of a cluster, without secrets, to one archive")
    report.add_argument("--file", type=Path, help="the archive (tally-report-TIME.tar.gz in this folder)")
    add_cluster_options(report)
    report.set_defaults(call=lambda args: run(args, _report))


async def _report(admin: Admin, args: argparse.Namespace) -> int:
    path = args.file or Path(f"tally-report-{wall_ms()}.tar.gz")
    parts: dict[str, Callable[[], Awaitable[Any]]] = {
        "clusters": admin.clusters.list,
        "figures": admin.clusters.figures,
        "raft-groups": admin.raft.groups,
        "topics": lambda: _all(lambda cursor: admin.topics.list(system=True, cursor=cursor)),
        "consumer-groups": lambda: _all(lambda cursor: admin.groups.list(system=True, cursor=cursor)),
        "consumer-groups-in-detail": lambda: _details(admin),
        "dead-letters": admin.dead_letters.groups,
        "settings": admin.config.settings,
        "audit": lambda: admin.audit.lines(limit=_AUDIT_LINES),
    }
    contents = {"about": _about(admin)}
    failed = 0
    for name, read in parts.items():
        try:
            contents[name] = json_of(await read())
        except ClientError as error:
            failed += 1
            contents[name] = {"error": str(error)}
            print(f"tally: {name}: {error}", file=sys.stderr)
    await asyncio.to_thread(_write, path, contents)
    print(path)
    return 1 if failed else 0


def _about(admin: Admin) -> dict[str, Any]:
    return {
        "tallystick": version("tallystick"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "nameservers": admin.client.nameservers,
        "writtenMs": wall_ms(),
    }


async def _all(read: Callable[[str | None], Awaitable[Any]]) -> dict[str, Any]:
    """All parts of a list."""
    items: list[Any] = []
    problems: list[Any] = []
    cursor = None
    while True:
        page = await read(cursor)
        items, problems, cursor = items + page.items, problems + page.problems, page.cursor
        if cursor is None:
            return {"items": items, "problems": problems}


async def _details(admin: Admin) -> list[Any]:
    """Groups in detail, those with the largest lag first."""
    page = await _all(lambda cursor: admin.groups.list(cursor=cursor))
    groups = sorted(page["items"], key=lambda group: -(group.lag or 0))[:_MOST_GROUPS]
    return [await admin.groups.get(group.name) for group in groups]


def without_secrets(value: Any, name: str = "") -> Any:
    """Returns JSON without what may be a secret: values of fields whose names say so, and passwords in addresses."""
    if isinstance(value, dict):
        return {key: without_secrets(each, str(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [without_secrets(each, name) for each in value]
    if isinstance(value, str):
        return HIDDEN if value and is_secret(name) else _IN_ADDRESS.sub(HIDDEN, value)
    return value


def _write(path: Path, contents: dict[str, Any]) -> None:
    """Only the user can read the archive: names of topics and clients are not for others. It never replaces a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, value in contents.items():
                data = json.dumps(without_secrets(value), indent=2).encode()
                entry = tarfile.TarInfo(f"tally-report/{name}.json")
                entry.size, entry.mode, entry.mtime = len(data), _MODE, wall_ms() // 1000
                archive.addfile(entry, io.BytesIO(data))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
