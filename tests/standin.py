"""A stand-in for a model server: answers in threads, by a plain function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = tuple[int, Mapping[str, str], bytes]


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


@contextmanager
def standin(answer: Callable[[bytes, Mapping[str, str]], Answer | None]) -> Iterator[str]:
    """The address of a server that answers a body with `answer`; None drops the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            said = answer(self.rfile.read(int(self.headers["content-length"])), {k.lower(): v for k, v in self.headers.items()})
            if said is None:
                self.close_connection = True
                return
            status, headers, body = said
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body)), "connection": "keep-alive"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/predictions/m"
    finally:
        server.shutdown()
        server.server_close()


def answer(body: bytes, headers: object) -> Answer:
    if body != b"good":
        return 400, {"x-batch-size": "4"}, b'{"error": {"code": 400, "message": "bad"}}'
    return 200, {"X-Batch-Size": "4", "x-decode-ms": "1.0", "x-inference-ms": "3.0"}, b"{}"
