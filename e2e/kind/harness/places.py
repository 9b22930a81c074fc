"""Where things are, and what the environment decides.

E2E_CLUSTER  name of the kind cluster (tallystick-e2e); one that exists is used as it is
E2E_KEEP     1: the cluster stays afterwards; one that was there before stays anyhow
E2E_TAG      images of this tag are taken as they are, instead of building
KIND_NODE_IMAGE  image of kind's nodes (kind's own default)
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
KIND = ROOT / "e2e" / "kind"
CHART = ROOT / "charts" / "tallystick"
WORK = ROOT / "build" / "e2e-kind"
KUBECONFIG = WORK / "kubeconfig"

CLUSTER = os.environ.get("E2E_CLUSTER", "tallystick-e2e")
KEEP = os.environ.get("E2E_KEEP", "") not in ("", "0")
TAG = os.environ.get("E2E_TAG", "")
NODE_IMAGE = os.environ.get("KIND_NODE_IMAGE", "")
