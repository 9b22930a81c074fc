"""The command `tally`: parse, call, print, and an exit code that means something.

Exit codes: 0 done; 1 the answer is no (damage found, a request refused); 2 it could not be tried (wrong arguments,
wrong settings, no connection).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tallystick.node.configuration import ConfigurationError


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of the console script."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if not hasattr(args, "call"):
        parser.print_help()
        return 2
    try:
        code: int = args.call(args)
    except ConfigurationError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(error)
    except Exception as error:
        from tallystick.node.remoting.errors import RemotingError
        from tallystick.store.settings import SettingsError

        if isinstance(error, RemotingError | SettingsError):
            return _fail(error)
        raise
    return code


def _fail(error: Exception) -> int:
    print(f"tally: {error}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    from tallystick.node.commands import messages, store, topics

    parser = argparse.ArgumentParser(prog="tally", description="A message broker that RocketMQ's clients can use.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    run = commands.add_parser("run", help="name server, broker and HTTP in one process")
    run.add_argument("--dir", type=Path, default=Path("tally-data"), help="folder for everything (./tally-data)")
    run.add_argument("--host", default="127.0.0.1", help="address to listen on and to tell clients (127.0.0.1)")
    run.add_argument("--port", type=int, help="the broker's port (10911)")
    run.add_argument("--nameserver-port", type=int, help="the name server's port (9876)")
    _process_options(run)
    run.set_defaults(call=_run)

    broker = commands.add_parser("broker", help="a broker alone")
    broker.add_argument("--dir", type=Path, help="the store's folder (~/store)")
    broker.add_argument("--host", help="address to tell clients (brokerIP1)")
    broker.add_argument("--port", type=int, help="the broker's port (10911)")
    broker.add_argument("--nameserver", help="host:port of the name servers, ';' between")
    _process_options(broker)
    broker.set_defaults(call=_broker)

    nameserver = commands.add_parser("nameserver", help="a name server alone")
    nameserver.add_argument("--host", help="address to listen on (0.0.0.0)")
    nameserver.add_argument("--port", type=int, help="its port (9876)")
    _process_options(nameserver)
    nameserver.set_defaults(call=_nameserver)

    for module in (topics, messages, store):
        module.add_parsers(commands)
    return parser


def _process_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http-port", type=int, help="port for probes and metrics (8080; -1: none)")
    parser.add_argument("--config", type=Path, default=os.environ.get("TALLY_CONFIG"), help="settings, a TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="one setting; repeat it"
    )


def _run(args: argparse.Namespace) -> int:
    from tallystick.node.run import default_store, run

    host = args.host
    presets: dict[str, object] = {
        **default_store(args.dir),
        "broker.brokerName": "broker-a",
        "broker.brokerIP1": host,
        "broker.bindAddress": host,
        "broker.namesrvAddr": f"{host}:{args.nameserver_port or 9876}",
        "broker.enablePropertyFilter": True,
        "nameserver.bindAddress": host,
        "http.host": host,
    }
    flags = {
        "broker.listenPort": args.port,
        "nameserver.listenPort": args.nameserver_port,
        "http.port": args.http_port,
    }
    return run(_settings(args, flags, presets), with_nameserver=True, with_broker=True)


def _broker(args: argparse.Namespace) -> int:
    from tallystick.node.run import run

    flags = {
        "store.storePathRootDir": None if args.dir is None else str(args.dir),
        "broker.brokerIP1": args.host,
        "broker.listenPort": args.port,
        "broker.namesrvAddr": args.nameserver,
        "http.port": args.http_port,
    }
    return run(_settings(args, flags, {}), with_nameserver=False, with_broker=True)


def _nameserver(args: argparse.Namespace) -> int:
    from tallystick.node.run import run

    flags = {
        "nameserver.bindAddress": args.host,
        "nameserver.listenPort": args.port,
        "http.port": args.http_port,
    }
    return run(_settings(args, flags, {}), with_nameserver=True, with_broker=False)


def _settings(args: argparse.Namespace, flags: dict[str, object], presets: dict[str, object]):  # type: ignore[no-untyped-def]
    from tallystick.node.configuration import load

    return load(
        file=None if args.config is None else Path(args.config),
        environment=os.environ,
        assignments=args.assignments,
        flags={name: value for name, value in flags.items() if value is not None},
        defaults=presets,
    )


if __name__ == "__main__":
    sys.exit(main())
