"""Errors of backups. Each has one line of text that names the thing and the place, without secrets."""

from __future__ import annotations


class BackupError(Exception):
    """A backup or a restore was not possible, or did not finish."""


class PlaceError(BackupError):
    """The place of the backups cannot be used: it does not answer, refuses, or is full."""


class MissingObjectError(PlaceError):
    """An object does not exist."""

    def __init__(self, place: str, name: str) -> None:
        super().__init__(f"{place}: there is no object {name}")
        self.name = name


class DamagedBackupError(BackupError):
    """An object is missing, or is not what was stored."""


class KeyFileError(BackupError):
    """The key file cannot be used, or is not the one of the backup."""
