"""The command `tally-spark driver|worker|archive`: the processes of a StoreJob. A plan file says what they do."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    import pyspark as _  # noqa: F401
except ImportError:
    sys.exit("tally-spark: pyspark is not installed: run pip install 'tallystick[spark]'")

from tallystick.spark.cluster.java import Ports
from tallystick.store.command_line import CommandParser
from tallystick.store.standard_output import while_it_is_read


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the process and returns its exit status: see `driver.py` and `worker.py`."""
    return while_it_is_read("tally-spark", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    match args.role:
        case "driver":
            from tallystick.spark.cluster.driver import DriverSettings, run_driver

            return run_driver(args.plan, DriverSettings(args.result, args.secret, args.token, args.ports))
        case "worker":
            from tallystick.spark.cluster.worker import WorkerSettings, run_worker

            return run_worker(args.plan, args.node, WorkerSettings(args.secret, args.token, args.ports), args.number)
        case "archive":
            from tallystick.spark.cluster.archive import make_archive

            return make_archive(args.file)
    raise AssertionError(args.role)


def _parser() -> CommandParser:
    description = "Runs one process of a StoreJob in Kubernetes: its driver or a worker."
    parser = CommandParser(prog="tally-spark", description=description)
    parser.add_version()
    roles = parser.add_subparsers(dest="role", metavar="ROLE", required=True)
    driver = roles.add_parser("driver", help="plan and run the job, and write its result")
    worker = roles.add_parser("worker", help="read the store of one volume")
    for role in (driver, worker):
        role.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan of the job, as JSON")
        role.add_argument(
            *("--secret", "--secret-file"),
            type=Path,
            default=Path("/etc/tallystick-job-secret/secret"),
            metavar="FILE",
            help="secret with which driver and workers authenticate each other",
        )
        role.add_argument(
            "--ports",
            type=_ports,
            default=Ports(),
            metavar="D,B,P",
            help="ports of the driver, its block manager and its progress page (7077,7078,8080)",
        )
    driver.add_argument(
        "--result", type=Path, default=Path("/dev/termination-log"), metavar="FILE", help="file for the result"
    )
    worker.add_argument("--node", required=True, metavar="NAME", help="broker node whose volume is mounted")
    worker.add_argument(
        "--number", type=int, default=1, metavar="N", help="which of the workers beside this volume it is, from 1"
    )
    for role in (driver, worker):
        role.add_argument(
            "--token",
            type=Path,
            default=Path("/etc/tallystick-reader/token"),
            metavar="FILE",
            help="token for reading stores over HTTP",
        )
    archive = roles.add_parser(
        "archive", help="write an archive of Java classes, with which driver and worker start faster"
    )
    archive.add_argument("file", type=Path, help="the archive to write")
    return parser


def _ports(text: str) -> Ports:
    driver, blocks, progress = (int(each) for each in text.split(","))
    return Ports(driver, blocks, progress)


if __name__ == "__main__":
    sys.exit(main())
