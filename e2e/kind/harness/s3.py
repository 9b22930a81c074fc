"""An S3-compatible store on this machine that pods reach: moto's server (`make .venv/s3-server`)."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.api import Json
from harness.places import ROOT
from harness.shell import run

_PYTHON = ROOT / ".venv" / "s3-server" / "bin" / "python"
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
BUCKET = "e2e-backups"
CREDENTIALS: Json = {"AWS_ACCESS_KEY_ID": "AKIDTALLY", "AWS_SECRET_ACCESS_KEY": "worth-nothing"}


@contextmanager
def s3_store() -> Iterator[str]:
    """Its endpoint, with one empty bucket. It listens on the address that Docker's network has on this machine."""
    if not _PYTHON.exists():
        pytest.skip("needs `make .venv/s3-server`")
    template = "{{range .IPAM.Config}}{{.Gateway}} {{end}}"
    gateways = run("docker", "network", "inspect", "kind", "--format", template).split()
    host = next(each for each in gateways if ":" not in each)
    process = subprocess.Popen(
        [str(_PYTHON), "-c", _SERVER, host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        endpoint = f"http://{host}:{int(process.stdout.readline())}"
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=30):
            yield endpoint
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
