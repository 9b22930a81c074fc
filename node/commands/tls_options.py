"""TLS and credentials of the commands that connect to a running cluster: their options, and what these describe."""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from tallystick.node.access.opening import open_credentials
from tallystick.node.core.client import ClusterClient
from tallystick.node.tls.certificate import ClientCertificate
from tallystick.node.tls.settings import TlsSettings


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Adds --tls, --ca, --tls-cert, --tls-key and --any-certificate."""
    group = parser.add_argument_group("TLS")
    group.add_argument(
        "--tls", action="store_true", help="use TLS; the operating system's authorities verify servers, without --ca"
    )
    group.add_argument(
        "--ca",
        type=Path,
        default=os.environ.get("TALLY_CA") or None,
        metavar="FILE",
        help="use TLS; PEM file of the authorities that verify servers ($TALLY_CA)",
    )
    group.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="PEM file of the client's certificate; needs --tls-key"
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file of its key")
    group.add_argument(
        "--any-certificate",
        action="store_true",
        help="use TLS and accept each certificate: others on the network can read and change everything",
    )


def add_credentials_option(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Adds --credentials. A secret itself is never an argument: other users of the machine can read those."""
    parser.add_argument(
        "--credentials",
        default=default,
        metavar="FILE",
        help="sign requests with the account of this file, which has accessKey and secretKey as RocketMQ's "
        "conf/tools.yml ($TALLY_CREDENTIALS)",
    )


def tls_settings(args: argparse.Namespace, *, always: bool = False) -> TlsSettings:
    """What the options say. `always`: use TLS without an option too. SettingsError: they cannot be used together."""
    given = {name: getattr(args, name, None) for name in ("ca", "tls_cert", "tls_key")}
    paths = {name: "" if path is None else str(path) for name, path in given.items()}
    accepts_each = bool(getattr(args, "any_certificate", False))
    wanted = always or bool(getattr(args, "tls", False)) or accepts_each or any(paths.values())
    settings = TlsSettings(
        enable=str(wanted).lower(),
        test_mode_enable="false",
        client_authServer=str(not accepts_each).lower(),
        client_trustCertPath=paths["ca"],
        client_certPath=paths["tls_cert"],
        client_keyPath=paths["tls_key"],
    )
    settings.validate()
    return settings


def tls_context(args: argparse.Namespace, *, always: bool = False) -> Callable[[], ssl.SSLContext | None]:
    """The context of a new connection; None: without TLS. As `tls_settings`. SettingsError: a file cannot be used."""
    settings = tls_settings(args, always=always)
    return ClientCertificate(settings).context if settings.is_client_enabled else lambda: None


def cluster_client(args: argparse.Namespace) -> ClusterClient:
    """A client of the cluster of `--nameserver`. SettingsError: a file cannot be used."""
    sign = open_credentials("--credentials", args.credentials)
    return ClusterClient(args.nameserver, tls=tls_context(args), sign=sign)
