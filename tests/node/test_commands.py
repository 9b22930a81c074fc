"""`tally topic`, `produce` and `consume` against a running broker, as a user at a terminal runs them."""

import asyncio
import base64
import json
import os
import pty
import re
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tally_process import TallyProcess, command, environment
from tally_shell import Shell, topic_of

from tallystick.node.cli import main
from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.store.formats import properties
from tallystick.store.formats.message import SysFlag

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    with TallyProcess(tmp_path_factory.mktemp("tally")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


@pytest.fixture
def shell(process: TallyProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("TALLY_NAMESERVER", process.nameserver)
    return Shell(capsys)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Gives bytes to standard input."""

    def give(data: bytes) -> None:
        reader, writer = os.pipe()
        assert len(data) <= 65536, "more than a pipe holds"
        os.write(writer, data)
        os.close(writer)
        monkeypatch.setattr("sys.stdin", os.fdopen(reader))

    return give


# -- topic -------------------------------------------------------------------------------------------------------------


def test_a_topic_from_creation_to_deletion(process: TallyProcess, shell: Shell, topic: str) -> None:
    broker = process.places["broker"]
    assert shell("topic", "create", topic, "--queues", "2") == f"{topic}: 2 queues on each of {broker}\n"
    assert topic in [line.split()[0] for line in shell("topic", "list").splitlines()]
    assert topic in [each["name"] for each in json.loads(shell("topic", "list", "--json"))]
    shell("produce", topic, "a", "b", "c")
    heads, first, second = shell("topic", "status", topic).splitlines()
    assert heads.split() == ["broker", "queue", "first", "next", "last", "stored"]
    assert (first.split()[:4], second.split()[:4]) == (["broker-a", "0", "0", "2"], ["broker-a", "1", "0", "1"])
    rows = json.loads(shell("topic", "status", topic, "--json"))
    assert [(row["queueId"], row["minOffset"], row["maxOffset"]) for row in rows] == [(0, 0, 2), (1, 0, 1)]
    assert shell("topic", "delete", topic) == f"{topic}: deleted on {broker}\n"
    assert topic not in [line.split()[0] for line in shell("topic", "list").splitlines()]
    shell("topic", "status", topic, code=1)
    assert f"No topic route info in name server for the topic: {topic} (code 17)\n" in shell.err


def test_more_queues_by_creating_again(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("topic", "create", topic, "--queues", "3", "--json")
    assert len(json.loads(shell("topic", "status", topic, "--json"))) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "TBW102"), "conflict with system topic"),
        (("delete", "TBW102"), "conflict with system topic"),
        (("delete", "NeverMade"), "no broker has the topic NeverMade"),
        (("update", "NeverMade"), "no broker has the topic NeverMade"),
        (("status", "NeverMade"), "No topic route info"),
    ],
)
def test_a_refusal_is_one_line_with_the_reason(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    assert shell("topic", *arguments, code=1) == ""
    assert says in shell.err and shell.err.startswith("tally: ") and shell.err.count("\n") == 1


@pytest.mark.parametrize("name", ["a/b", "", "a" * 128])
def test_a_name_that_no_broker_accepts_is_not_sent(shell: Shell, name: str) -> None:
    assert shell("topic", "create", name, code=2) == ""
    assert shell.err.startswith("tally: the name of a topic has up to 127 of the characters")
    assert shell.err.count("\n") == 1


def test_an_address_that_is_not_a_name_server_is_explained(process: TallyProcess, shell: Shell) -> None:
    broker, http = process.places["broker"], process.places["http"]
    assert shell("topic", "list", "-n", broker, code=2) == ""
    assert f"{broker} is not a name server, perhaps it is a broker" in shell.err and shell.err.count("\n") == 1
    assert shell("topic", "list", "-n", http, code=2) == ""
    assert http in shell.err and "it sent text that begins with 'HTTP', which is not a frame" in shell.err
    assert shell.err.count("\n") == 1
    assert shell("topic", "list", "-n", f"{broker};{process.nameserver}")


def test_a_topic_that_may_only_be_read(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--perm", "4")
    shell("produce", topic, "x", code=1)
    assert f"topic {topic} has no queue to write" in shell.err


# -- produce -----------------------------------------------------------------------------------------------------------


def bodies(shell: Shell, topic: str, *more: str) -> list[str]:
    return sorted(shell("consume", topic, "--once", *more).splitlines())


def test_messages_of_the_command_line(shell: Shell, topic: str) -> None:
    assert shell("produce", topic, "hello", "world").startswith("2 messages stored in ")
    assert shell("produce", topic, "alone").startswith("1 message stored in ")
    assert bodies(shell, topic) == ["alone", "hello", "world"]


def test_lines_of_standard_input(shell: Shell, topic: str, typed: Callable[[bytes], None]) -> None:
    typed("eins\r\nzwei\nörtlich\nno end".encode())
    assert shell("produce", topic).startswith("4 messages stored")
    assert bodies(shell, topic) == ["eins", "no end", "zwei", "örtlich"]
    typed(b"")
    assert shell("produce", topic).startswith("0 messages stored")


def test_many_made_up_messages(shell: Shell, topic: str) -> None:
    assert shell("produce", topic, "--count", "1000", "--size", "40").startswith("1,000 messages stored")
    found = bodies(shell, topic)
    assert {len(body) for body in found} == {40}
    assert sorted(int(body.split()[1]) for body in found) == list(range(1000))


def test_a_message_that_is_too_large_stops_it(shell: Shell, topic: str) -> None:
    shell("produce", topic, "--count", "3", "--size", str(5 << 20), code=1)
    assert "0 messages stored in " in shell.err
    assert "(code 13)" in shell.err.splitlines()[-1]


def test_a_message_that_cannot_be_sent_is_reported(shell: Shell, topic: str) -> None:
    shell("produce", topic, "a", "--count", "2", code=2)
    assert "give either messages or --count" in shell.err
    shell("produce", topic, "a", "--tag", "with\x01separator", code=2)
    assert "TAGS" in shell.err
    shell("produce", "no such name", "a", code=1)
    assert "illegal characters" in shell.err


def test_a_line_without_end(shell: Shell, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.node.commands.terminal.MAX_LINE_BYTES", 1000)
    reader, writer = os.pipe()
    os.write(writer, b"x" * 2000)
    monkeypatch.setattr("sys.stdin", os.fdopen(reader))
    try:
        shell("produce", topic, code=2)
    finally:
        os.close(writer)
    assert "a line of the input is longer than 1,000 bytes" in shell.err


# -- consume -----------------------------------------------------------------------------------------------------------


def test_messages_with_all_their_fields(shell: Shell, topic: str) -> None:
    shell("produce", topic, "hello", "--tag", "a", "--key", "k1")
    (shown,) = [json.loads(line) for line in shell("consume", topic, "--once", "--json").splitlines()]
    assert shown["topic"] == topic and shown["body"] == "hello"
    assert (shown["queueId"], shown["queueOffset"]) == (0, 0)
    assert shown["properties"]["TAGS"] == "a" and shown["properties"]["KEYS"] == "k1"


def test_only_some_tags(shell: Shell, topic: str) -> None:
    for tag in ("a", "b", "c", ""):
        shell("produce", topic, "--tag", tag, f"tagged {tag}")  # options may stand anywhere
    assert bodies(shell, topic, "--tags", "a || c") == ["tagged a", "tagged c"]
    assert bodies(shell, topic, "--tags", "*") == bodies(shell, topic, "--tags", "")
    assert len(bodies(shell, topic)) == 4


def test_so_many_and_no_more(shell: Shell, topic: str) -> None:
    shell("produce", topic, "--count", "50")
    assert len(shell("consume", topic, "--count", "7").splitlines()) == 7  # without --once: it has enough
    assert shell("consume", topic, "--once", "--quiet") == ""
    assert shell.err == "50 messages\n"


def test_a_group_continues_where_it_stopped(shell: Shell, topic: str) -> None:
    shell("produce", topic, "--count", "20")
    group = ("--group", topic, "--commit")
    first = shell("consume", topic, *group, "--count", "8").splitlines()
    rest = shell("consume", topic, *group, "--once").splitlines()
    assert (len(first), len(rest)) == (8, 12)
    assert set(first).isdisjoint(rest)
    assert shell("consume", topic, *group, "--once") == ""
    shell("produce", topic, "one more")
    assert shell("consume", topic, *group, "--once") == "one more\n"
    assert len(bodies(shell, topic)) == 21, "who does not commit sees everything"


def test_an_offset_beyond_the_end(process: TallyProcess, shell: Shell, topic: str) -> None:
    """As after a topic was deleted and made again: the broker says where to go on, which may be further back."""

    async def run_ahead() -> None:
        async with ClusterClient(process.nameserver) as client:
            (queue,) = await client.queues(topic, writable=True)
            await client.commit(queue, topic, 1000)
            assert await client.committed(queue, topic) == 1000

    shell("topic", "create", topic, "--queues", "1")
    shell("produce", topic, "only one")
    asyncio.run(run_ahead())
    assert shell("consume", topic, "--once", "--commit", "--group", topic) == "only one\n"
    assert shell("consume", topic, "--once", "--commit", "--group", topic) == ""


def test_bodies_that_are_no_text_or_compressed(process: TallyProcess, topic: str) -> None:
    large = b"a large body " * 1000
    sent = {b"\xff\xfe\x00": 0, zlib.compress(large): SysFlag.COMPRESSED, b"not zlib": SysFlag.COMPRESSED}

    async def send() -> None:
        async with ClusterClient(process.nameserver) as client:
            queue = (await client.queues("TBW102", writable=True))[0]
            for body, flag in sent.items():
                fields = {"a": "g", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": str(int(flag)), "g": "0"}
                fields |= {"h": "0", "i": properties.encode({properties.UNIQ_KEY: "0" * 32})}
                await client.call(queue.address, RequestCode.SEND_MESSAGE_V2, fields, body)

    asyncio.run(send())
    arguments = command("consume", topic, "--once", "-n", process.nameserver)
    plain = subprocess.run(arguments, capture_output=True, timeout=30, env=environment())
    assert plain.stdout == b"\xff\xfe\x00\n" + large + b"\nnot zlib\n"
    shown = subprocess.run([*arguments, "--json"], capture_output=True, timeout=30, env=environment())
    first, second, third = [json.loads(line) for line in shown.stdout.splitlines()]
    assert base64.b64decode(first["bodyBase64"]) == b"\xff\xfe\x00" and "body" not in first
    assert (second["body"], third["body"]) == (large.decode(), "not zlib")


def test_a_topic_that_is_not_there(shell: Shell) -> None:
    shell("consume", "NeverMade", "--once", code=1)
    assert "No topic route info" in shell.err


def test_a_reader_who_leaves(process: TallyProcess, shell: Shell, topic: str) -> None:
    shell("produce", topic, "--count", "5000")
    arguments = command("consume", topic, "-n", process.nameserver)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as consumer:
        assert consumer.stdout is not None and consumer.stderr is not None
        assert consumer.stdout.readline().startswith(b"message ")
        consumer.stdout.close()
        assert (consumer.stderr.read(), consumer.wait(30)) == (b"", 0)


# -- at a terminal -----------------------------------------------------------------------------------------------------


class Terminal:
    """A command with a pseudo-terminal as its three standard streams."""

    def __init__(self, *arguments: str, **more: str) -> None:
        self.ours, theirs = pty.openpty()
        settings = {"TERM": "xterm", **more}
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**settings),
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        while text not in self.shown:
            self.shown += os.read(self.ours, 4096).decode()

    def end(self) -> int:
        """Reads to the end; the exit status."""
        try:
            while data := os.read(self.ours, 4096):
                self.shown += data.decode()
        except OSError:
            pass  # how Linux says that the other side is closed
        os.close(self.ours)
        return self.process.wait(30)


def test_colours_are_for_terminals(process: TallyProcess, shell: Shell, topic: str) -> None:
    produce = ("produce", topic, "x", "-n", process.nameserver)
    terminal = Terminal(*produce)
    assert terminal.end() == 0
    assert "\x1b[32m1 message\x1b[0m stored" in terminal.shown
    for setting in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        terminal = Terminal(*produce, **setting)
        assert terminal.end() == 0
        assert "\x1b[32m" not in terminal.shown
    assert "\x1b" not in shell("produce", topic, "x")


def test_a_progress_line_on_long_work(process: TallyProcess, topic: str) -> None:
    terminal = Terminal("produce", topic, "--count", "6000", "-n", process.nameserver)
    assert terminal.end() == 0
    assert re.search(r"\r\x1b\[Ksent: [0-9,]+ of 6,000 \([0-9]+ %\), [0-9,]+ a second", terminal.shown)
    assert re.search(r"\r\x1b\[K\S*6,000 messages", terminal.shown), "the result stands alone"


def test_ctrl_c_ends_consume_and_keeps_its_place(process: TallyProcess, shell: Shell, topic: str) -> None:
    shell("produce", topic, "first", "second", "third")
    terminal = Terminal("consume", topic, "--commit", "--group", topic, "-n", process.nameserver)
    for text in ("first", "second", "third"):
        terminal.wait_for(text)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    assert shell("consume", topic, "--once", "--commit", "--group", topic) == ""


def test_ctrl_c_ends_produce_while_it_waits_for_a_line(process: TallyProcess, shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    terminal = Terminal("produce", topic, "-n", process.nameserver)
    os.write(terminal.ours, b"a line\n")
    terminal.wait_for("a line")  # the terminal's echo
    while "a line" not in shell("consume", topic, "--once"):
        pass  # until it is stored: the broker says so, no clock does
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "1 message" in terminal.shown and ", then stopped" in terminal.shown
    assert "Traceback" not in terminal.shown


def test_a_broker_that_stops(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as running:
        arguments = command("consume", "T", "-n", running.nameserver)
        main(["produce", "T", "x", "-n", running.nameserver])
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as consumer:
            assert consumer.stdout is not None and consumer.stderr is not None
            assert consumer.stdout.readline() == b"x\n"
            running.end(signal.SIGKILL)
            complaint = consumer.stderr.read().decode()
            assert (consumer.wait(30), complaint.count("\n")) == (2, 1)
            assert complaint.startswith("tally: 127.0.0.1:") and "the connection was lost" in complaint
