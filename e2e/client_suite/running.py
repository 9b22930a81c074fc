"""A lab on each of the systems: it is started, the lab's steps run, and it is stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lab.peer import Peer, PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals

from client_suite.access import Access
from client_suite.systems import GroupOfThree, Node, RocketMQ, System

_SYSTEMS = ("node", "group", "rocketmq")


def add_system_options(parser: argparse.ArgumentParser) -> None:
    """Adds --system and --version."""
    parser.add_argument("--system", action="append", choices=_SYSTEMS, help="one of the systems (all)")
    parser.add_argument("--version", default="4.8.0", help="of RocketMQ and its tools (4.8.0)")


def try_systems(
    prefix: str, options: argparse.Namespace, access_in: Callable[[Path], Access], run: Callable[[System, Peer], bool]
) -> int:
    """Runs a lab on the systems of the options. `access_in`: makes TLS and access control in a folder. `run`: returns
    whether something is wrong. Returns the exit code: 0 if nothing is wrong, 1 if something is, 2 if it could not be
    tried."""
    end_on_signals()
    with work_folder(f"{prefix}-") as work:
        try:
            failed = False
            for name in options.system or _SYSTEMS:
                print(f"-- {name}", flush=True)
                folder = work.path / name
                system = _made(name, folder, access_in(folder), options.version)
                peer = Peer(work.path / f"java-{name}", options.version)
                system.access.prepare_java(peer)
                try:
                    system.start()
                    failed |= run(system, peer)
                finally:
                    system.stop()
        except (PeerMissingError, ProcessError) as error:
            print(error, file=sys.stderr)
            return 2
        work.status = 1 if failed else 0
    return work.status


def _made(name: str, folder: Path, access: Access, version: str) -> System:
    if name == "node":
        return Node(folder, access)
    return GroupOfThree(folder, access) if name == "group" else RocketMQ(folder, access, version)
