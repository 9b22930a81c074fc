"""The simulation of whole brokers: one seed is one run, in any process. `make simulate-node` runs more seeds.

Each run is a separate process: the simulation replaces the clocks of the process that it runs in.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.simulation

FOLDER = Path(__file__).resolve().parent


def _mutations() -> Any:
    """Without the package, which replaces what this process needs."""
    spec = importlib.util.spec_from_file_location("simulation_mutations", FOLDER / "simulation" / "mutations.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BY_NAME: dict[str, Any] = _mutations().BY_NAME
LAST_LINE = re.compile(r"(\d+) seeds, (\d+) steps, faults injected: (.*); (\d+) violations")


def simulate(*arguments: str) -> tuple[int, str]:
    """Exit code and output of `python -m simulation`."""
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    call = [sys.executable, "-m", "simulation", *arguments]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def test_the_same_seed_is_the_same_run() -> None:
    one = simulate("--first", "3", "--seeds", "2", "--verbose")
    assert one == simulate("--first", "3", "--seeds", "2", "--verbose")
    assert len(one[1].splitlines()) > 200


@pytest.mark.parametrize("profile", ("sync", "async", "disks", "group"))
def test_no_rule_breaks(profile: str) -> None:
    code, shown = simulate("--first", "500", "--seeds", "6", "--profile", profile, "--jobs", "1")
    assert code == 0, shown


@pytest.mark.parametrize("seed", ("2", "4", "6", "9"))
def test_a_group_repairs_the_damaged_log_of_a_member(seed: str) -> None:
    """Seeds that found a leader without a topic, holes in queues after a repair, and damage that stayed."""
    code, shown = simulate("--first", seed, "--seeds", "1", "--profile", "group-rot", "--jobs", "1")
    assert code == 0, shown


@pytest.mark.parametrize("seed", ("62", "77", "89", "123", "125"))
def test_a_broker_by_itself_reports_what_is_damaged_and_keeps_the_rest(seed: str) -> None:
    """Seeds that found durable bytes cut as a torn write, and copies of delayed and committed messages hit."""
    code, shown = simulate("--first", seed, "--seeds", "1", "--profile", "rot", "--jobs", "1")
    assert code == 0, shown


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_planted_mistake_is_found(name: str) -> None:
    mutation = BY_NAME[name]
    seeds = (
        "--first",
        str(mutation.first),
        "--seeds",
        str(mutation.seeds),
        "--profile",
        mutation.profile,
        "--jobs",
        "1",
    )
    code, shown = simulate("--mutation", name, "--until-found", *seeds)
    assert code == 1, shown
    assert any(f"): {rule}: " in shown for rule in mutation.rules), shown


def test_the_last_line_says_what_happened() -> None:
    _, shown = simulate("--seeds", "6", "--jobs", "1", "--check-determinism")
    assert "D1" not in shown
    found = LAST_LINE.fullmatch(shown.splitlines()[-1])
    assert found is not None, shown
    assert found[1] == "6"
    assert int(found[2]) > 10_000
    assert "kill" in found[3]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the simulation's folders are in /dev/shm")
def test_what_a_killed_run_left_in_memory_is_removed() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left = Path("/dev/shm") / f"simulation-{ended.pid:07}"
    (left / "store").mkdir(parents=True)
    living = Path("/dev/shm") / f"simulation-{os.getpid():07}"
    living.mkdir()
    try:
        assert simulate("--first", "3", "--seeds", "1")[0] == 0
        assert not left.exists() and living.exists()
    finally:
        living.rmdir()
