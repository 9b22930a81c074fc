"""Where stores are, and how a process reads one: what the option `path` can name besides folders.

    /data/broker-a/store, /data/*/store, file:///data/...   folders, also as a pattern
    http://broker:8080, https://...                         a broker, over HTTP (`StoreClient`)
    tally://server:9876, tally://a:9876;b:9876/CLUSTER      all brokers that a name server knows, or those of a cluster
    k8s://NAMESPACE/NAME                                    all brokers of a BrokerCluster, from inside Kubernetes
    job:                                                    those of the StoreJob that runs this program (`job_stores`)
    s3://bucket/prefix, backup:PLACE[/CLUSTER/BROKER/ID]    backups, in place (`BackupStore`)

`stores_at` finds the stores; the driver calls it for each query, and for each step of a stream. `reached` makes a
store readable, in the driver and in tasks: a folder as it is, all others as a `Mirror`. The `root` of a store elsewhere
is an address, and paths of its files begin with it.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tallystick.spark.access import Access
from tallystick.spark.backup_store import SCHEME, BackupStore, backups_at
from tallystick.spark.job_stores import BACKUP, HTTP, LOCAL, mounted_volume, stores_of_job
from tallystick.spark.mirror import Mirror, Remote
from tallystick.spark.presence import bringing
from tallystick.spark.runner import Runner
from tallystick.spark.splits import Split, files_of
from tallystick.spark.store_client import StoreClient, StoreClientError
from tallystick.spark.volume import Source, Volume, open_volume

Item = TypeVar("Item")
Result = TypeVar("Result")

JOB = "job:"
_FILES = "/store/files"
"""Path of the files in a broker's HTTP API: with it, the root of a store there."""
_NAME_SERVER_PORT = 9876
_MOST_DERIVED_BYTES = 256 << 20
"""The driver fetches whole files of queues to plan splits: about 40 queues of the usual size."""


class PlaceError(ValueError):
    """A place has no stores, or its address is wrong."""


@dataclass(frozen=True, slots=True)
class FoundStore:
    """A store at a place. `group` and `member`: its names, if the place knows them. `http`: its broker's address.

    `committed`: its bound, if that cannot change.
    """

    root: str
    group: str | None = None
    member: str | None = None
    http: str | None = None
    committed: int | None = None


def stores_at(text: str, access: Access) -> list[FoundStore]:
    """Returns the stores that one entry of the option `path` names, at least one.

    PlaceError; StoreClientError: a broker does not answer; VolumeError: a name server does not answer, or a backup
    cannot be read; OSError.
    """
    scheme = text.partition(":")[0]
    if scheme in ("http", "https"):
        return [_of_broker(text, access)]
    if scheme == "tally":
        return _of_name_server(text, access)
    if scheme == "k8s":
        return _of_name_server(_name_server_of(text), access)
    if text == JOB:
        return _of_job(access)
    if scheme in ("s3", "backup"):
        address = text.removeprefix(SCHEME)
        found = backups_at(address, access)
        return [FoundStore(SCHEME + each.address, each.broker, committed=each.committed) for each in found]
    if "://" in text and scheme != "file":
        raise PlaceError(f"{text}: an address begins with http, https, tally, k8s, s3, backup or file")
    return [FoundStore(folder) for folder in _folders(text)]


def _of_broker(address: str, access: Access) -> FoundStore:
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query or parts.fragment or not parts.hostname:
        raise PlaceError(f"{parts.scheme}://{parts.hostname}: must be of the form http://host:port (option token)")
    address = address.rstrip("/")
    with StoreClient(address, access) as client:
        store = client.store()
    group = store.group or parts.netloc
    return FoundStore(address_of(address), group, store.member, address)


def _folders(text: str) -> list[str]:
    folder = f"/{text.removeprefix('file:').lstrip('/')}" if text.startswith("file:") else text
    if not glob.has_magic(folder) or Path(folder).exists():
        return [folder]
    found = sorted(each for each in glob.glob(folder) if Path(each).is_dir())  # noqa: PTH207 -- of any root
    if not found:
        raise PlaceError(f"no folder fits {folder}")
    return found


def _name_server_of(text: str) -> str:
    """The operator names the Service of a cluster's name servers after the cluster."""
    parts = urlsplit(text)
    name = parts.path.strip("/")
    if not parts.netloc or not name or "/" in name:
        raise PlaceError(f"{text}: must be of the form k8s://NAMESPACE/NAME of a BrokerCluster")
    return f"tally://{name}-nameserver.{parts.netloc}.svc:{_NAME_SERVER_PORT}"


def _of_name_server(text: str, access: Access) -> list[FoundStore]:
    from tallystick.spark.name_server import brokers_of  # the client of the protocol takes long to import

    servers, _, cluster = text.removeprefix("tally://").partition("/")
    found = []
    for name, http in brokers_of(servers, cluster or None).items():
        store = _of_broker(http, access)
        if store.group != name:  # such as another process at the same port of this machine
            raise PlaceError(f"{text}: the broker {name} states {http}, where the store of {store.group} is")
        found.append(FoundStore(store.root, name, None, http))
    return found


def _of_job(access: Access) -> list[FoundStore]:
    """A group has several members. The first that answers gives the bound, and the files that no volume has."""
    stores = stores_of_job()
    if stores is None:
        raise PlaceError(f"{JOB} means the stores of a StoreJob, and this program does not run in one: name a path")
    return [_of_members(group, places, access) for group, places in stores.items()]


def _of_members(group: str, places: Sequence[str], access: Access) -> FoundStore:
    for number, place in enumerate(places, start=1):
        try:
            (store,) = stores_at(place, access)
        except StoreClientError:
            if number == len(places):
                raise
        else:
            return replace(store, group=group, member=None)
    raise PlaceError(f"{JOB} has no member of {group}")


def address_of(http: str) -> str:
    """Returns the root of the store of a broker."""
    return http + _FILES


def is_remote(root: str) -> bool:
    """Returns whether a root is an address, and no folder."""
    return root.partition(":")[0] in ("http", "https", "backup")


def remote_at(root: str, access: Access) -> Remote:
    """Returns a client for a root that is an address. StoreClientError, VolumeError."""
    if root.startswith(SCHEME):
        return BackupStore(root.removeprefix(SCHEME), access)
    return StoreClient(root.removesuffix(_FILES), access)


@contextmanager
def reached(
    source: Source,
    files: Mapping[str, tuple[int, int]] | None = None,
    *,
    most_derived_bytes: int | None = None,
) -> Iterator[Reached]:
    """Within this context, the store can be read. `files`: the only files that are needed, with their bytes and how
    many of them can be read; `most_derived_bytes`: see `Mirror`.

    StoreClientError, VolumeError, OSError.
    """
    if not is_remote(source.root):
        yield Reached([(source.root, source.root)], None, LOCAL, source.root)
        return
    root = source.root + "/"
    named = None if files is None else {path.removeprefix(root): sizes for path, sizes in files.items()}
    volume = mounted_volume(source.http)
    moves = None if volume is None or named is None else volume.moves(source.root, named, source.access)
    if volume is not None and moves is not None:
        yield Reached(moves, None, LOCAL, volume.http)
        return
    remote = remote_at(source.root, source.access)
    with Mirror(remote, files=named, most_derived_bytes=most_derived_bytes) as mirror, bringing(mirror):
        via, store = (BACKUP, source.root) if source.http is None else (HTTP, source.http)
        yield Reached([(source.root, str(mirror.root))], mirror.committed, via, store)


@dataclass(frozen=True, slots=True)
class Reached:
    """A store that can be read now.

    `moves`: for each folder of the store, the folder in this process that has its files; the store itself is the last.
    `committed`: the bound that its broker gave, if any. `via`: how its files are read; `store`: whose they are, the
    address of a broker or of a backup, or a folder.
    """

    moves: Sequence[tuple[str, str]]
    committed: int | None
    via: str
    store: str

    @property
    def here(self) -> str:
        return self.moves[-1][1]

    def to_here(self, value: Any) -> Any:
        """Returns `value` with the paths of the store as they are in this process."""
        for root, here in self.moves:
            value = value if here == root else relocated(value, root, here)
        return value

    def from_here(self, value: Any) -> Any:
        """Returns `value` with the paths of the store as they are for everyone."""
        for root, here in self.moves:
            value = value if here == root else relocated(value, here, root)
        return value


@contextmanager
def opened(source: Source, *, with_queues: bool = True) -> Iterator[Volume]:
    """Opens a store in its present state. Its files can be read within this context; the paths of its `files` hold
    everywhere. `with_queues` false: only its bounds are needed. VolumeError, StoreClientError, OSError.

    A store elsewhere has no ConsumeQueues, or no index, if it would cost more to fetch these than they save.
    """
    with reached(source, most_derived_bytes=_MOST_DERIVED_BYTES if with_queues else 0) as store:
        bound = store.committed if source.committed is None else source.committed
        volume = open_volume(Path(store.here), source.source, bound)
        yield replace(volume, files=store.from_here(volume.files))


def reaching_runner(runner: Runner, sources: Sequence[Source]) -> Runner:
    """Returns a runner that reaches the store of each item; the given one, if all stores are folders."""
    return ReachingRunner(runner, sources) if any(is_remote(source.root) for source in sources) else runner


class ReachingRunner:
    """A `Runner` for items whose stores need not be in folders: each task reaches the store of its item.

    An item that is a `Split`, or has `splits`, reads only their files.
    """

    def __init__(self, runner: Runner, sources: Iterable[Source]) -> None:
        self._runner = runner
        self._sources = {source.source: source for source in sources}

    @property
    def at_once(self) -> int:
        return self._runner.at_once

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return self._runner(partial(_at_its_store, function=function), self._with_sources(items))

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        return self._runner.stream(partial(_at_its_store, function=function), self._with_sources(items))

    def _with_sources(self, items: Sequence[Item]) -> list[tuple[Item, Source]]:
        return [(item, self._sources[getattr(item, "source")]) for item in items]  # noqa: B009 -- every item has one


def _at_its_store(pair: tuple[Any, Source], function: Callable[[Any], Any]) -> Any:
    item, source = pair
    splits = (item,) if isinstance(item, Split) else getattr(item, "splits", None)
    with reached(source, None if splits is None else files_of(splits)) as store:
        return store.from_here(function(store.to_here(item)))


def relocated(value: Any, old: str, new: str) -> Any:
    """Returns `value` with all paths that are `old` or below it moved to `new`, also in containers and dataclasses."""
    move = partial(relocated, old=old, new=new)
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(old + "/") else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: move(getattr(value, each.name)) for each in fields(value)})
    if type(value) in (list, tuple, set):
        return type(value)(move(each) for each in value)
    if type(value) is dict:
        return {key: move(each) for key, each in value.items()}
    return value
