"""The Rust kernel: per-message loops over buffers and small objects. See store/kernel/src for each one's theory."""

def string_hash(text: bytes) -> int:
    """Java's `String.hashCode` of UTF-8 bytes, signed 32 bits."""

def key_hash(key: bytes) -> int:
    """The index's hash of `topic#key`, never negative."""

class Door:
    """The one way to change a file."""

    def __init__(self) -> None: ...
