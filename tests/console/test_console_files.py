"""The files of the console: what they load, and that vendored files are those of their packages."""

import hashlib
import re
from pathlib import Path

import pytest

from tallystick.console.pages import page_routes

STATIC = Path(__file__).resolve().parents[2] / "console" / "static"
VENDOR = STATIC / "vendor"
MODULES = sorted(path for path in STATIC.rglob("*.js") if VENDOR not in path.parents)
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["']([^"']+)["']""")


def test_vendored_files_are_those_of_their_packages() -> None:
    lines = [line.split("  ") for line in (VENDOR / "SHA256SUMS").read_text().splitlines()]
    expected = {name: digest for digest, name in lines}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.suffix in (".js", ".woff2")
    }
    assert found == expected
    readme = (VENDOR / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in found), "each has its package, version and licence"
    assert all((VENDOR / name).is_file() for name in re.findall(r"`(\S+\.LICENSE)`", readme))


@pytest.mark.parametrize("path", [*MODULES, *VENDOR.glob("*.js")], ids=lambda path: path.name)
def test_modules_import_files_that_exist(path: Path) -> None:
    for name in IMPORT.findall(path.read_text()):
        assert name.startswith("."), f"{name}: a browser finds it only with an import map"
        assert (path.parent / name).is_file(), name


@pytest.mark.parametrize("path", [*MODULES, STATIC / "index.html", STATIC / "style.css"], ids=lambda path: path.name)
def test_pages_have_nothing_that_the_policy_forbids(path: Path) -> None:
    text = re.sub(r'xmlns="[^"]*"', "", path.read_text())
    assert re.findall(r"https?://\S+", text) == [], "nothing comes from another host"
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function",
        r"\sstyle=",
        r"<style",
    )
    assert [each for pattern in forbidden for each in re.findall(pattern, text)] == []
    if path.suffix == ".html":
        assert re.findall(r"\son\w+=|<script(?![^>]*\ssrc=)", text) == []


def test_each_file_is_served() -> None:
    served = {route.path for route in page_routes()}
    assert {"/" + path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()} <= served
    for name in re.findall(r'(?:href|src)="([^"]+)"', (STATIC / "index.html").read_text()):
        assert f"/{name}" in served
