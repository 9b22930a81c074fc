"""`tally store verify` on a log of ours in dledger's layout: every flipped byte of an entry is found."""

from __future__ import annotations

from pathlib import Path

from ledger_lab import flip, made

from tallystick.store.verify.report import verify


def test_every_flipped_byte_of_an_entry_is_damage(tmp_path: Path) -> None:
    """Header, record, and what no CRC of RocketMQ covers: topic, properties, hosts, times."""
    ledger, twin = made(tmp_path / "dledger-n0")
    ledger.close()
    # The next start builds missing queues: only damage counts here.
    assert verify(tmp_path).damaged == 0
    header = twin.entries[17][0]
    for at in range(header.size):
        flip(tmp_path / "dledger-n0", header.pos + at, at % 8)
        assert verify(tmp_path).damaged > 0, at
        flip(tmp_path / "dledger-n0", header.pos + at, at % 8)
    assert verify(tmp_path).damaged == 0


def test_an_entry_of_another_history_is_damage(tmp_path: Path) -> None:
    """Sound in itself, in its place, with its index and term: the chain does not lead to it."""
    ledger, twin = made(tmp_path / "dledger-n0", count=20)
    ledger.close()
    header = twin.entries[10][0]
    path = tmp_path / "dledger-n0" / "data" / f"{header.pos - header.pos % 4096:020}"
    data = bytearray(path.read_bytes())
    at = header.pos % 4096
    data[at : at + 48] = header._replace(chain_crc=header.chain_crc ^ 1).encode()
    path.write_bytes(data)
    report = verify(tmp_path)
    assert [finding.reason for finding in report.damage] == [
        "the chain CRC of entry 10 differs",
        "the chain CRC of entry 11 differs",
    ]
