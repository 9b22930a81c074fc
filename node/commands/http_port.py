"""Requests of commands to a broker's HTTP port, and the options that name it."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any

from tallystick.node.commands.terminal import InputError
from tallystick.node.commands.tls_options import add_tls_options, tls_context
from tallystick.node.core.admin_token import read_token

DEFAULT_HTTP = "127.0.0.1:8080"
_TIMEOUT_S = 30.0


class NoAnswerError(OSError):
    """No process answers at the HTTP port, or the answer is not a broker's."""


def add_http_options(parser: argparse.ArgumentParser) -> None:
    """Adds --http, --token-file, --json, and the options of TLS."""
    parser.add_argument(
        "--http",
        default=os.environ.get("TALLY_HTTP", DEFAULT_HTTP),
        help=f"host:port of a broker's HTTP port, with https:// if it uses TLS ($TALLY_HTTP or {DEFAULT_HTTP})",
    )
    add_tls_options(parser)
    parser.add_argument(
        "--token-file",
        type=Path,
        default=os.environ.get("TALLY_TOKEN_FILE") or None,
        help="file with a token from the broker's adminTokenFile ($TALLY_TOKEN_FILE)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def ask(
    args: argparse.Namespace, method: str, path: str, body: dict[str, Any] | None = None, limit_s: float = _TIMEOUT_S
) -> tuple[int, dict[str, Any]]:
    """Status and body of one request. NoAnswerError; OSError: there is no token in the file."""
    place = args.http
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if args.token_file is not None:
        headers["Authorization"] = f"Bearer {read_token(args.token_file)}"
    host, _, port = place.removeprefix("http://").removeprefix("https://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--http {place}: must be host:port")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=limit_s)
    context = tls_context(args, always=place.startswith("https://"))()
    if context is not None:
        connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=limit_s, context=context)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"{place}: no broker's HTTP port answers there: {error}") from error
    except ValueError as error:
        raise NoAnswerError(f"{place}: the server there is not a broker's HTTP port") from error
    finally:
        connection.close()
    return answer.status, found


def refused(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Prints why a request was refused."""
    if args.json:
        print(json.dumps(answer))
    print(f"tally: {args.http} refused: {answer.get('error', 'no reason given')}", file=sys.stderr)


def done(args: argparse.Namespace, answer: dict[str, Any], text: str) -> int:
    """Prints an answer as JSON or as `text`; the exit status."""
    print(json.dumps(answer) if args.json else text)
    return 0
