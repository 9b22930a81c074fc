"""An S3-compatible store as a separate process on a free port, with one bucket for each test that needs one."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from tallystick.spark.outputs_s3 import S3Output

_PYTHON = Path(__file__).parents[2] / ".venv" / "s3-server" / "bin" / "python"  # make .venv/s3-server
_SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
import sys
sys.stdin.read()
"""


class S3Lab:
    """A context manager; skips a test where there is no such server, unless everything has to be tested.

    The environment has credentials, of no worth, while it is open.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        if not _PYTHON.exists() and "CI" not in os.environ:
            pytest.skip("needs `make .venv/s3-server`")
        for name, value in (("AWS_ACCESS_KEY_ID", "AKIDTALLY"), ("AWS_SECRET_ACCESS_KEY", "not-for-anybodys-eyes")):
            self._before[name] = os.environ.get(name)
            os.environ[name] = value
        self._process = subprocess.Popen(
            [str(_PYTHON), "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

    def make_bucket(self) -> str:
        """Its name."""
        name = f"bucket-{next(self._numbers)}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            return name

    def output(self) -> S3Output:
        """An empty one, below a prefix of a new bucket."""
        return S3Output(f"s3://{self.make_bucket()}/some/prefix", self.endpoint)
