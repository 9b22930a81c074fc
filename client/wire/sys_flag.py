"""The system flags of a message: bits that clients and brokers set, never the application."""

from __future__ import annotations

import enum


class SysFlag(enum.IntEnum):
    """Bits of a record's SYSFLAG. The transaction type is a two-bit value, not two flags.

    Not an IntFlag: the complement of an IntFlag has no unnamed bits, so a mask built from it would drop bits that a
    client sent.
    """

    COMPRESSED = 0x01
    MULTI_TAGS = 0x02
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20


TRANSACTION_MASK = 0x0C
TRANSACTION_NONE = 0x00
TRANSACTION_PREPARED = 0x04
TRANSACTION_COMMIT = 0x08
TRANSACTION_ROLLBACK = 0x0C
