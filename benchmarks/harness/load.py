"""The load generator as a process: built by cargo, run with options, answering with one JSON object."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import access
from harness.children import ChildError, run, running

CRATE = Path(__file__).resolve().parent.parent / "loadgen"
BINARY = CRATE / "target" / "release" / "loadgen"


def build() -> Path:
    """The generator, compiled if its sources have changed. ChildError: it does not compile, or there is no cargo."""
    command = ["cargo", "build", "--release", "--quiet", "--locked", "--manifest-path", str(CRATE / "Cargo.toml")]
    try:
        run(command, timeout_s=600)
    except FileNotFoundError as error:
        raise ChildError("cargo is needed to build the load generator") from error
    return BINARY


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a run of the generator. Rate and latencies are of its measured part, the rest of the whole run."""

    rate: float
    latency_us: Mapping[str, float]
    total_messages: int
    """Acknowledged with code 0, or pulled."""
    sent: int
    unanswered: int
    codes: Mapping[str, int]
    remarks: Mapping[str, str]
    errors: tuple[str, ...]
    cpu_share: float
    """Cores that the generator used on average; it has one thread, so near 1 it was the limit and not the broker."""

    @property
    def refused(self) -> int:
        """Answers with a code other than 0."""
        return sum(count for code, count in self.codes.items() if code != "0")

    @classmethod
    def parse(cls, text: str) -> "LoadResult":
        """Parses the object that the generator prints. ChildError: it is not such an object."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(
                rate=float(fields["rate"]),
                latency_us={name: float(value) for name, value in fields["latency_us"].items()},
                total_messages=int(fields["total_messages"]),
                sent=int(fields["sent"]),
                unanswered=int(fields["unanswered"]),
                codes={code: int(count) for code, count in fields["codes"].items()},
                remarks=dict(fields["remarks"]),
                errors=tuple(fields["errors"]),
                cpu_share=float(fields["cpu_share"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ChildError(f"the load generator printed {text!r}") from error


@dataclass(frozen=True, slots=True)
class Load:
    """Options of one run of the generator; see `loadgen --help`."""

    mode: str
    topic: str
    connections: int = 1
    outstanding: int = 1
    size: int = 1024
    queues: int = 8
    seconds: float = 3.0
    warmup: float = 1.0
    count: int | None = None
    every: float | None = None
    signs: bool = False
    tls: bool = False

    def command(self, host: str, port: int) -> list[str]:
        """The command line against this broker."""
        options: dict[str, object] = {
            "address": f"{host}:{port}",
            "topic": self.topic,
            "connections": self.connections,
            "outstanding": self.outstanding,
            "queues": self.queues,
            "seconds": self.seconds,
            "warmup": self.warmup,
        }
        if self.signs:
            options |= {"access-key": access.ACCESS_KEY, "secret-key": access.SECRET_KEY}
        if self.mode == "produce":
            options["size"] = self.size
        if self.count is not None:
            options["count"] = self.count
        if self.tls:
            options["tls"] = "yes"
        if self.every is not None:
            options["every"] = self.every
        return [
            str(BINARY),
            self.mode,
            *(text for name, value in options.items() for text in (f"--{name}", str(value))),
        ]

    def run(self, host: str, port: int) -> LoadResult:
        """Runs it to its end. ChildError: it could not connect or printed nothing; lost connections are in `errors`."""
        with running(self.command(host, port)) as process:
            return result_of(
                process, self.seconds + self.warmup + 90 if self.count is None else 600 + self.count / 1000
            )


def result_of(process: subprocess.Popen[str], timeout_s: float) -> LoadResult:
    """Waits for a generator's end. ChildError: not in time, or nothing printed."""
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"the load generator did not end within {timeout_s:g} s") from error
    if not output.strip():
        raise ChildError(f"the load generator: {errors.strip()}")
    return LoadResult.parse(output)
