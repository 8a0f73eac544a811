"""A steady load of digits, run as a process of its own: `python steady.py URL FOLDER CLIENTS`; ends when stdin does.

Prints {"statuses": {"200": n, ...}, "wrong": [...], "failed": [...], "slowest_s": x}: `failed` are the requests that got
no answer at all, `wrong` the digits that were answered as another one. FOLDER holds 0.png to 9.png.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

PAUSE_S = 0.04


def main(url: str, folder: Path, clients: int) -> None:
    bodies = {path.stem: path.read_bytes() for path in sorted(folder.glob("[0-9].png"))}
    statuses: Counter[str] = Counter()
    wrong: list[str] = []
    failed: list[str] = []
    slowest = [0.0]
    lock, ended = threading.Lock(), threading.Event()

    def client(first: int) -> None:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            for i in range(first, sys.maxsize):
                if ended.is_set():
                    return
                digit = str(i % 10)
                started = time.monotonic()
                try:
                    answer = http.post("/predictions/digits", content=bodies[digit])
                except httpx.HTTPError as error:
                    with lock:
                        failed.append(repr(error))
                    continue
                with lock:
                    statuses[str(answer.status_code)] += 1
                    slowest[0] = max(slowest[0], time.monotonic() - started)
                    if answer.status_code == 200 and answer.json()["label"] != digit:
                        wrong.append(digit)
                    elif answer.status_code != 200:
                        failed.append(f"{answer.status_code} {answer.text[:200]}")
                time.sleep(PAUSE_S)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    json.dump({"statuses": statuses, "wrong": wrong, "failed": failed, "slowest_s": round(slowest[0], 2)}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
