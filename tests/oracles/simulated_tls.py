"""TLS of simulated pods: the files that kubelets bring into them, each in its own time, and who trusts whom."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterable
from typing import Any

from tallystick.operator.security.certificates import CertificateError, facts_of, fingerprints, is_issued_by

Json = dict[str, Any]

MODES = {"permissive": (True, False), "preferred": (True, True), "enforcing": (False, True)}
"""By mode of members: whether it accepts connections without TLS, and whether it connects with TLS."""


class Files:
    """What each pod has of its Secret of TLS. `secret(name)`: the content of a Secret now; None: it does not exist."""

    def __init__(self, dice: random.Random, secret: Callable[[str], Json | None]) -> None:
        self._dice, self._secret = dice, secret
        self._mounted: dict[str, dict[str, bytes]] = {}
        self._known: dict[tuple[bytes, bytes], bool] = {}
        self.slow: set[str] = set()
        """Names of pods that get no new files."""

    def tick(self, pods: Iterable[Json]) -> None:
        """Kubelets bring changed Secrets into some of the pods that have files, and into pods that begin to run."""
        present = list(pods)
        for pod in present:
            name = mounted_secret(pod)
            late = pod["metadata"]["uid"] in self._mounted and self._dice.random() > 0.3
            if not name or late or pod["metadata"]["name"] in self.slow:
                continue
            body = self._secret(name)
            if body is not None:
                files = {key: base64.b64decode(value) for key, value in body["data"].items()}
                self._mounted[pod["metadata"]["uid"]] = files
        uids = {pod["metadata"]["uid"] for pod in present}
        self._mounted = {uid: files for uid, files in self._mounted.items() if uid in uids}

    def has(self, pod: Json) -> bool:
        """Whether a pod has all files that it mounts: a kubelet does not start it before."""
        return not mounted_secret(pod) or pod["metadata"]["uid"] in self._mounted

    def report(self, pod: Json | None) -> Json:
        """The field `tls` of GET /node."""
        files = None if pod is None else self._mounted.get(pod["metadata"]["uid"])
        if pod is None or files is None:
            return {"mode": "permissive", "server": None, "client": None}
        facts, authorities = facts_of(files["tls.crt"]), sorted(fingerprints(files["ca.crt"]))
        one = {"sha256": facts.sha256, "expires": int(facts.ends), "problem": ""}
        told = variables(pod)
        found: Json = {"mode": told["TALLY_TLS_SERVER_MODE"], "server": {**one, "authorities": []}, "client": None}
        if told["TALLY_TLS_ENABLE"] == "true":
            found["client"] = {"sha256": None, "authorities": authorities, "problem": ""}
        if "TALLY_GROUPTLSMODE" in told:
            found |= {"memberMode": told["TALLY_GROUPTLSMODE"], "member": {**one, "authorities": authorities}}
        return found

    def judge(self, pods: Iterable[Json]) -> None:
        """AssertionError: two processes that run do not understand each other."""
        running = [pod for pod in pods if pod["metadata"]["uid"] in self._mounted or not mounted_secret(pod)]
        members = [pod for pod in running if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "broker"]
        for one in members:
            for other in running:
                if one is other:
                    continue
                if other in members and same_group(one, other):
                    self._judge_members(one, other)
                if variables(one).get("TALLY_TLS_ENABLE") == "true":
                    assert mounted_secret(other), f"{name(one)} uses TLS to {name(other)}, which has no certificate"
                    self._must_trust(one, other)
                else:
                    assert variables(other).get("TALLY_TLS_SERVER_MODE") != "enforcing", f"{name(one)}, {name(other)}"

    def _judge_members(self, one: Json, other: Json) -> None:
        mine, theirs = (variables(pod).get("TALLY_GROUPTLSMODE", "") for pod in (one, other))
        connects, accepts_plain = MODES.get(mine, (True, False))[1], MODES.get(theirs, (True, False))[0]
        assert accepts_plain or connects, f"{name(one)} connects without TLS to {name(other)}"
        assert theirs or not connects, f"{name(one)} connects with TLS to {name(other)}, which does not know it"
        if connects:
            self._must_trust(one, other)
            self._must_trust(other, one)

    def _must_trust(self, one: Json, other: Json) -> None:
        mine, theirs = self._mounted[one["metadata"]["uid"]], self._mounted[other["metadata"]["uid"]]
        trusted, certificate = mine["ca.crt"], theirs["tls.crt"]
        if (trusted, certificate) not in self._known:
            self._known[trusted, certificate] = any(is_issued_by(certificate, each) for each in split(trusted))
        assert self._known[trusted, certificate], f"{name(one)} does not trust the certificate of {name(other)}"


def split(pem: bytes) -> list[bytes]:
    """The certificates of a text, one by one."""
    end = b"-----END CERTIFICATE-----\n"
    found = [part + end for part in pem.split(end) if part.strip()]
    if not found:
        raise CertificateError("no certificate")
    return found


def name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def same_group(one: Json, other: Json) -> bool:
    return bool(
        one["metadata"]["labels"]["tallystick.dev/group"] == other["metadata"]["labels"]["tallystick.dev/group"]
    )


def variables(pod: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def mounted_secret(pod: Json) -> str:
    for each in pod["spec"].get("volumes") or ():
        if each["name"] == "tls":
            return str(each["secret"]["secretName"])
    return ""
