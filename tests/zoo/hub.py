"""A hub on loopback, as far as transformers asks one: the files of a folder by name, and 404 for everything else."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMIT = "0" * 40
ID = "owner/model"


@contextmanager
def hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve `folder` as the repository ID; yields the endpoint, and the paths that were fetched so far."""
    fetched: list[str] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            prefix = f"/{ID}/resolve/"
            body, status = b"{}", 404
            if path.startswith(prefix):
                file = folder / path.removeprefix(prefix).partition("/")[2]
                if file.is_file():
                    body, status = file.read_bytes(), 200
            elif path == f"/api/models/{ID}" or path.startswith(f"/api/models/{ID}/revision/"):
                files = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                body, status = json.dumps({"id": ID, "sha": COMMIT, "siblings": files}).encode(), 200
            elif path.startswith(f"/api/models/{ID}/tree/"):
                listed = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": COMMIT} for f in folder.iterdir()]
                body, status = json.dumps(listed).encode(), 200
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-repo-commit", COMMIT)
            if status == 200:
                self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
            else:
                self.send_header("x-error-code", "EntryNotFound")
            self.end_headers()
            if with_body:
                fetched.append(path)
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
