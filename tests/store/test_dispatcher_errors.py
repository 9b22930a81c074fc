"""Errors of dispatching in a row are one line of the log, however often it is tried."""

from __future__ import annotations

import errno
import logging

import pytest

from tallystick.store.engine.dispatcher import _Errors


def test_tries_that_fail_for_one_reason_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The name of a new index file is the time, so each try names another one."""
    errors = _Errors("the index cannot be extended", 2)
    with caplog.at_level(logging.WARNING, "tallystick"):
        for name in range(5):
            errors.add(OSError(errno.ENOSPC, "No space left on device", f"index/{name}"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert errors.refusal is not None and "index/4" in errors.refusal


def test_another_reason_and_the_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    errors = _Errors("the index cannot be extended", 2)
    with caplog.at_level(logging.WARNING, "tallystick"):
        errors.add(OSError(errno.ENOSPC, "No space left on device", "index/1"))
        errors.add(OSError(errno.EIO, "Input/output error", "index/2"))
        errors.clear()
        errors.add(OSError(errno.EIO, "Input/output error", "index/3"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING", "ERROR"]
