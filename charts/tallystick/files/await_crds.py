"""Waits until the API server serves the custom resources: a hook of the chart. Exit status 1 after four minutes."""

import json
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WANTED = {"brokerclusters", "topics"}


def served() -> set[str]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    if ":" in host:
        host = f"[{host}]"
    request = urllib.request.Request(f"https://{host}:{port}/apis/tallystick.dev/v1beta1")
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
        return {resource["name"] for resource in json.load(answer)["resources"]}


until = time.monotonic() + 240
while time.monotonic() < until:
    try:
        if served() >= WANTED:
            sys.exit(0)
    except OSError as error:  # 404 until the API server serves the first definition
        print(error, flush=True)
    time.sleep(1)
sys.exit(f"the API server does not serve {', '.join(sorted(WANTED))}")
