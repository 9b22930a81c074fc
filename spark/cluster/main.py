"""`tally-spark driver|worker|archive`: the processes of a job in a cluster. What they do is in the plan."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    import pyspark as _  # noqa: F401
except ImportError:
    sys.exit("tally-spark: pip install 'tallystick[spark]' brings what it needs")

from tallystick.spark.cluster.java import Ports


def main(argv: Sequence[str] | None = None) -> int:
    """0, 1 or 2, as `driver.py` and `worker.py` say."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    match args.role:
        case "driver":
            from tallystick.spark.cluster.driver import DriverSettings, run_driver

            return run_driver(args.plan, DriverSettings(args.result, args.secret, args.ports))
        case "worker":
            from tallystick.spark.cluster.worker import WorkerSettings, run_worker

            return run_worker(args.plan, args.node, WorkerSettings(args.secret, args.token, args.ports))
        case "archive":
            from tallystick.spark.cluster.archive import make_archive

            return make_archive(args.file)
    raise AssertionError(args.role)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tally-spark", description="A job in a cluster: its driver and its workers.")
    roles = parser.add_subparsers(dest="role", metavar="ROLE", required=True)
    driver = roles.add_parser("driver", help="plan, run, and tell what came of it")
    worker = roles.add_parser("worker", help="read beside one volume")
    for role in (driver, worker):
        role.add_argument("--plan", type=Path, required=True, metavar="FILE", help="what is to be done, as JSON")
        role.add_argument(
            *("--secret", "--secret-file"),
            type=Path,
            default=Path("/etc/tallystick-job-secret/secret"),
            metavar="FILE",
            help="what driver and workers know each other by",
        )
        role.add_argument(
            "--ports",
            type=_ports,
            default=Ports(),
            metavar="D,B,P",
            help="driver, its blocks, progress (7077,7078,8080)",
        )
    driver.add_argument(
        "--result", type=Path, default=Path("/dev/termination-log"), metavar="FILE", help="where the last word goes"
    )
    worker.add_argument("--node", required=True, metavar="NAME", help="whose volume is here")
    worker.add_argument(
        "--token", type=Path, default=Path("/etc/tallystick-reader/token"), metavar="FILE", help="for stores over HTTP"
    )
    archive = roles.add_parser("archive", help="make an archive of Java's classes, so that both start faster")
    archive.add_argument("file", type=Path, help="made there")
    return parser


def _ports(text: str) -> Ports:
    driver, blocks, progress = (int(each) for each in text.split(","))
    return Ports(driver, blocks, progress)


if __name__ == "__main__":
    sys.exit(main())
