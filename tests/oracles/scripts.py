"""Loads a script of the repository that is no part of the package, such as a generator of documents."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(path: Path) -> ModuleType:
    """Returns the module that a file contains. Its `__main__` part does not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, f"{path} cannot be loaded"
    assert spec.loader is not None, f"{path} cannot be loaded"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
