"""Opens the files of access control that settings name: accounts, key, and the credentials of this process.

`aclFile` is empty for the place that RocketMQ has: `conf/plain_acl.yml` in the folder that the environment variable
`ROCKETMQ_HOME` names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import yaml

from tallystick.node.access.account_file import AccountFile
from tallystick.node.access.fields import AclError
from tallystick.node.access.sealing import Sealer, SealError, load_sealer
from tallystick.node.access.signatures import sign
from tallystick.node.remoting.command import Command
from tallystick.store._kernel import Door
from tallystick.store.setting import SettingsError

Signer = Callable[[Command], None]
"""Adds a signature to a request."""

_HOME = "ROCKETMQ_HOME"
_PLACE = "conf/plain_acl.yml"
_MAX_BYTES = 64 * 1024


def open_sealer(key_file: str) -> Sealer:
    """The encryption of stored secrets. SettingsError: `aclKeyFile` cannot be used."""
    try:
        return load_sealer(Path(key_file).expanduser() if key_file else None)
    except (SealError, OSError) as error:
        raise SettingsError("aclKeyFile", str(error)) from error


def open_accounts(file: str, sealer: Sealer, door: Door) -> AccountFile:
    """The accounts of `aclFile`. SettingsError: they cannot be used."""
    home = os.environ.get(_HOME, "")
    if not file and not home:
        raise SettingsError("aclFile", f"must name the account file, because {_HOME} is not set")
    path = Path(file).expanduser() if file else Path(home) / _PLACE
    try:
        return AccountFile(path, sealer, door)
    except OSError as error:
        raise SettingsError("aclFile", f"{path}: {error.strerror or error}") from error
    except AclError as error:
        raise SettingsError("aclFile", f"{path}: {error}") from error


def open_credentials(name: str, file: str) -> Signer | None:
    """Signs with the account of a file like RocketMQ's `conf/tools.yml`: `accessKey` and `secretKey`.

    `name`: the setting that names the file. None: no file, nothing is signed. SettingsError: it cannot be used.
    """
    if not file:
        return None
    key, secret = read_credentials(name, file)
    return lambda command: sign(command, key, secret)


def read_credentials(name: str, file: str) -> tuple[str, str]:
    """Access key and secret of such a file. SettingsError, as above."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            found = yaml.load(opened.read(_MAX_BYTES), Loader=yaml.BaseLoader)
    except OSError as error:
        raise SettingsError(name, f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise SettingsError(name, f"{path} is not YAML") from error
    fields = found if isinstance(found, dict) else {}
    key, secret = fields.get("accessKey"), fields.get("secretKey")
    if not (isinstance(key, str) and key and isinstance(secret, str) and secret):
        raise SettingsError(name, f"{path} does not have the texts accessKey and secretKey")
    return key, secret
