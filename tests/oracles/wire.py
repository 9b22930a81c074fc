"""A transport whose bytes a test reads."""


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent = b""
        self.unsent_bytes = 0

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 5555) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.sent += b"".join(parts)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close

    def take(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent
