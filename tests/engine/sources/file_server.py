"""A local stand-in for the store: serves bytes with ranges, may break off, may lie about checksums."""

import base64
import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LeavableServer(ThreadingHTTPServer):
    """A client that resets its connection is no error here: downloads break off and are stopped."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Print what went wrong, unless the client just left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@dataclass
class Store:
    """What is served. break_after: bytes of the first answers after which the connection is cut."""

    content: bytes
    etag: str = ""
    sha256: str = ""
    status: int = 200
    content_type: str = "application/zip"
    headers: dict[str, str] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    url: str = ""

    def tell_the_truth(self) -> None:
        """Checksums that fit."""
        self.etag = f'"{hashlib.md5(self.content).hexdigest()}"'
        self.sha256 = base64.b64encode(hashlib.sha256(self.content).digest()).decode()


@contextmanager
def serving(store: Store) -> Iterator[Store]:
    """Serve the store on a loopback port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            store.ranges.append(wanted)
            resumes = wanted is not None and self.headers.get("If-Range") == store.etag
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if resumes and wanted else 0
            body = store.content[start:]
            self.send_response(206 if resumes else store.status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", store.content_type)
            if store.etag:
                self.send_header("ETag", store.etag)
            if store.sha256:
                self.send_header("x-amz-checksum-sha256", store.sha256)
            for name, value in store.headers.items():
                self.send_header(name, value)
            self.end_headers()
            cut = store.break_after.pop(0) if store.break_after else len(body)
            self.wfile.write(body[:cut])
            if cut < len(body):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = LeavableServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_address[1]}/qwen3_4b-genie-w4a16-qualcomm_snapdragon_x_elite.zip"
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
