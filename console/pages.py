"""The files of the console: each has its own route, so no path of a request ever becomes a path of the disk.

A file is read when it is first asked for, and kept with the digest of its content as ETag. Browsers ask again each time
(`no-cache`) and get 304, so an update is seen at once.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page may load and run: only files of this port, and no script or style within the page."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_COMPRESSED = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt"})
_INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class _Content:
    body: bytes
    gzip: bytes | None
    etag: str


class Page:
    """One file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: _Content | None = None

    async def handle(self, request: web.Request) -> web.Response:
        """Answers a GET."""
        content = self._content = self._content or _read(self._path)
        headers = {
            "Content-Type": _TYPES.get(self._path.suffix, "text/plain; charset=utf-8"),
            "Content-Security-Policy": CSP,
            "Cache-Control": "no-cache",
            "ETag": f'"{content.etag}"',
            "Vary": "Accept-Encoding",
        }
        if any(tag.value in (content.etag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        if content.gzip is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=content.gzip, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=content.body, headers=headers)


def page_routes(folder: Path | None = None) -> list[web.RouteDef]:
    """Returns a route for each file, and `/` for the first page. `folder`: another one than this package's."""
    root = Path(__file__).with_name("static") if folder is None else folder
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            handle = Page(path).handle
            name = path.relative_to(root).as_posix()
            found += [web.get("/" + name, handle)] + ([web.get("/", handle)] if name == _INDEX else [])
    return found


def _read(path: Path) -> _Content:
    body = path.read_bytes()
    small: bytes | None = None
    if path.suffix in _COMPRESSED:
        deflate = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        small = deflate.compress(body) + deflate.flush()
    return _Content(body, small if small is not None and len(small) < len(body) else None, _digest(body))


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]
