"""Places for a job's files, all of them by the same rules; S3 against a real server on a socket."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import pytest
from s3_lab import S3Lab

from tallystick.spark.outputs import Carried, FolderOutput, Output, OutputError, output_at, writing
from tallystick.spark.outputs_s3 import S3Output
from tallystick.spark.runner import inline


def test_files_are_there_by_their_names(place: Output) -> None:
    assert place.names() == [] and place.read("a/b") is None
    place.write("topic=%25RETRY%25g/day=1970-01-01/x~2-0.parquet", b"one")
    place.write("_tally/book.json", b"")
    place.write("large", bytes(range(256)) * 50_000)
    place.write("_tally/book.json", b"two")
    assert place.names() == ["_tally/book.json", "large", "topic=%25RETRY%25g/day=1970-01-01/x~2-0.parquet"]
    assert place.names("_tally") == ["_tally/book.json"] and place.names("none") == []
    assert place.read("_tally/book.json") == b"two"
    assert place.read("large") == bytes(range(256)) * 50_000
    for name in ("large", "large", "none/at/all"):
        place.remove(name)
    assert "large" not in place.names()
    assert pickle.loads(pickle.dumps(place)).names() == place.names()


def test_a_file_is_whole_or_not_there(place: Output) -> None:
    place.write("kept", b"before")
    for name in ("kept", "new"):
        with pytest.raises(RuntimeError), place.create(name) as file:
            file.write(b"half" * 1000)
            raise RuntimeError
        with place.create(name) as file:
            file.write(b"not yet")
            file.flush()
            assert place.names() == ["kept"]
            assert place.read("kept") == b"before"
            raised = pytest.raises(KeyboardInterrupt)
            with raised, place.create(name) as other:
                other.write(b"x")
                raise KeyboardInterrupt
        assert place.read(name) == b"not yet"
        place.remove("new")
        place.write("kept", b"before")


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "a//b", "./a", "a/"])
def test_names_that_lead_elsewhere(place: Output, name: str) -> None:
    with pytest.raises(OutputError):
        place.write(name, b"x")


def test_what_a_killed_writer_began_is_forgotten(tmp_path: Path) -> None:
    place = FolderOutput(tmp_path)
    begun = place.create("file")
    begun.__enter__().write(b"x")
    (aside,) = (tmp_path / "_tally" / "aside").iterdir()
    assert place.names() == []
    place.clear_aside()
    assert not aside.exists()


def test_what_tasks_write_is_there_when_their_result_is(place: Output) -> None:
    def work(number: int, output: Output) -> int:
        for part in range(number):
            output.write(f"{number}/{part}", b"%d" % part)
        return number

    for result in writing(place, inline, work, [2, 0, 3]):
        assert len(place.names(str(result)) if result else []) == result
    assert len(place.names()) == 5
    with pytest.raises(NotImplementedError):
        Carried().names()


# -- S3 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri", ["s3://", "s3:///x", "http://b/x", "s3://user@b/x", "s3://b/x?versionId=1", "/a/folder"]
)
def test_what_is_no_bucket(uri: str) -> None:
    with pytest.raises(OutputError):
        S3Output(uri)
    with pytest.raises(OutputError):
        S3Output("s3://b/p", "127.0.0.1:9000")


def test_a_bucket_that_is_not_there(s3: S3Lab) -> None:
    with pytest.raises(OSError, match="missing"):
        S3Output("s3://missing/x", s3.endpoint).write("file", b"x")
    assert S3Output("s3://missing/x", s3.endpoint).names() == []


def test_credentials_come_from_the_environment_and_are_never_shown(
    s3: S3Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    place = s3.output()
    with caplog.at_level(logging.DEBUG):
        place.write("file", b"x")
        with pytest.raises(OSError) as raised:
            S3Output("s3://missing/x", s3.endpoint).write("file", b"x")
    told = [caplog.text, *capfd.readouterr(), str(raised.value), repr(vars(place)), repr(pickle.dumps(place))]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] and not [
        each for each in told if os.environ["AWS_SECRET_ACCESS_KEY"] in each
    ]
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OutputError, match="AWS_SECRET_ACCESS_KEY"):
        S3Output(place.place, s3.endpoint, "elsewhere-1").names()


def test_credentials_come_from_a_folder_of_files_and_may_change(
    s3: S3Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a mounted Secret has them: no variable contains a secret."""
    uri = s3.output().place
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / name).write_text(os.environ[name] + "\n")
        monkeypatch.delenv(name)
    (tmp_path / "AWS_ENDPOINT_URL").write_text(s3.endpoint)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("TALLYSTICK_OUTPUT_S3_SETTINGS", str(tmp_path))
    found = output_at(uri)
    found.write("file", b"x")
    assert found.read("file") == b"x"
    right = (tmp_path / "AWS_SECRET_ACCESS_KEY").read_text()
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("")
    with pytest.raises(OutputError, match="AWS_SECRET_ACCESS_KEY"):
        found.read("file")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text(right)
    assert found.read("file") == b"x"


def test_a_bucket_whose_root_is_the_output(s3: S3Lab) -> None:
    place = S3Output(f"s3://{s3.make_bucket()}/", s3.endpoint)
    place.write("a/b", b"x")
    assert place.names() == ["a/b"] and place.names("a") == ["a/b"]


def test_a_place_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert output_at(str(tmp_path)).place == str(tmp_path)
    found = output_at("s3://bucket/a/b/")
    assert isinstance(found, S3Output) and found.place == "s3://bucket/a/b"
