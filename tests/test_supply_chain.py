"""What builds take in: each package is pinned with its hash, and each crate with its checksum and a known licence."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = "tallystick-client"
"""A package of this repository, which no lock has."""
LICENCES = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT",
    "Unicode-3.0", "Unlicense", "Zlib",
}  # fmt: skip
"""Licences of crates that may be linked into the kernel."""


def pinned(lock: Path) -> dict[str, tuple[str, int]]:
    """By name: version and number of hashes."""
    found: dict[str, tuple[str, int]] = {}
    for block in re.split(r"\n(?=\S)", lock.read_text()):
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)", block):
            found[canonicalize_name(match[1])] = match[2], block.count("--hash=sha256:")
        else:
            assert all(line.startswith("#") or not line for line in block.splitlines()), f"{lock.name}: {block}"
    return found


def declared(*extras: str) -> list[Requirement]:
    optional = PROJECT["optional-dependencies"]
    texts = (*PROJECT["dependencies"], *(each for name in extras for each in optional[name]))
    requirements = [Requirement(text) for text in texts]
    return [each for each in requirements if each.name != OWN]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_each_package_has_hashes(lock: Path) -> None:
    packages = pinned(lock)
    assert packages and all(hashes for _, hashes in packages.values())
    assert "://" not in re.sub(r"#.*", "", lock.read_text()), "the address of an index"


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("node", ("backup",)), ("operator", ("operator",)), ("jobs", ("spark", "bodies", "backup")), ("dev", ("dev",))],
)
def test_a_lock_has_what_the_project_declares(lock: str, extras: tuple[str, ...]) -> None:
    packages = pinned(ROOT / "requirements" / f"{lock}.txt")
    for requirement in declared(*extras):
        version, _ = packages.get(canonicalize_name(requirement.name), ("none", 0))
        assert version != "none" and requirement.specifier.contains(version), f"{lock}.txt: {requirement}: make lock"


def test_builds_use_the_locks() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for lock in ("node", "operator"):
        assert f"--require-hashes -r /requirements/{lock}.txt" in dockerfile
    assert "export LOCKED=1" in (ROOT / ".ci" / "run").read_text()
    recipes = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t")]
    commands = re.findall(r"cargo (?:test|build|clippy)[^&\n]*", "\n".join(recipes))
    assert commands and all("--locked" in command for command in commands), commands
    kernel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools-rust"]["ext-modules"][0]
    assert "--locked" in kernel["args"]


def test_the_document_of_the_wheel_has_each_crate() -> None:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "requirements" / "sbom.py")
    assert spec is not None and spec.loader is not None
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    document: dict[str, Any] = sbom.wheel_sbom()
    locked = tomllib.loads((ROOT / "store" / "kernel" / "Cargo.lock").read_text())["package"]
    listed = {(each["name"], each["version"]) for each in document["components"]}
    assert listed == {(each["name"], each["version"]) for each in locked if each["name"] != "tallystick-kernel"}
    assert all(len(each["hashes"][0]["content"]) == 64 for each in document["components"])
    assert document["metadata"]["component"]["version"] == PROJECT["version"]


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")
def test_the_licences_of_the_crates_are_known() -> None:
    """Of an `OR`, one is enough."""
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1"]
    run = subprocess.run(command, cwd=ROOT / "store" / "kernel", capture_output=True, text=True)
    if run.returncode:
        pytest.skip(f"the crates are not downloaded: {run.stderr.strip()[-200:]}")
    for package in json.loads(run.stdout)["packages"]:
        text = (package["license"] or "").replace("/", " OR ")
        for needed in re.split(r" AND (?![^()]*\))", text):
            choices = {choice.strip(" ()") for choice in needed.split(" OR ")}
            assert choices & LICENCES, f"{package['name']}: {text}"
