"""`make peer`: runs RocketMQ's own Java client against our broker, step by step.

    python e2e/peer_suite.py                              the 4.8.0 client, all 35 steps: one to two minutes
    python e2e/peer_suite.py --version 5.x                the newest 5 client that the lab knows
    python e2e/peer_suite.py --version 5.x --compare      and the same client against real RocketMQ 4.8.0
    python e2e/peer_suite.py --only delay --again 3       one step, and three more times if it fails
    python e2e/peer_suite.py --group                      a group of three members instead of one broker
    python e2e/peer_suite.py --group --move 10            and its leader changes every 10 s
    python e2e/peer_suite.py --tls                        with TLS, which the client verifies and the servers require
    python e2e/peer_suite.py --acl                        with access control: the client signs each request

A step that failed only because of a race within the step, which also occurs with RocketMQ, is repeated alone a few
times.

With --compare every step that passes against RocketMQ 4.8.0 must pass against our broker. A step that failed on one
side is repeated alone `--again` times on both; the table shows how often it passed.

With --group the script also checks how a Java producer handles the loss of its leader, once with the client's defaults
and once with a route update every second. First leadership is transferred, 5 times as often as --kills says: no send
may fail. Then the leader is killed with -9 and restarted at once, --kills times: both producers must have an
acknowledged send within 15 s, most of which is the start of the process. Then the leader is killed and not restarted:
the producer with the route update has 5 s; the other one depends on its route update every 30 s.

Exit status: 0 all steps passed, 1 a step failed (with --compare: a step that passes against RocketMQ), 2 the test could
not run. Progress goes to standard error, the table to standard output; after a failure the logs stay in build/e2e.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.group import Group, Mover
from lab.peer import SERVER_VERSION, Peer, PeerMissingError, Step
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.send_again import DEFAULTS, HandedOver, measure_send_again, measure_transfers, producing
from lab.signing import Accounts
from lab.tally import EARLY_CHECKS, Tally
from lab.tls import Certificates, OpensslMissingError

OURS, THEIRS = "tallystick", f"RocketMQ {SERVER_VERSION}"
RUN_PRESETS = ("enablePropertyFilter=true",)  # what `tally run` sets by itself and a step needs
_SEND_AGAIN_S = 5.0
_RESTARTED_S = 15.0  # mostly the start of a process, on a machine that has much else to do
_TRANSFERS_A_KILL = 5
_WHOLE_S = 60.0
_RACES = {"admin-connections": ("queues in the running info",)}
"""Failures of steps that ask before the client can have the answer: a consumer that has just sent its first heartbeat
may have no queues yet. They come with real RocketMQ as well (1 of 6 on a busy machine)."""
_RACES_RUN = 3


class Side:
    """One broker's results: the first run, and how often each step passed of how many tries."""

    def __init__(self, name: str, nameserver: str, client: Peer) -> None:
        self.name, self._nameserver, self._client = name, nameserver, client
        self.first: dict[str, Step] = {}
        self.tries: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()

    def run(self, *, only: str, skip: str, verbose: bool) -> None:
        """Runs the suite and counts."""
        for step in self._client.suite(self._nameserver, only=only, skip=skip, on_line=self._show(verbose)):
            self.first.setdefault(step.name, step)
            self.tries[step.name] += 1
            self.passes[step.name] += step.ok

    def run_races_again(self) -> None:
        """A step that failed by nothing but its own race has to pass alone, at one of a few tries."""
        for name, failures in _RACES.items():
            for _ in range(_RACES_RUN):
                if name in self.first and self.first[name].failures == failures:
                    del self.first[name]
                    self.run(only=name, skip="", verbose=True)

    def _show(self, verbose: bool) -> Callable[[str], None]:
        def show(line: str) -> None:
            words = line.split()
            if verbose and len(words) > 2 and words[1] in ("ok", "FAILED"):
                print(f"{self.name:15} {line.rstrip()}", file=sys.stderr, flush=True)

        return show

    def text(self, step: str) -> str:
        """A cell of the table."""
        first = self.first.get(step)
        if first is None:
            return "not run"
        if self.tries[step] == 1:
            return f"{'ok' if first.ok else 'FAILED'} {first.ms:6} ms"
        return f"{self.passes[step]} of {self.tries[step]} ok"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--version", default=os.environ.get("PEER_VERSION") or SERVER_VERSION, help="version of the client"
    )
    parser.add_argument("--compare", action="store_true", help=f"also run it against {THEIRS}")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    parser.add_argument("--skip", default="", help="names of steps, separated by commas")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="times to repeat each failed step alone (0)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of our broker")
    parser.add_argument("--tls", action="store_true", help="our servers accept only TLS, and the client verifies them")
    parser.add_argument("--acl", action="store_true", help="our servers have access control, and the client signs")
    parser.add_argument("--group", action="store_true", help="three members instead of one broker")
    parser.add_argument(
        "--move", type=float, default=0.0, metavar="S", help="with --group: seconds between two transfers of leadership"
    )
    parser.add_argument(
        "--kills", type=int, default=3, help="with --group: number of times to kill the leader of a Java producer (3)"
    )
    options = parser.parse_args(arguments)
    if (options.tls or options.acl) and options.compare:
        parser.error("--tls and --acl: not with --compare")
    if options.move and not options.group:
        parser.error("--move: only with --group")
    return options


def table(sides: list[Side]) -> str:
    """Steps and results, one line each, and the reasons of failures below."""
    names = list(dict.fromkeys(name for side in sides for name in side.first))
    rows = [["step", *(side.name for side in sides)]]
    rows += [[name, *(side.text(name) for side in sides)] for name in names]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for side in sides:
        for step in side.first.values():
            lines += [f"{side.name}, {step.name}: {failure}" for failure in step.failures]
    return "\n".join(lines)


def verdict(ours: Side, theirs: Side | None) -> tuple[int, str]:
    """Exit status and the last line."""
    failed = [name for name, step in ours.first.items() if not step.ok]
    passed = f"{len(ours.first) - len(failed)} of {len(ours.first)} steps passed"
    if theirs is None:
        return (1, f"{passed}; FAILED: {', '.join(failed)}") if failed else (0, passed)
    blamed = [name for name in failed if name in theirs.first and theirs.first[name].ok]
    shared = [name for name in failed if name not in blamed]
    better = [name for name, step in theirs.first.items() if not step.ok and name not in failed]
    text = passed
    if shared:
        text += f"; failed on both: {', '.join(shared)}"
    if better:
        text += f"; failed only with {THEIRS}: {', '.join(better)}"
    return (1, f"{text}; FAILED only here: {', '.join(blamed)}") if blamed else (0, text)


def measure(options: argparse.Namespace, work: Path) -> int:
    """Both sides one after the other (never at the same time: the suite looks at delays), then the table."""
    certificates = Certificates(work / "certificates") if options.tls else None
    accounts = Accounts(work / "accounts") if options.acl else None
    secured = [each.server_settings() for each in (certificates, accounts) if each is not None]
    settings = (*EARLY_CHECKS, *options.set, *itertools.chain.from_iterable(secured))
    tally = Group(work / "group", (*RUN_PRESETS, *settings)) if options.group else Tally(work / "tally", settings)
    client = Peer(work / "client", options.version)
    signing = "" if accounts is None else accounts.java_options(client)
    verifying = "" if certificates is None else certificates.java_options()
    client.environment["PEER_JAVA_OPTS"] = client.java_options = f"{verifying} {signing}".strip()
    server = Peer(work / "server") if options.compare else None
    ours = Side(OURS, tally.nameserver, client)
    theirs = None if server is None else Side(THEIRS, server.nameserver, client)
    ups: list[tuple[Side, Callable[[], object], Callable[[], None]]] = [(ours, tally.start, tally.stop)]
    if server is not None and theirs is not None:
        ups.append((theirs, lambda: server.up(EARLY_CHECKS), server.down))
    losses = Losses()
    try:
        for side, start, stop in ups:
            start()
            with moving(tally if side is ours else None, options.move):
                side.run(only=options.only, skip=options.skip, verbose=True)
                side.run_races_again()
            if isinstance(tally, Group) and side is ours and options.kills:
                losses = Losses.measure(client, tally, options.kills)
                tally.wait(tally.is_whole, _WHOLE_S, "the group is complete")
            stop()
        again = sorted({name for side, _, _ in ups for name, step in side.first.items() if not step.ok})
        for side, start, stop in ups if again and options.again else ():
            start()
            for _ in range(options.again):
                side.run(only=",".join(again), skip="", verbose=True)
            stop()
    finally:
        tally.kill()
        if server is not None:
            server.down()
    print(f"client {options.version}")
    print(table([side for side, _, _ in ups]))
    status, line = verdict(ours, theirs)
    print("\n".join(losses.lines()))
    amiss = losses.amiss()
    print("; ".join([line, *amiss]))
    return 1 if amiss else status


@dataclass(frozen=True, slots=True)
class Losses:
    """What Java producers saw of leaders that went; by the producer's name, seconds to the next acknowledged send."""

    handed_over: dict[str, HandedOver] = field(default_factory=dict)
    restarted_s: dict[str, list[float]] = field(default_factory=dict)
    away_s: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def measure(cls, client: Peer, group: Group, times: int) -> Losses:
        with producing(client, group) as producers:
            return cls(
                measure_transfers(producers, group, _TRANSFERS_A_KILL * times),
                measure_send_again(producers, group, times, away=False),
                measure_send_again(producers, group, times, away=True),
            )

    def lines(self) -> list[str]:
        """For people."""
        lines = []
        for name, seen in self.handed_over.items():
            told = f"{seen.sends} sends, {len(seen.failed)} failed, the longest took {seen.longest_ms} ms"
            lines.append(f"while leadership was handed over, a Java producer with {name}: {told}")
            lines += [f"    {reason}" for reason in dict.fromkeys(seen.failed)]
        for what, found in (("and its restart", self.restarted_s), ("that stays away", self.away_s)):
            for name, times in found.items():
                told = f"a Java producer with {name} sent again after {_seconds(times)} s"
                lines.append(f"after kill -9 of the leader {what}, {told}")
        return lines

    def amiss(self) -> list[str]:
        """What should not be."""
        found = [f"sends FAILED with {name} in transfers" for name, seen in self.handed_over.items() if seen.failed]
        for name, times in self.restarted_s.items():
            if max(times) >= _RESTARTED_S:
                found.append(f"TOO SLOW: sends after a restart with {name}")
        for name, times in self.away_s.items():
            if max(times) >= _SEND_AGAIN_S and name != DEFAULTS:
                found.append(f"TOO SLOW: sends after a kill with {name}")
        return found


@contextmanager
def moving(group: Group | Tally | None, every_s: float) -> Iterator[None]:
    """Leadership moves meanwhile, if that is wanted; tells how often it did."""
    if not every_s or not isinstance(group, Group):
        yield
        return
    with Mover(group, every_s) as mover:
        yield
    print(f"leadership moved {mover.moves} times; failures: {mover.failures or 'none'}")


def _seconds(times: list[float]) -> str:
    return ", ".join(f"{time:.2f}" for time in times)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    end_on_signals()
    with work_folder("peer-") as work:
        try:
            work.status = measure(options, work.path)
        except (PeerMissingError, OpensslMissingError) as error:
            print(f"cannot run: {error}", file=sys.stderr)
        except ProcessError as error:
            print(f"could not be tried: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
