"""`python -m fuzz TARGET`: runs one target with inputs that reach new code, or all targets in turn.

    make fuzz TARGET=headers SECONDS=1800

It starts from the corpus of the target, and adds what reaches new code to `build/fuzz/TARGET`. An input that fails is
kept in `build/fuzz/TARGET-crash-...`. `--merge` puts a minimal corpus of both into `tests/fuzz/corpus/TARGET`.

Source: atheris, which runs libFuzzer with the coverage of Python code. The kernel's code is not measured.
Exit status: 0 no input failed, 1 one failed, 2 the run cannot start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "fuzz"
_LONGEST = 4096  # bytes of an input
_STEP_S = 20
"""An input that takes longer fails, in seconds of the clock: a machine with other load needs a larger value."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("target", nargs="?", default="", help="a name of tests/fuzz/targets.py; all of them without it")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--step", type=int, default=_STEP_S, help="seconds after which an input fails (%(default)s)")
    parser.add_argument("--merge", action="store_true", help="write the corpus of the repository")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    try:
        import atheris
    except ImportError:
        print("fuzzing needs atheris: make fuzz installs it", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["tallystick", "yaml", "aiohttp", "fuzz"]):
        from fuzz.targets import CORPUS, TARGETS
    if options.inside:
        target = TARGETS[options.target]
        atheris.Setup([sys.argv[0], *rest], lambda data: target(bytes(data)))
        atheris.Fuzz()
        return 0
    names = [options.target] if options.target else sorted(TARGETS)
    if unknown := set(names) - TARGETS.keys():
        print(f"no target {unknown.pop()!r}; there are {', '.join(sorted(TARGETS))}", file=sys.stderr)
        return 2
    return max(_run(name, CORPUS / name, options) for name in names)


def _run(name: str, corpus: Path, options: argparse.Namespace) -> int:
    """One target in a separate process: libFuzzer ends the process at a failure."""
    found = WORK / name
    found.mkdir(parents=True, exist_ok=True)
    corpus.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fuzz", name, "--inside", f"-max_len={_LONGEST}"]
    if options.merge:
        command += ["-merge=1", str(corpus), str(found)]
    else:
        command += [f"-max_total_time={options.seconds}", f"-timeout={options.step}", "-print_final_stats=1"]
        command += [f"-artifact_prefix={WORK}/{name}-", str(found), str(corpus)]
    log = WORK / f"{name}.log"
    with log.open("w") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
    lines = log.read_text(errors="replace").splitlines()
    executed = next((line.rpartition(":")[2].strip() for line in lines if "number_of_executed_units" in line), "?")
    print(f"{name}: {'no failure' if ended.returncode == 0 else f'FAILED, see {log}'}, {executed} inputs", flush=True)
    return 1 if ended.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
