"""The catalogue of planted bugs: the files in `planted/`, one for each part, read and checked.

    [[mutant]]
    name = "a sync that failed is forgotten"        what it breaks, in plain words; unique
    file = "store/formats/checkpoint.py"                     where, from the root of the repository
    old = '''...'''                                  text that occurs in the file exactly once
    new = '''...'''                                  what stands there instead
    pytest = ["tests/store/test_checkpoint.py"]      the layer that must find it; or `cargo = "queue::tests"`,
                                                     or `simulate = "storm"` with `seeds = 200`
    timeout = 300                                    seconds, if the default is not enough
    equivalent = "..."                               only for a survivor: why the change makes no difference

A bug of several places has `[[mutant.edits]]` with `file`, `old` and `new` instead. The mistakes that the simulator's
own tests plant in the core (`tests/replication/simulator/mutations.py`) belong to the catalogue, too.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PLANTED = Path(__file__).resolve().parent / "planted"
DEFAULT_TIMEOUT_S = {"pytest": 240.0, "cargo": 30.0, "simulator": 240.0}
SIMULATOR_PART = "core"
_KNOWN = {"name", "file", "old", "new", "edits", "pytest", "cargo", "simulate", "seeds", "timeout", "equivalent"}


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of text in a file, named from the root."""

    file: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        """The file's text with the bug in it. ValueError: the old text is not there exactly once."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} has {count} times: {self.old}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Detector:
    """The layer that must find a bug: exactly one of `pytest` (files or node ids), `cargo` (a filter of test names) and
    `simulate` (a profile of the simulator, and how many seeds of it)."""

    pytest: tuple[str, ...] = ()
    cargo: str = ""
    simulate: str = ""
    seeds: int = 0

    @property
    def layer(self) -> str:
        return "pytest" if self.pytest else "cargo" if self.cargo else "simulator"

    def __str__(self) -> str:
        if self.pytest:
            return " ".join(self.pytest)
        return f"cargo test {self.cargo}" if self.cargo else f"simulator, {self.seeds} seeds of {self.simulate}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug. `equivalent` is the reason why no test can see it, empty for all that must be found."""

    part: str
    name: str
    edits: tuple[Edit, ...]
    detector: Detector
    timeout_s: float
    equivalent: str = ""

    @property
    def in_kernel(self) -> bool:
        return any(edit.file.startswith("store/kernel/") for edit in self.edits)


class CatalogueError(Exception):
    """An entry of the catalogue that cannot be understood."""


def load(folder: Path = PLANTED) -> list[Mutant]:
    """All planted bugs, part by part. CatalogueError: an entry is malformed."""
    mutants = [each for path in sorted(folder.glob("*.toml")) for each in parsed(path.stem, path.read_text())]
    mutants.extend(_of_the_simulator())
    names = [mutant.name for mutant in mutants]
    for name in names:
        if names.count(name) > 1:
            raise CatalogueError(f"two bugs are named {name!r}")
    return mutants


def problems(mutant: Mutant, root: Path = ROOT) -> Iterator[str]:
    """What is wrong with an entry, seen from the tree as it is: texts that moved, detectors that are gone."""
    sources: dict[str, str] = {}
    for edit in mutant.edits:
        try:
            source = sources.get(edit.file) or (root / edit.file).read_text()
            sources[edit.file] = edit.applied(source)
        except (OSError, ValueError) as error:
            yield str(error)
    for file, source in sources.items():
        if file.endswith(".py"):
            try:
                compile(source, file, "exec")
            except SyntaxError as error:
                yield f"{file} does not compile with the bug: {error}"
        if source == (root / file).read_text():
            yield f"{file} is the same with the bug"
    for argument in mutant.detector.pytest:
        if not (root / argument.split("::")[0]).exists():
            yield f"the detector {argument} does not exist"


def parsed(part: str, text: str) -> Iterator[Mutant]:
    """The bugs of one part's file. CatalogueError: an entry is malformed."""
    for entry in tomllib.loads(text)["mutant"]:
        unknown = set(entry) - _KNOWN
        if unknown or "name" not in entry:
            raise CatalogueError(f"{part}: {entry.get('name', 'an entry without a name')}: {sorted(unknown)}")
        yield _mutant(part, entry)


def _mutant(part: str, entry: dict[str, Any]) -> Mutant:
    name = entry["name"]
    if ("edits" in entry) == ("file" in entry):
        raise CatalogueError(f"{name}: either file, old and new, or edits")
    edits = tuple(Edit(each["file"], each["old"], each["new"]) for each in entry.get("edits", [entry]))
    if sum(layer in entry for layer in ("pytest", "cargo", "simulate")) != 1:
        raise CatalogueError(f"{name}: exactly one of pytest, cargo and simulate has to find it")
    detector = Detector(
        tuple(entry.get("pytest", ())), entry.get("cargo", ""), entry.get("simulate", ""), entry.get("seeds", 200)
    )
    timeout_s = float(entry.get("timeout", DEFAULT_TIMEOUT_S[detector.layer]))
    return Mutant(part, name, edits, detector, timeout_s, entry.get("equivalent", "").strip())


def _of_the_simulator() -> Iterator[Mutant]:
    folder = str(ROOT / "tests" / "replication")
    if folder not in sys.path:
        sys.path.append(folder)
    from simulator.mutations import MUTATIONS

    for mutation in MUTATIONS:
        edits = tuple(Edit(f"replication/{edit.module}.py", edit.old, edit.new) for edit in mutation.edits)
        detector = Detector(simulate=mutation.profile, seeds=mutation.seeds)
        yield Mutant(SIMULATOR_PART, mutation.name, edits, detector, DEFAULT_TIMEOUT_S[detector.layer])
