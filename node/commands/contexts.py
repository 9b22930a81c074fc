"""`tally context`: names for clusters, with their addresses and files, so that commands need only `--context NAME`.

The file is `~/.config/tallystick/contexts.toml` ($XDG_CONFIG_HOME, $TALLY_CONTEXTS), readable by its user alone. It has
paths of credentials, and never secrets. An option of the command line has priority, then the environment variable of
the option, then the context: `--context`, $TALLY_CONTEXT, or the one that `tally context use` chose.
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallystick.node.commands.output import add_output_option, emit
from tallystick.node.commands.terminal import InputError, table

DEFAULT_NAMESERVER = "127.0.0.1:9876"
_TEXTS = ("nameserver", "credentials", "ca", "tls_cert", "tls_key")
_FLAGS = ("tls", "any_certificate")
_VARIABLES = {"nameserver": "TALLY_NAMESERVER", "credentials": "TALLY_CREDENTIALS", "ca": "TALLY_CA"}
_MODE = 0o600


def add_context_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--context`. `apply_context` then sets the options that are not given."""
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="the cluster of this name, see `tally context` ($TALLY_CONTEXT, or the one of `tally context use`)",
    )
    parser.set_defaults(uses_context=True)


def apply_context(args: argparse.Namespace) -> None:
    """Sets the options of the cluster that are not given. InputError: there is no such context, or the file cannot be
    read."""
    if not getattr(args, "uses_context", False):
        return
    chosen = args.context or os.environ.get("TALLY_CONTEXT")
    contexts = _read()
    name = chosen or contexts.get("current")
    known: Mapping[str, Any] = {}
    if name:
        known = contexts.get("contexts", {}).get(name) or {}
        if not known:
            raise InputError(f"there is no context {name}; see `tally context list`")
    for option in _TEXTS:
        variable = os.environ.get(_VARIABLES.get(option, ""), "") if chosen is None else ""
        if getattr(args, option, None) is None:
            value = variable or known.get(option) or None
            setattr(args, option, Path(value) if value and option in ("ca", "tls_cert", "tls_key") else value)
    for flag in _FLAGS:
        setattr(args, flag, bool(getattr(args, flag, False)) or bool(known.get(flag)))
    if args.nameserver is None:
        args.nameserver = os.environ.get("TALLY_NAMESERVER") or DEFAULT_NAMESERVER
    args.credentials = args.credentials or ""


def contexts_file() -> Path:
    """Returns the file of contexts, which may not exist."""
    given = os.environ.get("TALLY_CONTEXTS")
    if given:
        return Path(given)
    folder = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(folder) / "tallystick" / "contexts.toml"


def _read() -> dict[str, Any]:
    path = contexts_file()
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    contexts = found.get("contexts", {})
    if not isinstance(contexts, dict) or not all(isinstance(each, dict) for each in contexts.values()):
        raise InputError(f"{path} has no table of contexts")
    return found


def _write(current: str | None, contexts: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the file as a whole: a reader sees the old one or the new one."""
    lines = [f"current = {json.dumps(current)}\n"] if current else []
    for name, fields in sorted(contexts.items()):
        lines.append(f"\n[contexts.{json.dumps(name)}]\n")
        lines += [f"{key} = {json.dumps(value)}\n" for key, value in sorted(fields.items())]
    path = contexts_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(lines).lstrip("\n"))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


# --- the command ---


def add_parsers(commands: Any) -> None:
    """Adds `context` and its sub-commands."""
    context = commands.add_parser("context", help="name clusters, so that commands need only --context NAME")
    actions = context.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the contexts; * marks the one in use")
    add_output_option(listing)
    listing.set_defaults(call=_list)
    add = actions.add_parser("set", help="add a context, or change some of its fields")
    add.add_argument("name", help="name of the context")
    add.add_argument("--nameserver", "-n", help="host:port of the name servers, separated by ';'")
    add.add_argument("--credentials", metavar="FILE", help="file with accessKey and secretKey; only its path is kept")
    for option in ("ca", "tls-cert", "tls-key"):
        add.add_argument(f"--{option}", metavar="FILE", help=f"as --{option} of other commands")
    for option in ("tls", "any-certificate"):
        help_text = f"as --{option} of other commands"
        add.add_argument(f"--{option}", action=argparse.BooleanOptionalAction, default=None, help=help_text)
    add.set_defaults(call=_set)
    for action, call, text in (
        ("use", _use, "use a context in commands without --context"),
        ("delete", _delete, "remove a context from the file"),
    ):
        parser = actions.add_parser(action, help=text)
        parser.add_argument("name", help="name of the context")
        parser.set_defaults(call=call)


def _list(args: argparse.Namespace) -> int:
    found = _read()
    contexts, current = found.get("contexts", {}), found.get("current")
    rows = [
        ("*" if name == current else "", name, str(fields.get("nameserver", "")), str(fields.get("credentials", "")))
        for name, fields in sorted(contexts.items())
    ]
    value = {"current": current, "contexts": contexts}
    emit(args, value, lambda: table(rows, ("", "context", "name servers", "credentials")))
    return 0


def _set(args: argparse.Namespace) -> int:
    found = _read()
    contexts = found.get("contexts", {})
    fields = dict(contexts.get(args.name, {}))
    for option in (*_TEXTS, *_FLAGS):
        value = getattr(args, option)
        if value is not None:
            is_file = option in _TEXTS[1:]
            fields[option] = str(Path(value).expanduser().absolute()) if is_file else value
    if not fields.get("nameserver"):
        raise InputError("a context needs --nameserver")
    _write(found.get("current") or args.name, contexts | {args.name: fields})
    print(f"{args.name}: {fields['nameserver']}")
    return 0


def _known(name: str) -> tuple[dict[str, Any], str | None]:
    found = _read()
    contexts = found.get("contexts", {})
    if name not in contexts:
        raise InputError(f"there is no context {name}; see `tally context list`")
    return contexts, found.get("current")


def _use(args: argparse.Namespace) -> int:
    contexts, _ = _known(args.name)
    _write(args.name, contexts)
    print(f"{args.name} is in use")
    return 0


def _delete(args: argparse.Namespace) -> int:
    contexts, current = _known(args.name)
    del contexts[args.name]
    _write(None if current == args.name else current, contexts)
    print(f"{args.name}: deleted")
    return 0
