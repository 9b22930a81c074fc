"""`tally backup create|list|verify|delete|restore|new-key`: backups of stores in a folder or an S3-compatible store.

Exit codes: 0 done; 1 damage was found: in the store that was backed up, in the backup, or in the restored store; 2 it
was not possible or did not finish. After 2 the command can be run again, a restore in an empty folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tallystick.node.backup.errors import BackupError
from tallystick.node.backup.manifest import LATEST, Manifest, SourceName, ids_of, load, parse_address, resolve
from tallystick.node.backup.places import Place, open_place
from tallystick.node.backup.seals import load_seal, new_key
from tallystick.node.commands.http_port import NoAnswerError, ask
from tallystick.node.commands.terminal import InputError, StageLines, bad, good, number, table

_RATE = re.compile(r"(\d+)([kKmMgG]?)i?[bB]?")
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}

MOST_BYTES = 4096
"""The limit of Kubernetes for a termination message: see --result."""

_EPILOG = """\
exit codes: 0 done; 1 damage was found; 2 not possible or not finished.
An S3 store: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and
AWS_REGION from the environment, or from --s3-settings."""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `backup` and its sub-commands."""
    backup = commands.add_parser("backup", help="back up stores, list and check backups, restore them")
    kinds = backup.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_create(kinds)
    _add_catalog(kinds)
    _add_restore(kinds)
    key = kinds.add_parser("new-key", help="create a key file for encrypted backups")
    key.add_argument("file", type=Path, metavar="FILE", help="the new file; keep a copy of it elsewhere")
    key.set_defaults(call=_new_key)


def _command(kinds: Any, name: str, help_text: str, call: Callable[[argparse.Namespace], int]) -> Any:
    parser = kinds.add_parser(
        name, help=help_text, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--s3-settings",
        type=Path,
        metavar="FILE",
        help="endpoint and credentials of S3: a file with NAME=VALUE lines, or a folder with a file for each name",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--result", type=Path, metavar="FILE", help=f"also write the result as JSON of at most {MOST_BYTES} bytes"
    )
    parser.set_defaults(call=call)
    return parser


def _add_key(parser: Any) -> None:
    parser.add_argument(
        "--key-file",
        type=Path,
        default=os.environ.get("TALLY_BACKUP_KEY_FILE") or None,
        metavar="FILE",
        help="key of encrypted backups ($TALLY_BACKUP_KEY_FILE)",
    )


def _add_create(kinds: Any) -> None:
    create = _command(kinds, "create", "back up the store of a broker, which may run", _create)
    create.add_argument("store", type=Path, metavar="STORE", help="the store's folder")
    create.add_argument("place", metavar="PLACE", help="a folder, or s3://bucket/prefix")
    create.add_argument("--name", metavar="CLUSTER/BROKER", help="name of a store without a group")
    create.add_argument(
        "--http", metavar="HOST:PORT", help="HTTP port of the running broker, which says what is committed"
    )
    create.add_argument("--token-file", type=Path, metavar="FILE", help="file with a token for the HTTP port")
    create.add_argument(
        "--bytes-per-second", type=_rate, default=0, metavar="RATE", help="read no faster, such as 50M (no limit)"
    )
    _add_key(create)


def _add_catalog(kinds: Any) -> None:
    listing = _command(kinds, "list", "list the backups in a place", _list)
    listing.add_argument("place", metavar="PLACE", help="a folder, or s3://bucket/prefix")
    listing.add_argument("--name", metavar="CLUSTER/BROKER", help="of this broker only")

    verify = _command(kinds, "verify", "read all objects of a backup and check them", _verify)
    verify.add_argument("backup", metavar="BACKUP", help="PLACE/CLUSTER/BROKER/ID, or .../latest")
    _add_key(verify)

    delete = _command(kinds, "delete", "delete backups, and the objects that no other backup uses", _delete)
    delete.add_argument("backup", nargs="+", metavar="BACKUP", help="PLACE/CLUSTER/BROKER/ID")
    delete.add_argument(
        "--force", action="store_true", help="although a backup of this broker was killed; none may run"
    )


def _add_restore(kinds: Any) -> None:
    restore = _command(kinds, "restore", "restore a backup into an empty folder", _restore)
    restore.add_argument("backup", metavar="BACKUP", help="PLACE/CLUSTER/BROKER/ID, or .../latest")
    restore.add_argument("folder", type=Path, metavar="FOLDER", help="the new store's folder, which must be empty")
    restore.add_argument(
        "--until-offset", type=number(1, 1 << 62), metavar="POS", help="the log up to this byte, to the end of a record"
    )
    restore.add_argument(
        "--until-time",
        type=_time,
        metavar="TIME",
        help="the log up to this time: 2026-11-25T10:00:00Z, or ms since 1970",
    )
    restore.add_argument("--topic", help="only the messages of this topic, as the store of a broker without a group")
    restore.add_argument("--cluster", metavar="NAME", help="cluster of the new group (as in the backup)")
    restore.add_argument("--group", metavar="NAME", help="name of the new group (as in the backup)")
    restore.add_argument("--member", metavar="ID", help="id of its first member, such as n0 (as in the backup)")
    restore.add_argument(
        "--once",
        metavar="NAME",
        help="name of this restore: if an earlier run of it was interrupted, empty the folder; if it ended, do nothing",
    )
    restore.add_argument(
        "--brokers",
        metavar="NAMES",
        help="all brokers of the cluster, such as a,b: refuse if one of them has no backup",
    )
    restore.add_argument(
        "--segment-bytes",
        type=number(1, 1 << 40),
        metavar="N",
        help="mappedFileSizeCommitLog of the new store: refuse a backup of a log with files of another size",
    )
    _add_key(restore)


def _rate(text: str) -> int:
    match = _RATE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a number of bytes, such as 1048576 or 50M, not {text!r}")
    return int(match[1]) << _UNITS[match[2].lower()]


def _time(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a time such as 2026-11-25T10:00:00Z, not {text!r}") from None
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: append Z for UTC, or +01:00")
    return int(found.timestamp() * 1000)


# -- create ------------------------------------------------------------------------------------------------------------


def _create(args: argparse.Namespace) -> int:
    from tallystick.node.backup.create import BackupRun
    from tallystick.node.backup.pieces import Throttle
    from tallystick.node.backup.source import SourceStore
    from tallystick.store.engine.scrub import idle_io_priority

    name = None if args.name is None else SourceName.parse(args.name)
    node = None if args.http is None else _owner_at(args)
    if node is not None and name is None:
        name = _name_of(args, node)
    source = SourceStore(args.store, name)
    if node is not None and node.get("member") != source.member:
        raise InputError(f"--http {args.http} is not the broker of {args.store}: it is member {node.get('member')}")
    idle_io_priority()
    stages = StageLines()
    run = BackupRun(
        source,
        open_place(args.place, args.s3_settings),
        load_seal(args.key_file),
        throttle=Throttle(args.bytes_per_second),
        committed=None if args.http is None else lambda: _committed_at(args),
        progress=stages.progress,
    )
    try:
        outcome = run.run()
    finally:
        stages.clear()
    manifest = outcome.manifest
    more = {"newBytes": outcome.new_bytes, "sharedBytes": outcome.shared_bytes, "notes": outcome.notes}
    if not _told_as_json(args, _row(args.place, manifest) | more):
        for note in outcome.notes:
            print(f"note    {note}")
        for pos, size, reason in manifest.damage[:20]:
            print(f"{bad('damage')}  byte {pos} of the log, {size} bytes: {reason}")
        print(
            f"{outcome.new_bytes} bytes stored, {outcome.shared_bytes} bytes shared with {manifest.previous or 'none'}"
        )
        print(f"{good('backup')}  {_address(args.place, manifest)}")
    return 1 if manifest.damage else 0


def _told_as_json(args: argparse.Namespace, answer: dict[str, Any]) -> bool:
    """Writes the file of --result, and prints the answer with --json. Returns whether it was printed."""
    if args.result is not None:
        args.result.write_bytes(fitting(answer))
    if args.json:
        print(json.dumps(answer))
    return bool(args.json)


def fitting(answer: Mapping[str, Any], most: int = MOST_BYTES) -> bytes:
    """Returns an answer as JSON of at most `most` bytes: the longest of its lists are shortened."""
    kept = {name: list(value) if isinstance(value, list) else value for name, value in answer.items()}
    lists = [value for value in kept.values() if isinstance(value, list)]
    size = len(json.dumps(kept))  # in ASCII: as many bytes as characters
    while size > most:
        longest = max(lists, key=len, default=[])
        if not longest:
            return json.dumps({"error": "the result is too long"}).encode()
        size -= len(json.dumps(longest.pop())) + (len(", ") if longest else 0)
    return json.dumps(kept).encode()


def _owner_at(args: argparse.Namespace) -> dict[str, Any]:
    """Whose store the broker has. A token that permits reading files only is enough."""
    found = _asked(args, "/store")
    return found if found.get("group") else _asked(args, "/node")  # an older version names no owner there


def _asked(args: argparse.Namespace, path: str) -> dict[str, Any]:
    try:
        status, found = ask(args, "GET", path)
    except NoAnswerError as error:
        raise BackupError(str(error)) from error
    if status != 200 or not isinstance(found, dict):
        raise BackupError(f"{args.http}{path}: {status} {str(found)[:200]}")
    return found


def _name_of(args: argparse.Namespace, node: dict[str, Any]) -> SourceName:
    if not node.get("cluster") or not node.get("group"):
        raise BackupError(f"{args.http}: the process there is not a broker, or has not started")
    return SourceName(str(node["cluster"]), str(node["group"]))


def _committed_at(args: argparse.Namespace) -> int:
    try:
        return int(_asked(args, "/store")["committed"])
    except (KeyError, TypeError, ValueError) as error:
        raise BackupError(f"{args.http}: the answer to GET /store has no committed position") from error


# -- list, verify, delete ----------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    from tallystick.node.backup.catalog import listed

    place = open_place(args.place, args.s3_settings)
    found = listed(place, None if args.name is None else SourceName.parse(args.name))
    rows = [(each, None if each.manifest is None else _row(args.place, each.manifest)) for each in found]
    if args.json:
        faulty = [{"address": _joined(args.place, each.source, each.id), "fault": each.fault} for each, _ in rows]
        print(json.dumps([row or fault for (_, row), fault in zip(rows, faulty, strict=True)]))
    elif not found:
        print(f"no backups in {args.place}")
    else:
        heads = ("backup", "created", "log", "bytes", "new", "key")
        print(table([_cells(args.place, each.source, each.id, row) for each, row in rows], heads))
        for each in found:
            if each.fault:
                print(f"{bad('damage')}  {each.fault}")
    return 1 if any(each.fault for each in found) else 0


def _cells(place: str, source: SourceName, backup_id: str, row: dict[str, Any] | None) -> tuple[str, ...]:
    if row is None:
        return (_joined(place, source, backup_id), "?", "?", "?", "?", "?")
    log = f"{row['begin']}..{row['committed']}"
    return (row["address"], row["created"], log, str(row["bytes"]), str(row["newBytes"]), row["key"] or "-")


def _verify(args: argparse.Namespace) -> int:
    from tallystick.node.backup.catalog import verify

    place, manifest = _opened(args)
    seal = load_seal(args.key_file)
    if args.key_file is not None:
        load(place, manifest.source, manifest.id, seal)
    stages = StageLines()
    try:
        faults = verify(place, manifest, seal, stages.progress)
    finally:
        stages.clear()
    objects, size = len(manifest.objects), sum(each.bytes for each in manifest.objects)
    if not _told_as_json(args, {"sound": not faults, "objects": objects, "bytes": size, "faults": faults}):
        for fault in faults:
            print(f"{bad('damage')}  {fault}")
        print(f"{objects} objects, {size} bytes")
        if manifest.key_id != seal.key_id:
            print("the contents were not decrypted: name the key with --key-file to check them")
        print(good("sound") if not faults else bad(f"{len(faults)} damaged"))
    return 1 if faults else 0


def _opened(args: argparse.Namespace) -> tuple[Place, Manifest]:
    text, source, backup_id = parse_address(args.backup)
    place = open_place(text, args.s3_settings)
    return place, load(place, source, resolve(place, source, backup_id))


def _delete(args: argparse.Namespace) -> int:
    from tallystick.node.backup.catalog import delete

    addresses = [parse_address(text) for text in args.backup]
    if any(backup_id == LATEST for _, _, backup_id in addresses):
        raise InputError("name the backups to delete by their ids, not as `latest`")
    by_source: dict[tuple[str, SourceName], list[str]] = {}
    for text, source, backup_id in addresses:
        by_source.setdefault((text, source), []).append(backup_id)
    waits = False
    for (text, source), ids in by_source.items():
        done = delete(open_place(text, args.s3_settings), source, ids, force=args.force)
        waits = waits or bool(done.waits)
        answer = {"source": str(source), "backups": done.backups, "objects": done.objects, "bytes": done.bytes}
        if not _told_as_json(args, answer | {"waits": done.waits}):
            print(f"deleted {len(done.backups)} backups of {source}, {done.objects} objects, {done.bytes} bytes")
            if done.waits:
                print(bad(done.waits))
    return 2 if waits else 0


# -- restore -----------------------------------------------------------------------------------------------------------


def _restore(args: argparse.Namespace) -> int:
    from tallystick.node.backup import once
    from tallystick.node.backup.one_topic import TopicRestore
    from tallystick.node.backup.restore import Point, Restore

    logging.getLogger("tallystick").addHandler(logging.NullHandler())  # what is done is printed below
    seal = load_seal(args.key_file)
    if args.once is not None and (done := once.finished(args.folder, args.once)) is not None:
        if not _told_as_json(args, {"folder": str(args.folder)} | done):
            print(good(f"{args.folder} was restored by an earlier run"))
        return 0
    text, source, backup_id = parse_address(args.backup)
    place = open_place(text, args.s3_settings)
    manifest = load(place, source, resolve(place, source, backup_id), seal)
    point = Point(args.until_offset, args.until_time)
    _check_identity(args, manifest)
    _check_fit(args, place, manifest)
    stages = StageLines()
    try:
        if args.topic is not None:
            result = TopicRestore(
                manifest, place, seal, args.folder, args.topic, point=point, progress=stages.progress
            ).run()
        else:
            identity = _identity(args, manifest)
            restore = Restore(
                manifest, place, seal, args.folder, point=point, identity=identity, progress=stages.progress
            )
            result = restore.run() if args.once is None else once.run(restore, args.once)
    finally:
        stages.clear()
    if not _told_as_json(args, {"folder": str(args.folder)} | result.to_json(manifest.id)):
        for note in result.notes:
            print(f"note    {note}")
        print(f"{result.messages} records, the log from {result.begin} to {result.end}")
        print(good(f"restored {args.folder}") if not result.damaged else bad(f"{result.damaged} damaged"))
    return 1 if result.damaged else 0


def _check_identity(args: argparse.Namespace, manifest: Manifest) -> None:
    if args.once is not None and args.topic is not None:
        raise InputError("--once is for a restore of the whole backup, not of one topic")
    given = [name for name in ("cluster", "group", "member") if getattr(args, name) is not None]
    if given and (manifest.group is None or args.topic is not None):
        raise InputError(f"--{given[0]} is for the backup of a member of a group, restored as a whole")


def _check_fit(args: argparse.Namespace, place: Place, manifest: Manifest) -> None:
    """Refuses, before anything is written, what the new cluster could not use."""
    if args.segment_bytes not in (None, manifest.segment_bytes):
        raise InputError(
            f"--segment-bytes {args.segment_bytes}: the log of the backup has files of {manifest.segment_bytes} bytes, "
            "and a store keeps their size"
        )
    names = [name for name in (args.brokers or "").split(",") if name]
    missing = [name for name in names if not ids_of(place, SourceName(manifest.cluster, name))]
    if missing:
        raise BackupError(f"{place.text}: there is no backup of {manifest.cluster}/{', '.join(missing)}")


def _identity(args: argparse.Namespace, manifest: Manifest) -> Any:
    from tallystick.node.broker.group.membership import member_number
    from tallystick.replication.ledger.vote import Identity

    facts = manifest.group
    if facts is None:
        return None
    member = facts.member if args.member is None else member_number("--member", args.member)
    return Identity(args.cluster or manifest.cluster, args.group or facts.group, member)


def _new_key(args: argparse.Namespace) -> int:
    new_key(args.file)
    print(f"{args.file}: keep a copy of it elsewhere; without it, encrypted backups are lost")
    return 0


# -- text --------------------------------------------------------------------------------------------------------------


def _joined(place: str, source: SourceName, backup_id: str) -> str:
    return f"{place.rstrip('/')}/{source.folder}/{backup_id}"


def _address(place: str, manifest: Manifest) -> str:
    return _joined(place, manifest.source, manifest.id)


def _row(place: str, manifest: Manifest) -> dict[str, Any]:
    created = datetime.fromtimestamp(manifest.created_ms / 1000, UTC)
    return {
        "address": _address(place, manifest),
        "id": manifest.id,
        "cluster": manifest.cluster,
        "broker": manifest.broker,
        "member": None if manifest.group is None else manifest.group.member,
        "created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "begin": manifest.begin,
        "committed": manifest.committed,
        "lastStoreTimestamp": manifest.last_store_ms,
        "bytes": sum(each.bytes for each in manifest.objects),
        "newBytes": manifest.new_bytes,
        "objects": len(manifest.objects),
        "previous": manifest.previous,
        "damaged": len(manifest.damage),
        "key": manifest.key_id,
    }
