"""The progress of a run: `GET /progress`, for the operator, and for workers that wait for the driver.

    {"step": "reading", "done": 3, "of": 8, "executors": 3, "executorsWanted": 3, "seconds": 12.3}

The driver accepts executors from the step after `starting` on. `POST /reads` takes the reports of tasks (`reads.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tallystick.spark.job_stores import SIGNATURE

STARTING, WAITING, PLANNING = "starting", "waiting for executors", "planning"
READING, RUNNING, WRITING, FINISHED = "reading", "running the program", "writing", "finished"
READS_PATH = "/reads"
_MOST_BODY_BYTES = 4096


class Progress:
    """The progress of one run, for any thread. `completed`: returns how many tasks of Spark's running stages are
    done."""

    def __init__(self, executors_wanted: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin_s = clock()
        self._lock = threading.Lock()
        self._step, self._done, self._of = STARTING, 0, 0
        self._steps: list[tuple[str, float]] = [(STARTING, 0.0)]
        self.executors = 0
        self.executors_wanted = executors_wanted
        self.completed: Callable[[], int] = lambda: 0

    @property
    def seconds(self) -> float:
        return round(self._clock() - self._begin_s, 1)

    @property
    def steps(self) -> list[tuple[str, float]]:
        """Returns when each step began, in seconds from the first."""
        return list(self._steps)

    def step(self, name: str, of: int = 0) -> None:
        with self._lock:
            self._step, self._done, self._of = name, 0, of
            self._steps.append((name, self.seconds))

    def advance(self) -> None:
        """Counts one more finished item of the step."""
        with self._lock:
            self._done += 1

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            step, done, of = self._step, self._done, self._of
        return {
            "step": step,
            "done": min(of, max(done, self.completed())) if done < of else of,
            "of": of,
            "executors": self.executors,
            "executorsWanted": self.executors_wanted,
            "seconds": self.seconds,
        }


@contextmanager
def served(progress: Progress, port: int, reads: Callable[[bytes, str], bool] | None = None) -> Iterator[int]:
    """Serves it on all addresses within this context, and yields the port (0: any free one). OSError: it is in use.

    `reads`: takes a report and its signature; False: it is not valid.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a silent connection is closed

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] == "/progress"
            self._answer(200 if known else 404, progress.to_json() if known else {"error": "there is /progress"})

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if reads is None or self.path != READS_PATH or not length.isdecimal() or int(length) > _MOST_BODY_BYTES:
                return self._answer(404, {"error": "nothing takes this"})
            taken = reads(self.rfile.read(int(length)), self.headers.get(SIGNATURE, ""))
            self._answer(200 if taken else 403, {"taken": taken})

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # the operator asks every few seconds

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="progress", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
