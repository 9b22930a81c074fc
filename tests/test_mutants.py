"""The catalogue of planted bugs matches the tree: these tests fail when planted code moves, and its bugs have to
follow.

Planting them takes minutes (`make mutants`); that every one can be planted takes a moment.
"""

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).resolve().parent)
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from mutants import report  # noqa: E402
from mutants.catalogue import CatalogueError, Detector, Edit, Mutant, load, parsed, problems  # noqa: E402
from mutants.detectors import Ended, Result, Verdict, judged  # noqa: E402
from mutants.times import Times, minutes  # noqa: E402
from mutants.warm import WarmPytest  # noqa: E402

MUTANTS = load()
PYTEST = Detector(pytest=("tests/test_layout.py",))


@pytest.mark.parametrize("part", sorted({mutant.part for mutant in MUTANTS}))
def test_every_bug_fits_its_file(part: str) -> None:
    """Each old text occurs exactly once, each Python file compiles with its bug, and each detector exists."""
    wrong = [f"{mutant.name}: {each}" for mutant in MUTANTS if mutant.part == part for each in problems(mutant)]
    assert wrong == []


def test_there_are_bugs_in_every_part() -> None:
    parts = Counter(mutant.part for mutant in MUTANTS)
    assert parts.total() >= 120
    assert all(count >= 5 for count in parts.values()), parts
    assert parts["kernel"] >= 30


def test_every_survivor_has_a_reason() -> None:
    short = [mutant.name for mutant in MUTANTS if mutant.equivalent and len(mutant.equivalent.split()) < 8]
    assert short == [], "a reason must be a sentence that a reader can check"


# -- the checks themselves ---------------------------------------------------------------------------------------------


def mutant(old: str = "x", new: str = "y", file: str = "a.py", equivalent: str = "") -> Mutant:
    return Mutant("part", "a bug", (Edit(file, old, new),), PYTEST, 1.0, equivalent)


def test_a_bug_that_does_not_apply_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_layout.py").write_text("")
    assert list(problems(mutant(), tmp_path)) == []
    assert list(problems(mutant(old="z"), tmp_path)) == ["a.py has 0 times: z"]
    assert list(problems(mutant(new="x"), tmp_path)) == ["a.py is the same with the bug"]
    assert "does not compile" in next(iter(problems(mutant(new="("), tmp_path)))
    (tmp_path / "a.py").write_text("x = x\n")
    assert list(problems(mutant(), tmp_path)) == ["a.py has 2 times: x"]
    (tmp_path / "tests" / "test_layout.py").unlink()
    assert "does not exist" in list(problems(mutant(old="x = x"), tmp_path))[-1]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("name = 'n'\npytest = ['t']", "either file"),
        ("name = 'n'\nfile = 'f'\nold = 'a'\nnew = 'b'", "exactly one of"),
        ("name = 'n'\nfile = 'f'\nold = 'a'\nnew = 'b'\npytest = ['t']\ncargo = 'c'", "exactly one of"),
        ("name = 'n'\nfile = 'f'\nold = 'a'\nnew = 'b'\nfound_by = 't'", "found_by"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_refused(entry: str, told: str) -> None:
    with pytest.raises(CatalogueError, match=told):
        list(parsed("part", f"[[mutant]]\n{entry}\n"))


@pytest.mark.parametrize(
    ("detector", "code", "output", "verdict"),
    [
        (PYTEST, 0, "1 passed", Verdict.SURVIVED),
        (PYTEST, 1, "FAILED tests/a.py::t - assert 1 == 2", Verdict.FOUND),
        (PYTEST, 1, "FAILED tests/a.py::t - NameError: name 'x' is not defined", Verdict.INVALID),
        (PYTEST, 2, "ERROR tests/a.py - ImportError", Verdict.INVALID),
        (PYTEST, 5, "no tests ran", Verdict.INVALID),
        (PYTEST, -11, "", Verdict.FOUND),
        (PYTEST, 70, "HANGS tests/a.py::t", Verdict.TIMEOUT),
        (PYTEST, None, "", Verdict.TIMEOUT),
        (Detector(cargo="x"), 0, "running 3 tests\n...", Verdict.SURVIVED),
        (Detector(cargo="x"), 0, "running 0 tests\n", Verdict.INVALID),
        (Detector(cargo="x"), 101, "running 3 tests\n---- a::b stdout ----\n", Verdict.FOUND),
        (Detector(simulate="storm", seeds=1), 1, "FAILED seed 0 of storm - S1", Verdict.FOUND),
        (Detector(simulate="storm", seeds=1), 2, "1 exceptions", Verdict.INVALID),
        (Detector(simulate="storm", seeds=1), 0, "", Verdict.SURVIVED),
    ],
)
def test_what_the_end_of_a_detector_says(detector: Detector, code: int | None, output: str, verdict: Verdict) -> None:
    assert judged(detector, Ended(code, output))[0] is verdict


def test_what_fails_a_run() -> None:
    survived, found, invalid = (Result(each) for each in (Verdict.SURVIVED, Verdict.FOUND, Verdict.INVALID))
    listed = mutant(equivalent="it makes no difference to any reader of the file")
    assert report.failures([(listed, survived), (mutant(), found)]) == []
    assert len(report.failures([(listed, found), (mutant(), survived), (mutant(), invalid)])) == 3
    table = report.table([(listed, survived), (mutant(), found)], 3.0)
    assert "survived, and may: part: a bug: it makes no difference" in table
    assert "2 bugs in 3 s" in table


def test_the_time_of_a_run_is_estimated_from_the_last_one(tmp_path: Path) -> None:
    mutants = [replace(mutant(), name=str(number)) for number in range(4)]
    in_kernel = replace(mutant(file="store/kernel/src/log.rs"), name="kernel")
    times = Times(tmp_path)
    for each in mutants:
        times.note(each, 10.0)
    times.note(in_kernel, 100.0)
    again = Times(tmp_path)
    assert (again.left(mutants, 1), again.left(mutants, 2)) == (40.0, 20.0)
    assert again.left([*mutants, in_kernel], 2) == 100.0, "one folder of compiled code serves all kernel bugs"
    (tmp_path / "seconds.json").write_text("[]")
    assert Times(tmp_path).of(in_kernel) > Times(tmp_path).of(mutants[0]) > 0
    assert [minutes(seconds) for seconds in (40, 180, 3900)] == ["40 s", "3 min", "1 h 5 min"]


@pytest.mark.parametrize(
    ("body", "limit_s", "code"),
    [
        ("assert True", 60.0, 0),
        ("assert False", 60.0, 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 60.0, -9),
        ("import threading; threading.Event().wait()", 0.5, None),
    ],
)
def test_a_run_of_pytest_is_a_fork_that_the_server_survives(
    tmp_path: Path, body: str, limit_s: float, code: int | None
) -> None:
    (tmp_path / "test_bug.py").write_text(f"def test_bug():\n    {body}\n")
    (tmp_path / "test_sound.py").write_text("import os\ndef test_sound():\n    assert os.environ['WORD'] == 'told'\n")
    server = WarmPytest(Path(sys.executable), tmp_path, dict(os.environ) | {"PYTHONPATH": FOLDER})
    output = tmp_path / "output"
    try:
        assert server.run(["-q", "-p", "no:cacheprovider", "test_bug.py"], output, limit_s, {}) == code
        told = {"WORD": "told"}
        assert server.run(["-q", "-p", "no:cacheprovider", "test_sound.py"], output, 60.0, told) == 0
        assert "1 passed" in output.read_text()
    finally:
        server.close()
