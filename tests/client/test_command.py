"""A command's flags and the readers of its fields."""

import pytest

from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import (
    Command,
    HeaderType,
    ResponseError,
    need_bool,
    need_int,
    need_long,
    need_str,
    opt_bool,
    opt_int,
    opt_long,
    opt_str,
)


def test_a_reply_has_the_request_s_number_and_form() -> None:
    request = Command(RequestCode.PULL_MESSAGE, opaque=7, header_type=HeaderType.ROCKETMQ, language="GO", version=1)
    reply = request.reply(ResponseCode.PULL_NOT_FOUND, ext={"a": "b"}, body=b"x", remark="NO")
    assert reply == Command(19, 7, 1, "JAVA", 373, "NO", {"a": "b"}, b"x", HeaderType.ROCKETMQ)
    assert reply.is_response and not reply.is_oneway and not request.is_response
    assert Command(15, flag=2).is_oneway


def test_a_missing_field_is_named_in_rocketmq_s_words() -> None:
    for ext in (None, {}, {"other": "1"}):
        for reader in (need_str, need_int, need_long, need_bool):
            with pytest.raises(ResponseError) as caught:
                reader(ext, "queueId")
            assert (caught.value.code, caught.value.remark) == (1, "the custom field <queueId> is null")
        assert (opt_str(ext, "a"), opt_int(ext, "a", 3), opt_long(ext, "a"), opt_bool(ext, "a", True)) == (
            "",
            3,
            0,
            True,
        )


def test_numbers_have_their_bits() -> None:
    assert need_int({"n": "-2147483648"}, "n") == -(2**31)
    assert need_long({"n": str(2**63 - 1)}, "n") == 2**63 - 1
    assert opt_int({"n": "+5"}, "n") == 5
    for text in (str(2**31), "", "x", "1.5", " 5", "5\n", "1_000", "9" * 5000):
        with pytest.raises(ResponseError, match="<n> is no 32-bit number"):
            need_int({"n": text}, "n")
    with pytest.raises(ResponseError, match="<n> is no 64-bit number"):
        opt_long({"n": str(2**63)}, "n")


def test_booleans_are_true_in_any_case_or_false() -> None:
    assert [need_bool({"b": text}, "b") for text in ("true", "TRUE", "false", "1", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]
