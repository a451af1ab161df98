"""A web server on loopback that serves a dictionary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, and the requests for it.

    Attributes:
        files: content by path, the host of the true URL first.
        requests: path and Range header of every request, in order.
        breaks_after: bytes after which a connection ends; None if it holds.
        knows_ranges: whether a request may be for a part of a file.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    breaks_after: int | None = None
    knows_ranges: bool = True


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """Serve on a free port until the end of the block."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            header = self.headers.get("Range")
            site.requests.append((self.path, header))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(header.removeprefix("bytes=")[:-1]) if header and site.knows_ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: site.breaks_after])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
