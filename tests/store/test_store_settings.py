"""Settings of the store: RocketMQ's defaults, and an error that names the key for everything that cannot be used."""

import dataclasses
from typing import Any

import pytest

from tallystick.store.settings import BrokerRole, FlushDiskType, SettingsError, StoreSettings


def test_the_defaults_are_valid_and_rocketmqs():
    settings = StoreSettings()
    settings.validate()
    assert settings.mappedFileSizeCommitLog == 1073741824
    assert settings.queue_segment_bytes == 6_000_000
    assert settings.index_file_bytes == 420_000_040
    assert settings.flushDiskType is FlushDiskType.ASYNC_FLUSH
    assert settings.delete_hours() == {4}


def test_eighteen_delay_levels():
    delays = StoreSettings().delay_levels_ms()
    assert len(delays) == 18
    assert delays[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert delays[-1] == 7_200_000


def test_a_queue_segment_has_whole_units():
    assert StoreSettings(mappedFileSizeConsumeQueue=201).queue_segment_bytes == 220
    assert StoreSettings(mappedFileSizeConsumeQueue=200).queue_segment_bytes == 200


def test_the_log_lies_under_the_root_unless_set():
    settings = StoreSettings(storePathRootDir="/data")
    assert str(settings.commit_log_folder) == "/data/commitlog"
    assert str(dataclasses.replace(settings, storePathCommitLog="/log").commit_log_folder) == "/log"


@pytest.mark.parametrize(
    ("flush", "role", "used"),
    [
        (FlushDiskType.ASYNC_FLUSH, BrokerRole.ASYNC_MASTER, True),
        (FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, False),
        (FlushDiskType.ASYNC_FLUSH, BrokerRole.SLAVE, False),
    ],
)
def test_the_write_buffer_is_for_masters_that_flush_later(flush, role, used):
    settings = StoreSettings(transientStorePoolEnable=True, flushDiskType=flush, brokerRole=role)
    assert settings.transient_pool_enabled is used


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storePathRootDir", ""),
        ("storePathRootDir", 5),
        ("mappedFileSizeCommitLog", 0),
        ("mappedFileSizeCommitLog", 2**31),
        ("mappedFileSizeCommitLog", True),
        ("mappedFileSizeConsumeQueue", 19),
        ("maxMessageSize", -1),
        ("flushDiskType", "SYNC_FLUSH"),
        ("flushIntervalCommitLog", 0),
        ("deleteWhen", "24"),
        ("deleteWhen", "04;x"),
        ("messageDelayLevel", "1s 5y"),
        ("messageDelayLevel", "-1s"),
        ("diskSpaceWarningLevelRatio", 1.5),
        ("diskSpaceWarningLevelRatio", float("nan")),
        ("diskSpaceCleanForciblyRatio", 0.95),
        ("maxIndexNum", 1),
    ],
)
def test_what_cannot_be_used_is_named(key, value):
    with pytest.raises(SettingsError) as caught:
        dataclasses.replace(StoreSettings(), **{key: value}).validate()
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")


def test_every_number_has_a_range():
    """A new field without a range would be taken as it comes."""
    for item in dataclasses.fields(StoreSettings):
        if item.type in ("int", "float"):
            below = -2 if item.default == -1 else -1  # -1 may stand for a value that is derived
            for value in (below, 2**64):
                changed: dict[str, Any] = {item.name: value}
                with pytest.raises(SettingsError, match=item.name):
                    dataclasses.replace(StoreSettings(), **changed).validate()


def test_several_hours():
    assert StoreSettings(deleteWhen="04; 16;").delete_hours() == {4, 16}
    assert StoreSettings(deleteWhen="").delete_hours() == frozenset()
