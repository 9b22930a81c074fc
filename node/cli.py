"""The command `tally`: parses the command line, calls the command, and returns its exit code.

Exit codes: 0 the command succeeded; 1 it found damage, or a server refused its request; 2 it could not be tried (wrong
arguments, wrong settings, no connection, a store that cannot be opened); 130 Ctrl-C stopped it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tallystick.node.backup.errors import BackupError, DamagedBackupError
from tallystick.node.broker.group.queue_ends import QueueEndsError
from tallystick.node.commands import (
    admin_errors,
    backup,
    bench,
    brokers,
    clusters,
    completion,
    config,
    console,
    consumers,
    contexts,
    dead_letters,
    group,
    message,
    messages,
    migrate,
    offsets,
    promote,
    raft,
    report,
    store,
    top,
    topics,
)
from tallystick.node.commands.terminal import InputError, error_text
from tallystick.node.core.client import RequestRefusedError
from tallystick.node.core.configuration import ConfigurationError, Flag, Settings, load
from tallystick.node.core.logs import FORMATS, LEVELS
from tallystick.node.core.settings import WILDCARDS
from tallystick.node.remoting.errors import RemotingError
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.ledger.vote import VoteError
from tallystick.replication.member.errors import MemberError
from tallystick.replication.metadata.entry import MetadataError
from tallystick.replication.transport.certificates import TlsError
from tallystick.store._kernel import DamageError
from tallystick.store.command_line import CommandParser
from tallystick.store.engine.lock import StoreLockedError
from tallystick.store.engine.recovery import RecoveryError
from tallystick.store.engine.restoring import IncompleteStoreError
from tallystick.store.engine.segments import SegmentError
from tallystick.store.fastjson import FastjsonError
from tallystick.store.formats.properties import PropertyError
from tallystick.store.formats.record import RecordError
from tallystick.store.settings import SettingsError
from tallystick.store.standard_output import while_it_is_read
from tallystick.store.tables import TableError
from tallystick.store.verify.repair_plan import RepairError
from tallystick.store.verify.report import VerifyError

# Errors that users, peers and disks can cause: one line each. Any other error is a bug and keeps its traceback.
_CAUSED = (
    *admin_errors.CAUSED,
    ConfigurationError,
    SettingsError,
    RemotingError,
    BackupError,
    StoreLockedError,
    IncompleteStoreError,
    RecoveryError,
    RepairError,
    VerifyError,
    DamageError,
    TableError,
    LedgerError,
    VoteError,
    MemberError,
    MetadataError,
    QueueEndsError,
    TlsError,
    SegmentError,
    InputError,
    PropertyError,
    RecordError,
    FastjsonError,
    OSError,
)


def _take_bodies(args: argparse.Namespace, behind: list[str]) -> bool:
    """Adds the bodies behind an option: `produce TOPIC --tag x BODY`, where argparse ends the list at the option."""
    if any(each.startswith("-") for each in behind):
        return False
    args.body += behind
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code. `arguments`: those after the command's name."""
    return while_it_is_read("tally", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    args, behind = parser.parse_known_args(arguments)
    if behind and not (hasattr(args, "body") and _take_bodies(args, behind)):
        parser.error(f"unrecognized arguments: {' '.join(behind)}")
    if not hasattr(args, "call"):
        parser.print_help()
        return 2
    try:
        contexts.apply_context(args)
        code: int = args.call(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise  # standard output was closed; a lost connection is a RemotingError
    except _CAUSED as error:
        print(f"tally: {error_text(error)}", file=sys.stderr)
        return 1 if isinstance(error, (RequestRefusedError, DamagedBackupError, *admin_errors.REFUSALS)) else 2
    return code


def _parser() -> CommandParser:
    description = "Runs a RocketMQ-compatible message broker and manages topics and stores."
    parser = CommandParser(prog="tally", description=description)
    parser.add_version()
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    run = commands.add_parser("run", help="run a name server, a broker and their HTTP port in one process")
    run.add_argument("--dir", type=Path, help=f"folder for all files (./{_RUN_FOLDER})")
    run.add_argument("--host", help=f"address to listen on and to give to clients ({_RUN_HOST})")
    run.add_argument("--port", type=int, help="the broker's port (10911; 0: any free one)")
    run.add_argument("--nameserver-port", type=int, help="the name server's port (9876; 0: any free one)")
    _process_options(run)
    run.set_defaults(call=_run)

    broker = commands.add_parser("broker", help="run a broker; list, show or drain the brokers of a running cluster")
    broker.add_argument("--dir", type=Path, help="the store's folder (~/store)")
    broker.add_argument("--host", help="address to give to clients (setting brokerIP1)")
    broker.add_argument("--port", type=int, help="the broker's port (10911; 0: any free one)")
    broker.add_argument(
        "--nameserver",
        default=os.environ.get("TALLY_NAMESERVER") or None,
        help="host:port of the name servers, separated by ';' ($TALLY_NAMESERVER)",
    )
    _process_options(broker)
    broker.set_defaults(call=_broker)
    brokers.add_actions(broker)

    nameserver = commands.add_parser("nameserver", help="run a name server")
    nameserver.add_argument("--host", help="address to listen on (0.0.0.0)")
    nameserver.add_argument("--port", type=int, help="the name server's port (9876; 0: any free one)")
    _process_options(nameserver)
    nameserver.set_defaults(call=_nameserver)

    for module in (
        *(clusters, raft, topics, consumers, message, offsets, dead_letters, messages, config, top, bench),
        *(contexts, report, console),
        *(store, backup, group, promote, migrate),
    ):
        module.add_parsers(commands)
    completion.add_parsers(commands, parser)
    return parser


def _process_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--http-port", type=int, help="port of the HTTP API, probes and metrics (8080; 0: any free one; -1: no port)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("TALLY_CONFIG") or None,
        help="file with settings: TOML, or a file of RocketMQ such as broker.conf ($TALLY_CONFIG)",
    )
    parser.add_argument("--log-level", choices=LEVELS, help="lowest level of lines to log (INFO)")
    parser.add_argument(
        "--log-format", choices=FORMATS, help="format of log lines: text, or one JSON object per line (text)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="a setting; can be repeated"
    )


_RUN_FOLDER, _RUN_HOST = "tally-data", "127.0.0.1"


def _run(args: argparse.Namespace) -> int:
    presets = [
        *_folder(_RUN_FOLDER),
        *(_everywhere(_RUN_HOST) if args.host is None else ()),
        Flag("tally run", "broker.brokerName", "broker-a"),
        Flag("tally run", "broker.enablePropertyFilter", True),
    ]
    flags = [
        *(_folder(args.dir) if args.dir is not None else ()),
        *(_everywhere(args.host) if args.host is not None else ()),
        Flag("--port", "broker.listenPort", args.port),
        Flag("--nameserver-port", "nameserver.listenPort", args.nameserver_port),
    ]
    return _start(args, flags, presets, with_nameserver=True, with_broker=True)


def _folder(folder: Path | str) -> Iterator[Flag]:
    yield Flag("--dir", "store.storePathRootDir", str(Path(folder) / "store"))
    yield Flag("--dir", "nameserver.kvConfigPath", str(Path(folder) / "nameserver" / "kvConfig.json"))


def _everywhere(host: str) -> Iterator[Flag]:
    for place in ("broker.bindAddress", "nameserver.bindAddress", "http.host"):
        yield Flag("--host", place, host)
    if host not in WILDCARDS:  # otherwise clients get the default: one of this host's addresses
        yield Flag("--host", "broker.brokerIP1", host)


def _broker(args: argparse.Namespace) -> int:
    flags = [
        Flag("--dir", "store.storePathRootDir", None if args.dir is None else str(args.dir)),
        Flag("--host", "broker.brokerIP1", args.host),
        Flag("--port", "broker.listenPort", args.port),
        Flag("--nameserver", "broker.namesrvAddr", args.nameserver),
    ]
    return _start(args, flags, [], with_nameserver=False, with_broker=True)


def _nameserver(args: argparse.Namespace) -> int:
    flags = [
        Flag("--host", "nameserver.bindAddress", args.host),
        Flag("--port", "nameserver.listenPort", args.port),
    ]
    return _start(args, flags, [], with_nameserver=True, with_broker=False)


def _start(args: argparse.Namespace, flags: list[Flag], presets: list[Flag], **parts: bool) -> int:
    flags = [*flags, Flag("--http-port", "http.port", args.http_port)]
    for table in ("broker", "nameserver"):
        flags.append(Flag("--log-level", f"{table}.logLevel", args.log_level))
        flags.append(Flag("--log-format", f"{table}.logFormat", args.log_format))
    settings: Settings = load(
        file=args.config,
        environment=os.environ,
        assignments=args.assignments,
        flags=[flag for flag in flags if flag.value is not None],
        presets=presets,
        nameserver_alone=not parts["with_broker"],
    )
    # Imported late: it loads the whole broker and the HTTP server, which takes a quarter of a second.
    from tallystick.node.run import run

    return run(settings, **parts)


if __name__ == "__main__":
    sys.exit(main())
