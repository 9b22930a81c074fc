"""Logs of real processes: their level and format, and how both are set and changed."""

from __future__ import annotations

import json
import logging
import sys
import urllib.request
from pathlib import Path

import pytest
from tally_process import TallyProcess, tally

from tallystick.node.core.client import ClusterClient
from tallystick.node.core.configuration import ConfigurationError, load
from tallystick.node.core.logs import JsonFormatter
from tallystick.node.remoting.codes import RequestCode
from tallystick.operator.core.logs import JsonFormatter as OperatorFormatter

QUIET = ("--log-level", "WARNING")
JSON = {"Content-Type": "application/json"}


def put_level(process: TallyProcess, body: bytes, **headers: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(f"http://{process.places['http']}/log-level", body, JSON | headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_json_line_has_the_operators_keys() -> None:
    try:
        raise OSError("no space")
    except OSError:
        record = logging.LogRecord("tallystick.store", logging.ERROR, "", 0, "%s: full\nof 'ü'", ("f",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert list(told) == ["time", "level", "logger", "message", "error"]
    assert told == json.loads(OperatorFormatter().format(record))
    assert (told["level"], told["logger"], told["message"]) == ("ERROR", "store", "f: full\nof 'ü'")
    assert told["error"].endswith("OSError: no space") and told["time"].endswith("+00:00")


@pytest.mark.parametrize("key", ["broker.logLevel", "nameserver.logLevel", "broker.logFormat", "nameserver.logFormat"])
def test_a_value_that_does_not_exist_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"--set {key}: must be one of .*, not 'loud'"):
        load(assignments=[f"{key}=loud"])


def test_the_command_lists_the_values() -> None:
    ended = tally("run", "--log-level", "loud")
    assert ended.returncode == 2
    assert "--log-level: invalid choice: 'loud' (choose from 'DEBUG', 'INFO', 'WARNING', 'ERROR')" in ended.stderr


@pytest.mark.process
def test_each_line_is_one_json_object(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, "--log-format", "json") as process:
        assert put_level(process, b'{"level": "DEBUG"}') == (200, {"level": "DEBUG"})
        process.end()
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert "logLevel changes from INFO to DEBUG" in [line["message"] for line in lines]
    assert {"time", "level", "logger", "message"} <= set(lines[0])


@pytest.mark.process
def test_the_level_is_changed_over_http_until_the_process_ends(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, *QUIET) as process:
        assert process.get("/log-level") == (200, '{"level": "WARNING"}')
        for wrong in (b"", b"{}", b'{"level": "loud"}', b'{"level": 10}', b'{"level": "INFO", "more": 1}', b"[]"):
            status, told = put_level(process, wrong)
            assert status == 400 and told["error"]
        assert put_level(process, b'{"level": "INFO"}') == (200, {"level": "INFO"})
        process.end()
    assert "INFO tallystick: stopping" in process.log.read_text()
    with TallyProcess(tmp_path, *QUIET) as process:
        assert process.get("/log-level") == (200, '{"level": "WARNING"}')


@pytest.mark.process
def test_the_level_of_a_process_with_a_token_file_changes_only_with_a_token(tmp_path: Path) -> None:
    """The header Host, which a page of another site controls, neither opens nor closes the route."""
    admin, reader = tmp_path / "admin", tmp_path / "reader"
    admin.write_text("right\n")
    reader.write_text("reads\n")
    files = ("--set", f"adminTokenFile={admin}", "--set", f"readTokenFile={reader}")
    foreign = {"Host": "attacker.example", "Origin": "http://attacker.example"}
    refused: list[tuple[int, dict[str, str]]] = [
        (401, {}),
        (401, foreign),
        (401, {"Host": ""}),
        (401, {"Authorization": "Bearer wrong"}),
        (401, {"Authorization": "Bearer "}),
        (401, {"Authorization": "right"}),
        (401, {"Authorization": "Basic right"}),
        (401, {"Authorization": "Bearer wrong"} | foreign),
        (403, {"Authorization": "Bearer reads"}),
        (403, {"Authorization": "Bearer reads"} | foreign),
    ]
    with TallyProcess(tmp_path, *files) as process:
        for expected, headers in refused:
            status, told = put_level(process, b'{"level": "DEBUG"}', **headers)
            assert status == expected and told["error"], headers
        assert process.get("/log-level")[0] == 401, "nor is the level shown"
        token = {"Authorization": "Bearer right"}
        # Refused by its content, which shows that the level was not changed and that the token is looked at first.
        assert put_level(process, b'{"level": "loud"}', **token)[0] == 400
        assert put_level(process, b'{"level": "WARNING"}', **token) == (200, {"level": "WARNING"})
        assert put_level(process, b'{"level": "ERROR"}', **token, **foreign) == (200, {"level": "ERROR"})
        process.end()
    said = process.log.read_text()
    assert "logLevel changes from INFO to WARNING" in said, "none of the refused requests had changed it"
    assert "DEBUG" not in said
    assert "right" not in said and "wrong" not in said, "tokens are not logged"


@pytest.mark.process
async def test_mqadmin_changes_the_level_for_good(tmp_path: Path) -> None:
    """`updateBrokerConfig` and `updateNamesrvConfig`. A broker keeps its settings for the next start."""
    with TallyProcess(tmp_path) as process:
        broker, names = process.places["broker"], process.nameserver
        async with ClusterClient(names) as client:
            await client.call(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, b"logLevel=DEBUG\n")
            assert process.get("/log-level") == (200, '{"level": "DEBUG"}')
            await client.call(names, RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"logLevel=ERROR\n")
            assert process.get("/log-level") == (200, '{"level": "ERROR"}')
            with pytest.raises(Exception, match="logLevel"):
                await client.call(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, b"logLevel=loud\n")
    with TallyProcess(tmp_path) as process:
        assert process.get("/log-level") == (200, '{"level": "DEBUG"}')
