"""`rebuild`: ConsumeQueues and index of a store, made from its log alone, byte for byte what its broker makes.

The result is a folder beside the store, never in it: whoever runs the broker installs it while it stands still. The
kernel's own dispatcher does the work, so the rules are the broker's; the settings that the files cannot tell are found
by looking at the queues that are there, or given.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tallystick.spark.jobs.runner import Runner
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.volume import Volume
from tallystick.store._kernel import Door
from tallystick.store.dump import overridden, settings_of
from tallystick.store.recovery import log_layout, open_dispatch

_STEP_BYTES = 64 << 20


@dataclass(frozen=True)
class Rebuilt:
    """`same`, `differing`, `missing`: files of the store that are as rebuilt, are not, or are not there at all."""

    source: str
    folder: str
    records: int
    end: int
    stopped: str | None
    skipped: int
    files: int
    same: int
    differing: list[str]
    missing: list[str]


def run(options: ReadOptions, runner: Runner, out: Path, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Rebuilds each store into `out`/<source>. OptionError: `out` is in a store, or a folder in it has something."""
    volumes = options.volumes()
    for volume in volumes:
        if out.resolve().is_relative_to(Path(volume.root).resolve()):
            raise OptionError("out", f"{out} is within the store {volume.root}")
        folder = _folder(out, volume)
        if folder.exists() and any(folder.iterdir()):
            raise OptionError("out", f"{folder} has something in it")
    built = runner(partial(rebuild, out=str(out), settings=dict(settings or {})), volumes)
    return {"job": "rebuild", "volumes": [asdict(each) for each in built]}


def _folder(out: Path, volume: Volume) -> Path:
    return out / volume.source.strip("/").replace("/", "_")


def rebuild(volume: Volume, out: str, settings: Mapping[str, str]) -> Rebuilt:
    """One store. Reads the log up to its bound; OSError, DamageError, SettingsError."""
    root, folder = Path(volume.root), _folder(Path(out), volume)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = overridden(settings_of(root), settings)
    log_folder, entry_header_bytes = log_layout(root, chosen)
    dispatch = open_dispatch(Door(), folder, log_folder, chosen, entry_header_bytes)
    dispatch.load()
    dispatch.start(volume.begin)
    records = skipped = 0
    while True:
        before = dispatch.position
        result = dispatch.run(volume.bound, _STEP_BYTES)
        records, skipped = records + result.records, skipped + len(result.skipped)
        if result.stopped is not None or dispatch.position in (before, volume.bound):
            break
    dispatch.write_out()
    dispatch.sync()
    same, differing, missing = _compared(folder, root)
    return Rebuilt(
        source=volume.source,
        folder=str(folder),
        records=records,
        end=dispatch.position,
        stopped=result.stopped,
        skipped=skipped,
        files=same + len(differing) + len(missing),
        same=same,
        differing=differing,
        missing=missing,
    )


def _compared(folder: Path, root: Path) -> tuple[int, list[str], list[str]]:
    """Queues by name. Index files are named by the time of their making: theirs are compared in their order."""
    same, differing, missing = 0, [], []
    pairs = [(path, root / path.relative_to(folder)) for path in sorted(folder.glob("consumequeue/*/*/*"))]
    theirs = sorted(root.glob("index/*"))
    for number, path in enumerate(sorted(folder.glob("index/*"))):
        pairs.append((path, theirs[number] if number < len(theirs) else root / path.relative_to(folder)))
    for ours, there in pairs:
        name = str(ours.relative_to(folder))
        if not there.exists():
            missing.append(name)
        elif filecmp.cmp(ours, there, shallow=False):
            same += 1
        else:
            differing.append(name)
    return same, differing, missing
