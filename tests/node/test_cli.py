"""The command `tally` itself: arguments, exit codes, and how errors end. What the commands do is in their own tests."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tally_process import command, environment, tally

import tallystick.node.run
from tallystick.node.cli import main
from tallystick.node.core.client import RequestRefusedError
from tallystick.node.core.configuration import ConfigurationError
from tallystick.node.remoting.errors import RemotingConnectError
from tallystick.store._kernel import DamageError
from tallystick.store.engine.lock import StoreLockedError
from tallystick.store.engine.recovery import RecoveryError
from tallystick.store.engine.segments import SegmentError
from tallystick.store.formats.message import Host
from tallystick.store.settings import SettingsError
from tallystick.store.tables import TableError

NOBODY = "127.0.0.1:1"  # no server may listen there


@pytest.fixture(autouse=True)
def _clean_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of a developer's environment, and relative paths under the test's folder."""
    for name in list(os.environ):
        if name.startswith("TALLY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def errors(capsys: pytest.CaptureFixture[str]) -> str:
    """What went to standard error: one line that begins with the command's name."""
    text = capsys.readouterr().err
    assert text.startswith("tally: ") and text.count("\n") == 1, text
    return text.removeprefix("tally: ").rstrip("\n")


def test_without_a_command_it_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    for name in ("run", "broker", "nameserver", "topic", "produce", "consume", "store"):
        assert f"\n    {name}" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "T", "--queues", "0"],
        ["topic", "create", "T", "--queues", "many"],
        ["topic", "create", "T", "--perm", "7"],
        ["store"],
        ["store", "verify"],
        ["store", "dump", "somewhere"],
        ["run", "--port", "x"],
        ["produce"],
        ["produce", "T", "--count", "-1"],
        ["produce", "T", "--size", "0"],
        ["produce", "T", "--tag", "x", "body", "--colour"],
        ["consume", "T", "--once", "body"],
        ["consume", "T", "--count", "0"],
    ],
)
def test_wrong_arguments_end_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert re.fullmatch(r"tally( [a-z]+)*: .*\n", capsys.readouterr().err)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("tallystick 0.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "listenPort=x"], "--set listenPort: must be a whole number, not 'x'"),
        (["--port", "70000"], "--port (broker.listenPort): must be 0 to 65535, not 70000"),
        (["--nameserver-port", "-1"], "--nameserver-port (nameserver.listenPort): must be 0 to 65535, not -1"),
        (["--http-port", "-2"], "--http-port (http.port): must be -1 to 65535, not -2"),
        (["--host", ""], "--host (broker.brokerIP1): must not be empty"),
        (["--config", "none.toml"], "none.toml: No such file or directory"),
        (["--config", "."], ".: Is a directory"),
    ],
)
def test_a_wrong_setting_is_one_line_and_opens_nothing(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    assert errors(capsys) == says
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broker.toml").write_text("[broker]\nbrokerNam = 'a'\n")
    monkeypatch.setenv("TALLY_CONFIG", "broker.toml")
    assert main(["broker"]) == 2
    assert errors(capsys) == "broker.toml: unknown key 'brokerNam' in [broker]; did you mean brokerName?"
    monkeypatch.setenv("TALLY_CONFIG", "")  # as good as unset
    assert main(["broker", "--set", "x=1"]) == 2
    assert errors(capsys) == "--set: unknown key 'x'"


def test_what_a_flag_says_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("broker.toml").write_text(
        "[broker]\nbrokerIP1 = '10.0.0.1'\n[http]\nhost = '10.0.0.1'\n[store]\nstorePathRootDir = 'file'\n"
    )
    seen = []
    monkeypatch.setattr(tallystick.node.run, "run", lambda settings, **parts: seen.append((settings, parts)) or 0)  # type: ignore[func-returns-value]
    assert main(["run", "--config", "broker.toml"]) == 0
    assert main(["run", "--config", "broker.toml", "--host", "127.0.0.2", "--dir", "flag"]) == 0
    assert main(["run", "--host", "0.0.0.0"]) == 0
    (by_file, parts), (by_flag, _), (everywhere, _) = seen
    assert parts == {"with_nameserver": True, "with_broker": True}
    assert (by_file.broker.brokerIP1, by_file.http.host, by_file.store.root) == ("10.0.0.1", "10.0.0.1", Path("file"))
    assert by_file.broker.bindAddress == "127.0.0.1"
    assert (by_flag.broker.brokerIP1, by_flag.http.host) == ("127.0.0.2", "127.0.0.2")
    assert by_flag.store.root == Path("flag/store")
    assert everywhere.broker.bindAddress == everywhere.nameserver.bindAddress == everywhere.http.host == "0.0.0.0"
    assert everywhere.broker.brokerIP1 != "0.0.0.0"


def test_a_brokers_name_server_comes_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(tallystick.node.run, "run", lambda settings, **_: seen.append(settings.broker.namesrvAddr) or 0)  # type: ignore[func-returns-value]
    assert main(["broker"]) == 0
    monkeypatch.setenv("TALLY_NAMESERVER", "10.0.0.1:9876")
    assert main(["broker"]) == 0
    assert main(["broker", "--nameserver", "10.0.0.2:9876"]) == 0
    assert seen == ["", "10.0.0.1:9876", "10.0.0.2:9876"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("broker.toml: a key"), 2),
        (SettingsError("brokerIP1", "has no address"), 2),
        (RecoveryError(Path("commitlog"), "is not one"), 2),
        (StoreLockedError(Path("store"), 77), 2),
        (DamageError("a file, at 7"), 2),
        (TableError(Path("topics.json"), "is not a table"), 2),
        (SegmentError(Path("commitlog/0"), "is not a segment"), 2),
        (RemotingConnectError(NOBODY, "refused"), 2),
        (OSError(28, "No space left on device", "commitlog/0"), 2),
        (RequestRefusedError(NOBODY, 17, "no such topic\nSee http://somewhere"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_others_can_cause_is_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(tallystick.node.run, "run", fail)
    assert main(["run"]) == code
    if code != 130:
        assert "See" not in errors(capsys)


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        (None, None),
        (Host("127.0.0.1", 8080), Host("127.0.0.1", 8080)),
        (Host("0.0.0.0", 8080), Host("10.0.0.7", 8080)),
        (Host("::", 8080), Host("10.0.0.7", 8080)),
        (Host("10.0.0.9", 8080), Host("10.0.0.9", 8080)),
    ],
)
def test_a_broker_states_an_http_address_that_others_can_use(listens: Host | None, reached: Host | None) -> None:
    assert tallystick.node.run._reached_at(listens, Host("10.0.0.7", 10911)) == reached


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(tallystick.node.run, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["run"])


@pytest.mark.parametrize("arguments", [["topic", "list"], ["produce", "T", "hello"], ["consume", "T"]])
def test_no_name_server(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "-n", NOBODY]) == 2
    assert errors(capsys) == f"no name server answers: {NOBODY}: Connection refused"
    assert main([*arguments, "-n", "nonsense"]) == 2
    assert errors(capsys) == "no name server answers: nonsense: is not an address of the form host:port"
    assert main([*arguments, "-n", ""]) == 2
    assert "address" in errors(capsys)


def test_a_folder_that_is_not_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", "nowhere"]) == 2
    assert "nowhere" in errors(capsys)
    assert main(["store", "dump", "nowhere", "--json", "-"]) == 2
    assert "nowhere" in errors(capsys)
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_separate_command(tmp_path: Path) -> None:
    assert tally("run", "--set", "x=1", cwd=tmp_path).stderr == "tally: --set: unknown key 'x'\n"
    started = tally("--help", cwd=tmp_path)
    assert (started.returncode, started.stderr) == (0, "")
    assert started.stdout.startswith("Runs a RocketMQ-compatible message broker ")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [(), ("--help",), ("store", "verify", "--help")])
def test_a_reader_who_has_enough_is_no_error(tmp_path: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before it starts: everything that it writes meets a closed pipe
    process = subprocess.Popen(
        command(*arguments),
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(PYTHONUNBUFFERED=unbuffered),
    )
    os.close(writer)
    _, complaints = process.communicate(timeout=30)
    assert complaints == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_reported(tmp_path: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = tally(
            "store",
            "dump",
            "--help",
            stdout=full,
            stderr=subprocess.PIPE,
            capture_output=False,
            cwd=tmp_path,
            env=environment(PYTHONUNBUFFERED=unbuffered),
        )
    assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr
    if not unbuffered:  # argparse itself passes over what it cannot write
        assert (ended.returncode, ended.stderr) == (2, "tally: standard output: No space left on device\n")


def test_only_processes_load_the_broker(tmp_path: Path) -> None:
    """A person waits for the others; the broker and its HTTP server would cost them a quarter of a second."""
    code = "import sys, tallystick.node.cli; print([name for name in ('aiohttp', 'uvloop') if name in sys.modules])"
    shown = subprocess.run([command()[0], "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert shown.stdout == "[]\n", shown.stderr
