"""The commands of `tally` on the admin core, against a running broker, as a user at a terminal runs them."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tally_process import TallyProcess
from tally_shell import Shell, topic_of

from tallystick.admin.models import Problem
from tallystick.node.commands.output import report_problems
from tallystick.node.commands.report import without_secrets

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    with TallyProcess(tmp_path_factory.mktemp("tally")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


@pytest.fixture
def shell(
    process: TallyProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    monkeypatch.setenv("TALLY_NAMESERVER", process.nameserver)
    monkeypatch.setenv("TALLY_CONTEXTS", str(tmp_path / "config" / "contexts.toml"))
    for name in ("TALLY_CONTEXT", "TALLY_CREDENTIALS", "TALLY_CA"):
        monkeypatch.delenv(name, raising=False)
    return Shell(capsys)


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its heads."""
    return [line.split() for line in text.splitlines()[1:]]


@pytest.mark.parametrize("command", [["cluster", "list"], ["broker", "list"]])
def test_brokers_are_listed(process: TallyProcess, shell: Shell, command: list[str]) -> None:
    (row,) = cells(shell(*command))
    assert row[:5] == ["DefaultCluster", "broker-a", "0", process.places["broker"], "master"] and row[-1] == "ready"


def test_the_same_answer_comes_as_json_and_as_yaml(shell: Shell) -> None:
    as_json = json.loads(shell("broker", "list", "--output", "json"))
    as_yaml = yaml.safe_load(shell("broker", "list", "-o", "yaml"))
    assert [each["address"] for each in as_json] == [each["address"] for each in as_yaml]
    assert as_json[0]["node"]["kind"] == "broker", "the process describes itself"


def test_a_broker_is_shown_and_an_unknown_one_is_not(process: TallyProcess, shell: Shell) -> None:
    assert "commitLogDiskRatio" in shell("broker", "show", process.places["broker"])
    assert shell("broker", "show", "127.0.0.1:1", code=1) == ""
    assert "no broker has the address 127.0.0.1:1" in shell.err and shell.err.count("\n") == 1


def test_a_dry_run_creates_no_topic(shell: Shell, topic: str) -> None:
    assert cells(shell("topic", "create", topic, "--dry-run"))[0][-1] == "planned"
    assert topic not in shell("topic", "list")
    shell("topic", "create", topic)
    assert topic in shell("topic", "list") and "TBW102" not in shell("topic", "list")
    assert "TBW102" in shell("topic", "list", "--system")
    assert cells(shell("topic", "list", "--search", topic[:20].upper()))[0][0] == topic
    assert cells(shell("topic", "delete", topic, "--dry-run"))[0][-1] == "planned"
    assert json.loads(shell("topic", "show", topic, "-o", "json"))["topic"]["name"] == topic
    shell("topic", "delete", topic)


def test_a_group_its_lag_and_its_offsets(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("produce", topic, "a", "b", "c")
    shell("consumer", "create", "readers", "--max-retries", "3")
    shell("consume", topic, "--once", "--commit", "--group", "readers")
    rows = {row[0]: row for row in cells(shell("consumer", "list"))}
    assert rows["readers"][1:4] == ["offline", "0", "0"]
    planned = json.loads(shell("offset", "reset", "readers", topic, "--shift", "-2", "--dry-run", "-o", "json"))
    assert [(step["before"], step["after"], step["state"]) for step in planned["steps"]] == [(3, 1, "planned")]
    shell("offset", "reset", "readers", topic, "--shift", "-2", "--yes")
    detail = json.loads(shell("consumer", "show", "readers", "-o", "json"))
    assert [each["lag"] for each in detail["queues"] if each["topic"] == topic] == [2]
    assert detail["group"]["configs"]["broker-a"]["maxRetries"] == 3
    shell("offset", "clone", "readers", "others", topic)
    assert cells(shell("consumer", "show", "readers"))[0][0] == "readers"
    shell("consumer", "delete", "readers", "--dry-run")
    shell("consumer", "delete", "readers")
    shell("consumer", "show", "readers", code=1)
    assert "no broker has the group readers" in shell.err and shell.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("offset", "reset", "g", "T", "--time", "yesterday"), "'yesterday' is not a time"),
        (("offset", "reset", "g", "T", "--latest", "--queue", "0"), "'0' is not a queue"),
        (("dlq", "resend", "g"), "either ids of messages or --all"),
        (("config", "show", "noSuchSetting"), "no broker has the setting noSuchSetting"),
        (("config", "set", "nowhere", "a=b"), "no broker or cluster nowhere"),
        (("message", "show", "abc"), "a message id has 32 or 56 hex digits"),
        (("message", "search", "T", "--cursor", "?"), "not a cursor"),
        (("topic", "list", "--context", "nothing"), "there is no context nothing"),
    ],
)
def test_wrong_arguments_are_one_line(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    shell("topic", "create", "T")
    assert shell(*arguments, code=2) == ""
    assert says in shell.err and shell.err.startswith("tally: ") and shell.err.count("\n") == 1


def test_messages_are_searched_and_shown(shell: Shell, topic: str) -> None:
    shell("produce", topic, "hello", "--tag", "new", "--key", "order-1")
    (found,) = json.loads(shell("message", "search", topic, "--key", "order-1", "-o", "json"))
    page = json.loads(shell("message", "search", topic, "-o", "json"))
    assert [each["id"] for each in page["items"]] == [found["id"]]
    assert cells(shell("message", "search", topic, "--unique-key", found["uniqueKey"]))[0][0] == found["id"]
    for arguments in ((found["id"],), (found["uniqueKey"], "--topic", topic)):
        shown = shell("message", "show", *arguments)
        assert shown.endswith("\nhello\n") and "order-1" in shown
    assert "stored" in shell("message", "trace", found["id"])
    assert shell("message", "track", found["id"]).startswith("group")
    resent = json.loads(shell("message", "resend", found["id"], "--group", "g", "--dry-run", "-o", "json"))
    assert resent[0]["state"] == "planned"


def test_settings_are_shown_and_changed(process: TallyProcess, shell: Shell) -> None:
    broker = process.places["broker"]
    before = cells(shell("config", "show", "maxMessageSize"))[0][-1]
    shell("config", "set", broker, "maxMessageSize=100000", "--dry-run")
    assert cells(shell("config", "show", "maxMessageSize"))[0][-1] == before
    shell("config", "set", broker, "maxMessageSize=100000")
    assert cells(shell("config", "show", "maxMessageSize")) == [["maxMessageSize", "all", "100000"]]
    assert shell("config", "set", "DefaultCluster", "maxMessageSize=many", code=1)
    assert "maxMessageSize" in shell.err
    shell("config", "set", broker, f"maxMessageSize={before}")
    assert shell("config", "show", "--differing") == "setting  broker  value\n"


def test_a_broker_is_closed_for_producers_and_opened(shell: Shell) -> None:
    assert cells(shell("broker", "wipe-write", "broker-a", "--dry-run"))[0][-1] == "planned"
    assert cells(shell("broker", "wipe-write", "broker-a"))[0][-1] == "done"
    assert cells(shell("broker", "restore-write", "broker-a"))[0][-1] == "done"
    shell("broker", "wipe-write", "nothing", code=1)


def test_figures_and_groups_that_do_not_exist(shell: Shell) -> None:
    assert "topic" in shell("top", "--once")
    shell("produce", "Figures", "x")
    assert json.loads(shell("top", "--once", "-o", "json"))["topics"]["Figures"]["inPerS"] > 0
    assert shell("raft", "list") == "there is no replicated group\n"
    shell("raft", "show", "nothing", code=1)
    assert shell("dlq", "groups") == "group  dead letters\n"
    shell("dlq", "list", "nothing", code=1)
    assert "has no dead letters" in shell.err


def test_a_measurement_leaves_nothing(shell: Shell) -> None:
    result = json.loads(shell("bench", "--count", "500", "--size", "10", "-o", "json"))
    assert result["sentPerSecond"] > 0 and result["receivedPerSecond"] > 0
    assert "tally-bench" not in shell("topic", "list", "--system") + shell("consumer", "list")


def test_problems_with_one_reason_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem("b/0", "b/0: it is away"), Problem("b/1", "it  is\naway"), Problem("c/0", "another")]
    assert report_problems(problems) == 1 and report_problems([]) == 0
    assert capsys.readouterr().err == "tally: b/0 and 1 more: it is away\ntally: c/0: another\n"


def test_a_figure_is_shown_again_until_ctrl_c(process: TallyProcess) -> None:
    command = [sys.executable, "-m", "tallystick.node.cli", "broker", "list", "--watch", "1", "-n", process.nameserver]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        shown = [running.stdout.readline() for _ in range(4)]
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert shown[0] == shown[2] and "broker-a" in shown[1] and "broker-a" in shown[3]


def test_the_screen_of_figures_is_live_at_a_terminal(process: TallyProcess) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tallystick.node.cli", "top", "-n", process.nameserver]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as running:
        os.close(theirs)
        shown = b""
        while shown.count(b"\x1b[H\x1b[2J") < 2:  # it is drawn twice
            shown += os.read(ours, 4096)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    os.close(ours)
    assert b"disk used" in shown and process.places["broker"].encode() in shown


@pytest.mark.parametrize(("answer", "code", "is_left"), [("n", 2, True), ("", 2, True), ("y", 0, False)])
def test_a_change_is_confirmed_at_a_terminal(
    process: TallyProcess, shell: Shell, answer: str, code: int, is_left: bool
) -> None:
    shell("topic", "create", "Confirmed")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tallystick.node.cli", "topic", "delete", "Confirmed", "-n", process.nameserver]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        os.write(ours, f"{answer}\n".encode())
        _, said = running.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert running.returncode == code and "planned" in said and "Change this? [y/N]" in said
    assert ("Confirmed" in shell("topic", "list")) is is_left


# --- contexts ---


def test_contexts_name_clusters(
    process: TallyProcess, shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TALLY_NAMESERVER")
    secret = tmp_path / "account.yml"
    secret.write_text("accessKey: someone\nsecretKey: a-secret\n")
    shell("context", "set", "home", "--nameserver", process.nameserver, "--credentials", str(secret))
    shell("context", "set", "away", "--nameserver", "127.0.0.1:1")
    file = tmp_path / "config" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "a-secret" not in file.read_text()
    assert "DefaultCluster" in shell("cluster", "list"), "the first context is in use"
    shell("cluster", "list", "--context", "away", code=2)
    assert "127.0.0.1:1: Connection refused" in shell.err
    shell("context", "use", "away")
    shell("cluster", "list", code=2)
    assert "DefaultCluster" in shell("cluster", "list", "--context", "home")
    assert "DefaultCluster" in shell("cluster", "list", "-n", process.nameserver), "an option has priority"
    assert shell("produce", "InContext", "x", "--context", "home").startswith("1 message stored")
    listed = json.loads(shell("context", "list", "-o", "json"))
    assert listed["current"] == "away" and listed["contexts"]["home"]["credentials"] == str(secret)
    shell("context", "delete", "away")
    assert json.loads(shell("context", "list", "-o", "json"))["current"] is None
    shell("context", "use", "away", code=2)
    file.write_text("current = [")
    shell("cluster", "list", code=2)
    assert "contexts.toml cannot be read" in shell.err and shell.err.count("\n") == 1


def test_a_context_that_cannot_be_written_leaves_the_file(shell: Shell, tmp_path: Path) -> None:
    shell("context", "set", "home", "--nameserver", "127.0.0.1:1")
    folder = tmp_path / "config"
    before = (folder / "contexts.toml").read_text()
    folder.rename(tmp_path / "moved")
    folder.write_text("not a folder")
    shell("context", "set", "away", "--nameserver", "127.0.0.1:2", code=2)
    assert (tmp_path / "moved" / "contexts.toml").read_text() == before


# --- report, completion ---


def test_a_report_has_no_secrets(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    shell("produce", "Reported", "a body that is private")
    assert shell("report", "--file", str(path)) == f"{path}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert {"tally-report/clusters.json", "tally-report/settings.json", "tally-report/topics.json"} <= texts.keys()
    assert "Reported" in texts["tally-report/topics.json"]
    assert "a body that is private" not in "".join(texts.values())
    assert all(isinstance(json.loads(text), dict | list) for text in texts.values())
    assert shell("report", "--file", str(path), code=2) == "", "it does not replace a file"


def test_what_may_be_a_secret_is_hidden() -> None:
    found = without_secrets(
        {"tlsKeyPassword": "p", "list": [{"aclSecretKey": "s"}], "url": "https://me:word@host/", "adminTokenFile": "/f"}
    )
    hidden = "(hidden)"
    assert found == {
        "tlsKeyPassword": hidden,
        "list": [{"aclSecretKey": hidden}],
        "url": f"https://{hidden}@host/",
        "adminTokenFile": "/f",
    }


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_shell_gets_the_commands(shell: Shell, name: str, tmp_path: Path) -> None:
    script = shell("completion", name)
    assert "consumer" in script and "dry-run" in script
    if name == "bash":
        file = tmp_path / "tally.bash"
        file.write_text(script)
        line = f'source {file}; COMP_WORDS=(tally topi); COMP_CWORD=1; _shtab_tally; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=dict(os.environ), timeout=60)
        assert done.stdout.split() == ["topic"], done.stderr
