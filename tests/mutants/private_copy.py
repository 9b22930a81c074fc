"""A copy of the tree to plant bugs in, with an environment in which `tallystick` is that copy.

The editable install of the work tree maps `tallystick` to the work tree's folders by a finder that a `.pth` file
installs. The copy has a separate virtual environment. Its `.pth` file adds the libraries of the work tree's
environment as a plain path (so the finder in there is not installed) and makes `tallystick` a namespace over the copy.
Whatever starts `sys.executable` therefore runs the copy's code, however many processes deep.

Bytecode: planting gives a file a new modification time, so that Python never takes a stale `.pyc` for it.

The kernel is built in the copy, by cargo's development profile with some optimisation and without overflow checks and
debug assertions: the product's release build has none of these either, so a bug is not found by them. Test programs and
the extension module have a target folder each: the flag for extension modules would rebuild everything in between.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from .catalogue import ROOT, Edit
from .warm import WarmPytest

KERNEL = "store/kernel"
EXTENSION = "store/_kernel.abi3.so"
_BUILD = {
    "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
    "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
    "CARGO_PROFILE_DEV_INCREMENTAL": "true",
}
_PTH = """\
{libraries}
import sys, types, importlib.machinery as m; p = types.ModuleType("tallystick"); p.__path__ = [{folder!r}]; \
p.__spec__ = m.ModuleSpec("tallystick", None, is_package=True); p.__spec__.submodule_search_locations = p.__path__; \
sys.modules["tallystick"] = p
"""


class PrivateCopy:
    """The tree in `folder`, made new when this is entered; what cargo built there earlier is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "tree"
        self.temporary = folder / "tmp"
        self.python = self.tree / ".venv" / "bin" / "python"
        self.pytest = WarmPytest(self.python, self.tree, self.environment())
        self._originals: dict[Path, tuple[bytes, int]] = {}
        self._planted = 0

    def make(self) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)
        for file in _files():
            target = self.tree / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target)
        shutil.copy2(ROOT / EXTENSION, self.folder / "extension")
        self.restore_extension()
        # What cargo built here last may hold a bug of a run that was ended: to cargo every source is new.
        for path in (self.tree / KERNEL).rglob("*.rs"):
            path.touch()
        self.temporary.mkdir(parents=True, exist_ok=True)
        venv.create(self.tree / ".venv", symlinks=True)
        libraries = Path(sysconfig.get_path("purelib"))
        packages = self.tree / ".venv" / libraries.relative_to(sys.prefix)
        pth = _PTH.format(libraries=libraries, folder=str(self.tree))
        (packages / "mutants.pth").write_text(pth)
        parts = ["client", "node", "operator", "replication", "spark", "store", "tests"]
        subprocess.run([self.python, "-m", "compileall", "-q", *parts], cwd=self.tree, check=True)

    def remove(self) -> None:
        self.pytest.close()
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.rmtree(self.temporary, ignore_errors=True)

    # -- planting ------------------------------------------------------------------------------------------------------

    def plant(self, edits: tuple[Edit, ...]) -> None:
        """Puts a bug into the copy. ValueError: an old text is not there exactly once; nothing is changed then."""
        changed: dict[Path, str] = {}
        for edit in edits:
            path = self.tree / edit.file
            changed[path] = edit.applied(changed.get(path) or path.read_text())
        for path, source in changed.items():
            self._originals[path] = (path.read_bytes(), path.stat().st_mtime_ns)
            path.write_text(source)
            if path.suffix == ".py":
                self._planted += 1
                later = path.stat().st_mtime + 10 * self._planted
                os.utime(path, (later, later))

    def restore(self) -> None:
        for path, (content, mtime_ns) in self._originals.items():
            path.write_bytes(content)
            if path.suffix == ".py":  # cargo has to see that a source changed once more
                os.utime(path, ns=(mtime_ns, mtime_ns))
        self._originals.clear()

    # -- what runs in it -----------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        shared = os.environ.get("TALLYSTICK_SHARED", str(ROOT.parent / "shared"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "VIRTUAL_ENV"))}
        return kept | {
            "CI": "1",  # Hypothesis draws the same examples each time
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self.tree / "tests"),
            "TALLYSTICK_SHARED": shared,
            "TMPDIR": str(self.temporary),
        }

    def build_environment(self, target: str) -> dict[str, str]:
        more = {"CARGO_TARGET_DIR": str(self.folder / f"target-{target}"), **_BUILD}
        if target == "extension":
            more["PYO3_BUILD_EXTENSION_MODULE"] = "1"
        return self.environment() | more

    def install_extension(self) -> None:
        """The kernel that was built is the one that Python imports."""
        built = self.folder / "target-extension" / "debug" / "lib_kernel.so"
        fresh = (self.tree / EXTENSION).with_suffix(".new")
        shutil.copy2(built, fresh)
        fresh.replace(self.tree / EXTENSION)

    def restore_extension(self) -> None:
        """The kernel without a bug, as it was when the copy was made: a build in the work tree changes nothing here."""
        fresh = (self.tree / EXTENSION).with_suffix(".new")
        shutil.copy2(self.folder / "extension", fresh)
        fresh.replace(self.tree / EXTENSION)


def _files() -> list[Path]:
    """What git knows or would add: changes that are not committed belong to the tree, what a build made does not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    return [file for file in files if (ROOT / file).is_file()]
