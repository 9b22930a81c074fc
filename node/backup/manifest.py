"""The manifest of a backup, and the names of objects.

    PLACE/CLUSTER/BROKER/backups/ID.json           the manifest: a backup exists when this object does
                         running/ID.json           a backup that has begun and not ended, or was killed
                         log/BEGIN-END-DIGEST      bytes [BEGIN, END) of the log, shared by backups
                         tables/DIGEST             a table, shared by backups

CLUSTER and BROKER are percent-encoded. Names of objects contain the digest of their content (`seals`), so backups share
an object only if its bytes are equal: a store that was created again under the same name never mixes with the old one.

A manifest is a JSON object. `sha256` is the checksum of the manifest without the fields `sha256` and `mac`; with a key,
`mac` proves that a holder of the key wrote it. `ID` is the time of the begin (UTC) and a random part, so that the order
of names is the order of time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote, unquote

from tallystick.node.backup.errors import BackupError, DamagedBackupError, KeyFileError
from tallystick.node.backup.places import Place
from tallystick.node.backup.seals import SCHEME, Seal
from tallystick.store.verify.repair_plan import SIZES

FORMAT = 1
ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")
LATEST = "latest"
_LOG_NAME = re.compile(r"log/\d{20}-\d{20}-[0-9a-f]{32}")
_TABLE_NAME = re.compile(r"tables/[0-9a-f]{32}")
_TABLE_FILE = re.compile(r"config/[A-Za-z][A-Za-z0-9-]*(\.json)?")


@dataclass(frozen=True, slots=True)
class SourceName:
    """A broker, or the group whose log it has, in a cluster. All members of a group are one source."""

    cluster: str
    broker: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `CLUSTER/BROKER`. BackupError."""
        cluster, separator, broker = text.partition("/")
        if not separator or not cluster or not broker or "/" in broker:
            raise BackupError(f"{text!r} is not of the form CLUSTER/BROKER")
        return cls(cluster, broker)

    @property
    def folder(self) -> str:
        """The part of the place for this source."""
        return f"{_quoted(self.cluster)}/{_quoted(self.broker)}"

    def __str__(self) -> str:
        return f"{self.cluster}/{self.broker}"


def _quoted(text: str) -> str:
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its name below the source's folder, its bytes and their SHA-256, and the digest of the content."""

    name: str
    bytes: int
    sha256: str
    digest: str


@dataclass(frozen=True, slots=True)
class LogPiece(StoredObject):
    """Bytes [start, end) of the log. `head`: digest of its first bytes; `time_ms`: store time of the first record of a
    segment, 0: not known."""

    start: int = 0
    end: int = 0
    head: str = ""
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Table(StoredObject):
    """`file`: the path in the store."""

    file: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the log of a member does not contain. The base is the entry before the first kept one."""

    group: str
    member: int
    term: int
    base_index: int
    base_term: int
    base_chain: int
    voters: list[int]
    learners: list[int]
    origin_index: int
    origin_voters: list[int]
    origin_learners: list[int]
    index_segment_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `begin`, `committed`: the part [begin, committed) of the log; `damage`: (position, bytes, reason) of
    damaged records in it; `previous`: the backup that it shares objects with; `sizes`: settings with
    which the files of the store were created, as text."""

    id: str
    cluster: str
    broker: str
    created_ms: int
    segment_bytes: int
    begin: int
    committed: int
    last_store_ms: int
    sizes: dict[str, str]
    log: list[LogPiece]
    tables: list[Table]
    group: GroupFacts | None = None
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    previous: str | None = None
    new_bytes: int = 0
    key_id: str | None = None

    @property
    def source(self) -> SourceName:
        return SourceName(self.cluster, self.broker)

    @property
    def objects(self) -> list[StoredObject]:
        """All objects of the backup."""
        return [*self.log, *self.tables]

    @property
    def name(self) -> str:
        """The name of the manifest's object below the source's folder."""
        return f"backups/{self.id}.json"

    def encode(self, seal: Seal) -> bytes:
        """Returns the content of the object."""
        fields = {"format": FORMAT, **asdict(self)}
        fields["encryption"] = None if self.key_id is None else SCHEME
        checked = _canonical(fields)
        fields["sha256"] = hashlib.sha256(checked).hexdigest()
        if (mac := seal.mac(checked)) is not None:
            fields["mac"] = mac
        return json.dumps(fields, indent=1, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, where: str, seal: Seal | None = None) -> Self:
        """Reads a manifest. `seal`: also checks that a holder of its key wrote it, and that it is the right key.

        DamagedBackupError, KeyFileError; BackupError: it has a format of a later version.
        """
        try:
            fields = json.loads(data)
            checksum, mac = fields.pop("sha256"), fields.pop("mac", None)
            checked = _canonical(fields)
            if fields["format"] != FORMAT:
                raise BackupError(f"{where} has the format {fields['format']}, and this version knows {FORMAT}")
            if hashlib.sha256(checked).hexdigest() != checksum:
                raise DamagedBackupError(f"{where} is damaged: its SHA-256 differs")
            del fields["format"], fields["encryption"]
            group = fields.pop("group")
            found = cls(
                log=[LogPiece(**each) for each in fields.pop("log")],
                tables=[Table(**each) for each in fields.pop("tables")],
                group=None if group is None else GroupFacts(**group),
                damage=[(int(pos), int(size), str(reason)) for pos, size, reason in fields.pop("damage")],
                **fields,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedBackupError(f"{where} is damaged: it is not a manifest ({type(error).__name__})") from error
        if seal is not None:
            found._check_key(seal, checked, mac, where)
        try:
            found._check_names(where)
            found._check_pieces(where)
        except (TypeError, AttributeError) as error:
            raise DamagedBackupError(f"{where} is damaged: it is not a manifest ({error})") from error
        return found

    def _check_key(self, seal: Seal, checked: bytes, mac: Any, where: str) -> None:
        if self.key_id is None and seal.key_id is not None:
            raise KeyFileError(f"{where} is not encrypted: leave out the key file")
        if self.key_id is not None and seal.key_id is None:
            raise KeyFileError(f"{where} is encrypted with the key {self.key_id}: name its file with --key-file")
        if self.key_id != seal.key_id:
            raise KeyFileError(f"{where} is encrypted with the key {self.key_id}, the file has the key {seal.key_id}")
        right = seal.mac(checked)
        if right is not None and not hmac.compare_digest(right, str(mac)):
            raise DamagedBackupError(f"{where} was not written by a holder of the key")

    def _check_pieces(self, where: str) -> None:
        pos = self.begin
        for piece in self.log:
            if piece.start != pos or piece.end <= pos or not _LOG_NAME.fullmatch(piece.name):
                raise DamagedBackupError(f"{where} is damaged: the piece {piece.name} does not follow byte {pos}")
            pos = piece.end
        if pos != self.committed:
            raise DamagedBackupError(f"{where} is damaged: its pieces end at byte {pos}, not at {self.committed}")

    def _check_names(self, where: str) -> None:
        """A program that can write to the place must not choose where a restore writes."""
        for table in self.tables:
            if not _TABLE_NAME.fullmatch(table.name) or not _TABLE_FILE.fullmatch(table.file):
                raise DamagedBackupError(f"{where} is damaged: {table.file!r:.80} is not the file of a table")
        if not self.sizes.keys() <= set(SIZES) or not all(isinstance(text, str) for text in self.sizes.values()):
            raise DamagedBackupError(f"{where} is damaged: it has other settings than sizes of files")
        numbers = (self.begin, self.committed, self.segment_bytes)
        if not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers) or not self.segment_bytes:
            raise DamagedBackupError(f"{where} is damaged: its positions are not numbers")


def log_name(start: int, end: int, digest: str) -> str:
    """Returns the name of an object of the log."""
    return f"log/{start:020d}-{end:020d}-{digest[:32]}"


def table_name(digest: str) -> str:
    """Returns the name of an object of a table."""
    return f"tables/{digest[:32]}"


def new_id(now_ms: int) -> str:
    """Returns an id for a backup that begins now."""
    return f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def ids_of(place: Place, source: SourceName, below: str = "backups") -> list[str]:
    """Returns the ids of the backups of a source, oldest first; `below`: or of those that are running."""
    prefix = f"{source.folder}/{below}/"
    names = [name.removeprefix(prefix).removesuffix(".json") for name in place.names(prefix)]
    return sorted(name for name in names if ID.fullmatch(name))


def sources_of(place: Place) -> list[SourceName]:
    """Returns the sources with backups, by name."""
    found = set()
    for name in place.names(""):
        parts = name.split("/")
        if len(parts) == 4 and parts[2] in ("backups", "running"):
            found.add(SourceName(unquote(parts[0]), unquote(parts[1])))
    return sorted(found, key=str)


def load(place: Place, source: SourceName, backup_id: str, seal: Seal | None = None) -> Manifest:
    """Reads a manifest. Raises MissingObjectError, and what `Manifest.decode` and the place raise."""
    name = f"{source.folder}/backups/{backup_id}.json"
    found = Manifest.decode(place.read(name), f"{place.text}/{name}", seal)
    if (found.id, found.source) != (backup_id, source):
        raise DamagedBackupError(f"{place.text}/{name} is the manifest of another backup")
    return found


def parse_address(text: str) -> tuple[str, SourceName, str]:
    """Splits the address of a backup, `PLACE/CLUSTER/BROKER/ID`; `latest` is an id. BackupError."""
    parts = text.rstrip("/").rsplit("/", 3)
    if len(parts) != 4 or not (ID.fullmatch(parts[3]) or parts[3] == LATEST):
        raise BackupError(
            f"{text}: the address of a backup is PLACE/CLUSTER/BROKER/ID, as `tally backup list` shows it"
        )
    return parts[0] or "/", SourceName(unquote(parts[1]), unquote(parts[2])), parts[3]


def resolve(place: Place, source: SourceName, backup_id: str) -> str:
    """Returns the id itself, or of the newest backup for `latest`. BackupError: there is none."""
    if backup_id != LATEST:
        return backup_id
    ids = ids_of(place, source)
    if not ids:
        raise BackupError(f"{place.text}: there is no backup of {source}")
    return ids[-1]


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
