"""Runs docs/tour.md: its commands in a shell, and its pages in a browser, where the message must be seen.

    python e2e/tour.py [pip] [docker] [compose] [kind]

A part is chosen by its last word in lower case; without one, `pip` is run. `pip` runs in a separate network namespace,
where the ports of the page are free, with wheels that are built before. `docker` and `compose` need the image
(`make images TARGETS=node`) and free ports; `kind` needs the cluster of the quickstart. Exit status: 0 as the page
says; 1 not; 2 a part cannot run here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.places import ROOT, work_folder

_PAGE = ROOT / "docs" / "tour.md"
_FILES = (ROOT / "docs" / "examples" / "hello.py", ROOT / "docs" / "examples" / "deploy" / "compose.yaml")
_NEEDS: dict[str, tuple[str, ...]] = {"pip": (), "docker": ("docker",), "compose": ("docker",), "kind": ("kubectl",)}
_MESSAGE = "hello, world"
_FENCE = re.compile(r"^```sh(?P<background> background)?\n(?P<text>.*?)^```$|<(?P<url>http://[^>]+)>", re.S | re.M)
_READY = re.compile(r"console http://\S+")
_STEP_S, _READY_S, _SEEN_S = 600.0, 120.0, 30_000
_DONE = "--- the step is done ---"


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, or a page to open. `background`: the commands run in a separate terminal."""

    text: str = ""
    background: bool = False
    url: str = ""


class TourError(Exception):
    """A step did not do what the page says."""


def parts(text: str) -> dict[str, list[Step]]:
    """Returns the steps of each part of the page, by the last word of its heading."""
    found = {}
    for section in text.split("\n## ")[1:]:
        title, _, content = section.partition("\n")
        found[title.split()[-1].lower()] = [
            Step(url=match["url"]) if match["url"] else Step(match["text"], bool(match["background"]))
            for match in _FENCE.finditer(content)
        ]
    return found


class Shell:
    """A shell in which a reader types the commands of one part. Use it as a context manager."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._terminals = 0

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def run(self, step: Step) -> None:
        """Types a step. TourError: a command failed, or what runs in the background is not ready."""
        print(step.text.rstrip(), flush=True)
        if step.background:
            self._terminals += 1
            log = self._folder / f"terminal-{self._terminals}"
            self._type(f"{{ {step.text.strip()}\n}} >{log} 2>&1 &\n")
            self._ready(log)
        else:
            self._type(step.text)

    def _type(self, text: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{text}\necho '{_DONE}'\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.strip() == _DONE:
                return
            print("    " + line.rstrip(), flush=True)
        raise TourError(f"a command failed, exit status {self._process.wait()}: {text.strip()}")

    @staticmethod
    def _ready(log: Path) -> None:
        end_s = time.monotonic() + _READY_S
        while time.monotonic() < end_s:
            if log.exists() and _READY.search(log.read_text()):
                return
            time.sleep(0.1)
        raise TourError(f"no console within {_READY_S:g} s:\n{log.read_text() if log.exists() else ''}")


def see(url: str, picture: Path) -> None:
    """Opens the page of a topic, and finds the message as the text beside the link says. TourError: it is not seen."""
    from playwright.sync_api import Error, sync_playwright

    print(f"open {url}", flush=True)
    path = os.environ.get("TALLY_CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(_SEEN_S)
        try:
            page.goto(url)
            page.get_by_role("link", name="Messages", exact=True).last.click()
            page.get_by_role("button", name="Search", exact=True).click()
            page.locator("main table tbody a").first.click()
            page.get_by_text(_MESSAGE).first.wait_for()
        except Error as error:
            raise TourError(f"{url} does not show the message: {error.message}") from error
        finally:
            page.screenshot(path=picture)
            browser.close()
    print(f'    seen: "{_MESSAGE}"', flush=True)


def wheels(folder: Path) -> None:
    """Fills a folder with the wheels of the product, and of what it needs."""
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True, timeout=_STEP_S)
    built = sorted(str(path) for path in (ROOT / "dist").glob("tallystick*.whl"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder), *built]
    subprocess.run(command, check=True, timeout=_STEP_S)


def play(name: str, steps: Sequence[Step], folder: Path, environment: dict[str, str]) -> float:
    """Runs one part, and returns the seconds until its message was seen first. TourError."""
    for file in _FILES:
        shutil.copy(file, folder)
    if name == "compose":
        _with_compose(folder)
    begin_s, seen_s = time.monotonic(), 0.0
    with Shell(folder, environment) as shell:
        for step in steps:
            if step.url:
                see(step.url, folder / "page.png")
                seen_s = seen_s or time.monotonic() - begin_s
            else:
                shell.run(step)
    return seen_s


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", default=["pip"], choices=sorted(_NEEDS))
    parser.add_argument("--wheels", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known = parts(_PAGE.read_text())
    for name in options.part:
        for tool in (*_NEEDS[name], "bash"):
            if shutil.which(tool) is None:
                print(f"cannot run the part {name}: {tool} is not installed", file=sys.stderr)
                return 2
        with work_folder(f"tour-{name}-") as work:
            work.status = _part(name, known[name], work.path, options.wheels)
        if work.status != 0:
            return work.status
    return 0


def _part(name: str, steps: Sequence[Step], folder: Path, wheelhouse: Path | None) -> int:
    """Runs one part in a folder, and returns the exit status."""
    if name == "pip" and wheelhouse is None:
        wheels(folder / "wheels")
        return _in_namespace(folder / "wheels")
    try:
        seconds = play(name, steps, folder, _environment(name, folder, wheelhouse))
    except TourError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    print(f"{name}: the message was seen in the browser after {seconds:.0f} s", flush=True)
    return 0


def _in_namespace(folder: Path) -> int:
    """Runs the part `pip` in a separate network, which has only the loopback interface."""
    inside = f'ip link set lo up && exec "{sys.executable}" "{__file__}" pip --wheels "{folder}"'
    private = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return subprocess.run([*private, "bash", "-c", inside]).returncode


def _environment(name: str, folder: Path, wheels: Path | None) -> dict[str, str]:
    found = {key: value for key, value in os.environ.items() if not key.startswith(("TALLY_", "PIP_"))}
    if name == "pip":
        return found | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return found | {"PATH": f"{ROOT / '.venv' / 'bin'}:{folder}:{found['PATH']}"}


def _with_compose(folder: Path) -> None:
    """Where Docker has no plugin for Compose, `docker compose` is the older program `docker-compose`."""
    has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    if has_plugin or shutil.which("docker-compose") is None:
        return
    docker = folder / "docker"
    docker.write_text(
        f'#!/bin/sh\n[ "$1" != compose ] || {{ shift; exec docker-compose "$@"; }}\n'
        f'exec {shutil.which("docker")} "$@"\n'
    )
    docker.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
