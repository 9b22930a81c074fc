"""Security in the manifests of pods: variables, files and annotations."""

from __future__ import annotations

from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import TLS_STAGE
from tallystick.operator.security.spec import SecuritySpec, Stage

TLS_FOLDER, ACCESS_FOLDER = "/etc/tallystick-tls", "/etc/tallystick-access"
ACCOUNTS, CREDENTIALS, SEALING_KEY = "plain_acl.yml", "tools.yml", "acl.key"
"""Keys of the Secret with the accounts, and names of the files."""

_MEMBER_MODES = {
    Stage.ACCEPTING: "permissive",
    Stage.PREFERRING: "preferred",
    Stage.MUTUAL: "enforcing",
    Stage.ENFORCING: "enforcing",
}


def stage_annotation(stage: Stage) -> dict[str, str]:
    """Returns the annotation of a pod; none without TLS."""
    return {} if stage is Stage.OFF else {TLS_STAGE: str(stage.value)}


def access_settings(security: SecuritySpec) -> list[str]:
    """Returns the lines for the section `broker` of the configuration file."""
    if not security.access_control:
        return []
    return [
        "aclEnable = true",
        f'aclFile = "{ACCESS_FOLDER}/{ACCOUNTS}"',
        f'aclCredentialsFile = "{ACCESS_FOLDER}/{CREDENTIALS}"',
        f'aclKeyFile = "{ACCESS_FOLDER}/{SEALING_KEY}"',
    ]


def tls_variables(stage: Stage, security: SecuritySpec) -> dict[str, str]:
    """Returns the variables of TLS of a process. The HTTP port serves both: probes and scrapers use it without TLS."""
    if stage is Stage.OFF:
        return {}
    return {
        "TALLY_TLS_SERVER_MODE": "enforcing" if stage is Stage.ENFORCING else "permissive",
        "TALLY_TLS_SERVER_CERTPATH": f"{TLS_FOLDER}/tls.crt",
        "TALLY_TLS_SERVER_KEYPATH": f"{TLS_FOLDER}/tls.key",
        "TALLY_TLS_CLIENT_TRUSTCERTPATH": f"{TLS_FOLDER}/ca.crt",
        "TALLY_TLS_ENABLE": str(stage >= Stage.PREFERRING).lower(),
        "TALLY_HTTP_TLSMODE": "permissive",
    }


def member_variables(stage: Stage, *, own_files: bool) -> dict[str, str]:
    """Returns the variables of TLS between members. `own_files`: each member has its own certificate, so that
    members check who the other one is."""
    if stage is Stage.OFF:
        return {}
    found = {
        "TALLY_GROUPTLSCA": f"{TLS_FOLDER}/ca.crt",
        "TALLY_GROUPTLSCERTIFICATE": f"{TLS_FOLDER}/tls.crt",
        "TALLY_GROUPTLSKEY": f"{TLS_FOLDER}/tls.key",
        "TALLY_GROUPTLSMODE": _MEMBER_MODES[stage],
    }
    return found | ({"TALLY_GROUPTLSPEERNAME": "n{member}.{group}"} if own_files else {})


def add_files(
    container: Json, volumes: list[Json], security: SecuritySpec, stage: Stage, tls_secret: str, access_secret: str
) -> None:
    """Adds the Secrets that a process needs to its pod. Only its user can read the files."""
    wanted = []
    if security.access_control:
        wanted.append(("access", access_secret, ACCESS_FOLDER))
    if stage is not Stage.OFF:
        wanted.append(("tls", tls_secret, TLS_FOLDER))
    for name, secret, folder in wanted:
        container["volumeMounts"].append({"name": name, "mountPath": folder, "readOnly": True})
        volumes.append({"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}})
