"""Checks wheels before a release: `python requirements/wheels.py dist/release/*.whl`.

A wheel for Linux must contain one library, for the machine of its tag, that needs no newer glibc than its tag says. The
client's wheel must run everywhere. All have one version. The exit status is 1 if something is wrong.

The versions that a library needs stand in its section .gnu.version_r. Source: elf(5) and the Linux Standard Base.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

_MACHINES = {62: "x86_64", 183: "aarch64"}
_VERNEED = 0x6FFFFFFE
_NAME = re.compile(r"(?P<name>\w+)-(?P<version>[\w.]+)-(?P<python>\w+)-(?P<abi>\w+)-(?P<platform>\w+)\.whl\Z")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)\Z")
CLIENT = "tallystick_client"


def machine(library: bytes) -> str:
    """The machine of a library. ValueError: it is not a 64-bit ELF file of a known machine."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (number,) = struct.unpack_from("<H", library, 18)
    if number not in _MACHINES:
        raise ValueError(f"machine {number}")
    return _MACHINES[number]


def needed(library: bytes) -> set[str]:
    """The versions of symbols that a library needs, such as GLIBC_2.17."""
    (offset,) = struct.unpack_from("<Q", library, 40)
    size, count = struct.unpack_from("<HH", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, offset + size * number) for number in range(count)]
    found = set()
    for section in sections:
        if section[1] == _VERNEED:
            names = sections[section[6]]
            found |= set(_versions(library, section[4], section[7], names[4]))
    return found


def _versions(library: bytes, at: int, count: int, names: int) -> Iterator[str]:
    for _ in range(count):
        _, parts, _, first, following = struct.unpack_from("<HHIII", library, at)
        part = at + first
        for _ in range(parts):
            _, _, _, name, next_part = struct.unpack_from("<IHHII", library, part)
            end = library.index(b"\0", names + name)
            yield library[names + name : end].decode()
            part += next_part
        at += following


def glibc(versions: set[str]) -> tuple[int, ...]:
    """The newest glibc among them."""
    numbers = [version.removeprefix("GLIBC_") for version in versions if version.startswith("GLIBC_")]
    return max((tuple(map(int, number.split("."))) for number in numbers), default=(0,))


def complaints(wheel: Path) -> list[str]:
    """What is wrong with a wheel."""
    found = _NAME.match(wheel.name)
    if found is None:
        return [f"{wheel.name} is no name of a wheel"]
    with zipfile.ZipFile(wheel) as archive:
        libraries = {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}
    tag = "-".join((found["python"], found["abi"], found["platform"]))
    if found["name"] == CLIENT:
        return [] if tag == "py3-none-any" and not libraries else [f"{wheel.name} does not run everywhere"]
    manylinux = _MANYLINUX.match(found["platform"])
    if manylinux is None or (found["python"], found["abi"]) != ("cp311", "abi3"):
        return [f"{wheel.name}: the tag is not cp311-abi3-manylinux_X_Y_MACHINE"]
    if len(libraries) != 1:
        return [f"{wheel.name} has {len(libraries)} libraries"]
    (library,) = libraries.values()
    wrong = []
    if machine(library) != manylinux[3]:
        wrong.append(f"{wheel.name}: its library is for {machine(library)}")
    needs = glibc(needed(library))
    if needs > (int(manylinux[1]), int(manylinux[2])):
        wrong.append(f"{wheel.name}: its library needs glibc {'.'.join(map(str, needs))}")
    return wrong


def main(arguments: list[str]) -> int:
    """Prints what is wrong. Returns the exit status."""
    wheels = [Path(argument) for argument in arguments]
    wrong = [each for wheel in wheels for each in complaints(wheel)]
    versions = {found["version"] for wheel in wheels if (found := _NAME.match(wheel.name))}
    if len(versions) != 1:
        wrong.append(f"the wheels have {len(versions)} versions: {', '.join(sorted(versions))}")
    for line in wrong or [f"{len(wheels)} wheels are sound"]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
