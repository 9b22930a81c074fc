"""What a process needs to read a store that is not in a folder: a token, certificates, the key of a backup.

The driver makes the values (`Access.of`) and sends them to the tasks (`for_tasks`), so executors need no files and no
settings. No text of an Access shows a token or a key, so that no plan, log or error has them.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path

TOKEN_FILE_VARIABLE = "TALLYSTICK_READ_TOKEN_FILE"
KEY_FILE_VARIABLE = "TALLY_BACKUP_KEY_FILE"


class AccessError(ValueError):
    """A file of tokens, certificates or keys cannot be used. `option` is the option that names it."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option = option


@dataclass(frozen=True, slots=True)
class Access:
    """`token`: for brokers; `token_file`: a file with the token, which is read at each use, because it can be replaced.

    `ca`: certificates as PEM text that broker's certificates must be signed with; None: those of the system. `key`: the
    key of encrypted backups, as in its file.
    """

    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, token: str | None, token_file: str | None, ca: str | None, key_file: str | None) -> Access:
        """Returns the access with these options; `ca` and `key_file` are files. AccessError."""
        if token is not None and token_file is not None:
            raise AccessError("token", "cannot be given together with tokenFile")
        if token is not None and not _is_token(token):
            raise AccessError("token", "has characters that no header of HTTP can have")
        authorities = None if ca is None else _text("ca", ca)
        if authorities is not None:
            try:
                ssl.create_default_context(cadata=authorities)
            except (ssl.SSLError, ValueError) as error:
                raise AccessError("ca", f"{ca} has no certificates in PEM format") from error
        named = key_file if key_file is not None else os.environ.get(KEY_FILE_VARIABLE)
        key = _text("keyFile", named) if named else None
        found = cls(token, token_file, authorities, key)
        if token_file is not None:
            found.bearer()
        return found

    def bearer(self) -> str | None:
        """Returns the token to send; None: there is none. AccessError: the file of `token_file` cannot be used."""
        if self.token is not None:
            return self.token
        if self.token_file is not None:
            token = _text("tokenFile", self.token_file).strip()
            if not token or not _is_token(token):
                raise AccessError("tokenFile", f"{self.token_file} has no token")
            return token
        named = os.environ.get(TOKEN_FILE_VARIABLE)
        try:
            return Path(named).read_text().strip() or None if named else None
        except FileNotFoundError:
            return None  # the secret is optional: the broker may not require a token

    def for_tasks(self) -> Access:
        """Returns what tasks need on other machines: the token itself instead of its file."""
        return replace(self, token=self.bearer(), token_file=None)

    def hidden(self, text: str) -> str:
        """Returns the text without the token: a server may repeat what it was sent."""
        try:
            token = self.bearer()
        except AccessError:
            return text
        return text.replace(token, "(token)") if token else text


NO_ACCESS = Access()


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _text(option: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(option, f"{path} cannot be read: {error}") from error
