"""`make sbom`: what the wheel and the images are made of, as CycloneDX 1.6 in dist/sbom.

    tallystick.cdx.json       the wheel: the crates of its kernel
    node.cdx.json, ...        an image: the same, and the Python packages of its requirements file

The crates are those of Cargo.lock, with the checksums that cargo verifies. The Python packages come from cyclonedx-bom,
with the hashes that pip verifies. Without cyclonedx-bom only the first file is made, and the exit status is 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "store" / "kernel" / "Cargo.lock"
IMAGES = ("node", "operator", "jobs")
_REGISTRY = "registry+"


def crates(lock: Path = LOCK) -> list[dict[str, Any]]:
    """The components of a Cargo.lock, without the crate of this repository."""
    found = []
    for package in tomllib.loads(lock.read_text())["package"]:
        if not package.get("source", "").startswith(_REGISTRY):
            continue  # the kernel itself
        name, version = package["name"], package["version"]
        purl = f"pkg:cargo/{name}@{version}"
        hashes = [{"alg": "SHA-256", "content": package["checksum"]}]
        found.append(
            {"type": "library", "name": name, "version": version, "bom-ref": purl, "purl": purl, "hashes": hashes}
        )
    return found


def wheel_sbom() -> dict[str, Any]:
    """The document of the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    component = {
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"id": project["license"]}}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component},
        "components": crates(),
    }


def image_sbom(image: str, program: str) -> dict[str, Any]:
    """The document of an image. OSError, CalledProcessError: cyclonedx-bom (`program`) did not run."""
    command = [program, "requirements", str(ROOT / "requirements" / f"{image}.txt"), "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--spec-version", "1.6", "--output-format", "JSON"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    found["components"] = [*found.get("components", []), *crates()]
    return found


def main(program: str) -> int:
    folder = ROOT / "dist" / "sbom"
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"tallystick": wheel_sbom()}
    status = 0
    try:
        documents |= {image: image_sbom(image, program) for image in IMAGES}
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no documents of the images: {error}", file=sys.stderr)
        status = 1
    for name, document in documents.items():
        path = folder / f"{name}.cdx.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{path}: {len(document['components'])} components")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cyclonedx-py"))
