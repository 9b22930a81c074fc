"""The Python client against our node, our group of three, and RocketMQ, with RocketMQ's Java client in its groups.

    .venv/bin/python e2e/client_lab.py --system node --system group --system rocketmq --kills 3

For each system: the steps of `client_suite/steps.py`, then a load. The load is an ordered topic with eight queues,
whose messages go by key. Three Python consumers and a Java consumer are one group. A member leaves, another one joins,
and the broker (of a group: the leader) is killed with -9 and started again. No acknowledged message may be lost, and
the messages of a queue must come for the first time in their order.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
import traceback

from client_suite.access import Access
from client_suite.load import load
from client_suite.running import add_system_options, try_systems
from client_suite.steps import STEPS
from client_suite.systems import System
from lab.peer import Peer

from tallystick.client import Client


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_system_options(parser)
    parser.add_argument("--kills", type=int, default=2, help="how often the broker is killed under load (2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls", action="store_true", help="servers accept only TLS, and clients verify them")
    parser.add_argument("--acl", action="store_true", help="servers demand signatures, and clients sign")
    parser.add_argument("--only", help="steps whose name contains this; `load` is the load")
    parser.add_argument("--strategy", action="append", choices=["AVG", "CONSISTENT_HASH"], help="(both)")
    return parser.parse_args()


async def _steps(system: System, peer: Peer, options: argparse.Namespace) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, step in enumerate(STEPS):
        if options.only and options.only not in step.__name__:
            continue
        begin_s = time.monotonic()
        async with Client(system.nameserver, **system.access.client()) as client:
            try:
                found[step.__name__] = await step(client, f"step-{number}-{options.seed}", peer)
            except Exception as error:
                found[step.__name__] = [
                    f"{type(error).__name__}: {error}",
                    *traceback.format_tb(error.__traceback__)[-1:],
                ]
        _tell(step.__name__, found[step.__name__], begin_s)
    for strategy in options.strategy or ("AVG", "CONSISTENT_HASH"):
        if not options.only or options.only == "load":
            begin_s = time.monotonic()
            name = f"load with {strategy}"
            found[name] = await load(system, peer, kills=options.kills, strategy=strategy, seed=options.seed)
            _tell(name, found[name], begin_s)
    return found


def _tell(name: str, wrong: list[str], begin_s: float) -> None:
    print(f"{'WRONG' if wrong else 'ok':5} {name} ({time.monotonic() - begin_s:.1f} s)", flush=True)
    for line in wrong[:10]:
        print(f"      {line}", flush=True)


def main() -> int:
    """Returns the exit code of `try_systems`."""
    options = _options()
    logging.basicConfig(level=logging.ERROR)
    return try_systems(
        "client",
        options,
        lambda folder: Access.made(folder, tls=options.tls, acl=options.acl),
        lambda system, peer: any(asyncio.run(_steps(system, peer, options)).values()),
    )


if __name__ == "__main__":
    sys.exit(main())
