"""Groups under one seed: no promise breaks, the same seed is the same run, and all that can go wrong does.

`make simulate` runs more seeds than there is time for here; the oracle's and the mutations' own tests are next door.
"""

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).resolve().parent)
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from simulator import __main__ as command  # noqa: E402
from simulator.faults import BOUNDARIES, FAULTS, CrashPoint  # noqa: E402
from simulator.mutations import MUTATIONS, planted  # noqa: E402
from simulator.profiles import PROFILES, STORM  # noqa: E402
from simulator.simulation import Outcome, Simulation  # noqa: E402

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("profile", PROFILES)
def test_no_promise_breaks(profile: str) -> None:
    for seed in range(60):
        outcome = Simulation(seed, PROFILES[profile]).run()
        assert outcome.violation is None, command.report(outcome, profile)
        assert outcome.committed > 0


def test_the_same_seed_is_the_same_run() -> None:
    """Also in another process, whose hashes are others."""

    def listing(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONPATH": FOLDER, "PYTHONHASHSEED": hash_seed}
        call = [
            sys.executable,
            "-m",
            "simulator",
            "--first",
            "7",
            "--seeds",
            "3",
            "--profile",
            "everything",
            "--verbose",
        ]
        return subprocess.run(call, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    one, other = listing("1"), listing("2")
    assert one == other
    assert len(one.splitlines()) > 1000


def test_another_seed_is_another_run() -> None:
    assert len({Simulation(seed, STORM).run().steps for seed in range(20)}) > 10


def test_every_fault_is_asked_for_by_a_kind_of_run() -> None:
    assert {name for profile in PROFILES.values() for name in profile.faults} == set(FAULTS)


def test_every_fault_strikes() -> None:
    """Those that need a leader or a healthy majority may find none in a run; in so many runs they do."""
    effects = {"packet blocked", "packet lost", "packet duplicated", "packet late", "crash", "damage found when read"}
    effects |= {"entry lost unsynced", "entry torn"}
    missing = {*FAULTS, *effects}
    for seed, profile in product(range(15), PROFILES.values()):
        missing -= set(+Simulation(seed, profile).run().faults)
        if not missing:
            return
    assert missing == set()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", BOUNDARIES, ids=lambda kind: kind.__name__)
def test_members_die_at_every_effect_boundary(kind: type, after: bool) -> None:
    """A member that starts dies at its next effect of this kind: often the group can do nothing else."""
    died = f"crash {'after' if after else 'before'} {kind.__name__}"
    total = 0
    for seed in range(60):
        for name in ("everything", "behind", "membership", "loss"):
            simulation = Simulation(seed, PROFILES[name])
            simulation.queue.after(1.0, arm, simulation, kind, after)
            outcome = simulation.run()
            assert outcome.violation is None, command.report(outcome, None)
            total += outcome.faults[died]
        if total >= 3:
            return
    pytest.fail(f"{total} in so many runs: {died}")


def arm(simulation: Simulation, kind: type, after: bool) -> None:
    for member in simulation.members.values():
        if member.running and member.crash_at is None:
            member.crash_at = CrashPoint(kind, after, 1, 0.3)
    if simulation.queue.now < simulation.profile.chaos_seconds - 1.0:
        simulation.queue.after(0.5, arm, simulation, kind, after)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_last_line_says_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--first", "5", "--seeds", "4", "--processes", "1", "--profile", "storm"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"4 seeds, \d+ steps, faults injected: (.+ \d+, )*partition \d+(, .+ \d+)*; 0 violations", last)


def test_a_violation_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = planted(next(each for each in MUTATIONS if each.breaks == "D2"))

    def run_seed(seed: int, profile: str | None) -> Outcome:
        return Simulation(seed, PROFILES["storm"], raft=core).run()

    monkeypatch.setattr(command, "run_seed", run_seed)
    assert command.main(["--first", "3", "--seeds", "1", "--processes", "1", "--profile", "storm"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("seed 3 (storm): entries durable before success is told (D2): member ")
    assert "does  Send AppendReply(" in out
    assert "replay: make simulate FIRST=3 SEEDS=1 VERBOSE=1 PROFILE=storm\n" in out
    assert out.rstrip().endswith("; 1 violations")
