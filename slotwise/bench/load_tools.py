"""Measure a closed loop with wrk or ab, where they are installed: C programs, so that the client is not the limit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slotwise.bench import load
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadResult
from slotwise.bench.load_plan import LoadPlan
from slotwise.console import say
from slotwise.errors import SlotwiseError

PACKAGES = {"wrk": "wrk", "ab": "apache2-utils"}
PERCENTS = (50, 90, 95, 99)

LUA = """
local requests, turn = {}, 0
init = function()
  for _, path in ipairs(%(paths)s) do requests[#requests + 1] = io.open(path, "rb"):read("*a") end
end
request = function()
  turn = turn + 1
  return requests[(turn - 1) %% #requests + 1]
end
done = function(summary, latency)
  local e, p = summary.errors, function(q) return latency:percentile(q) end
  print(string.format('SLOTWISE {"requests":%%d,"us":%%d,"status":%%d,"connection":%%d,"timeout":%%d,'
    .. '"p":[%%f,%%f,%%f,%%f],"max":%%f}', summary.requests, summary.duration, e.status, e.connect + e.read + e.write,
    e.timeout, p(50), p(90), p(95), p(99), latency.max))
end
"""


def measure(tool: str, target: Target, bodies: Sequence[RequestBody], plan: LoadPlan) -> LoadResult:
    """Load `target` with wrk or ab. No rate, no poison; batch sizes stay unknown (0). ab sends the first body only.

    Where a request fails it is measured again by our own client: requests and errors are of both, all else of the second.
    """
    measured = once(tool, target, bodies, plan)
    if not measured.errors:
        return measured
    # whose times these tools count among the others: a refusal is quick
    say(f"{tool} counts the times of requests that fail: measured again with our own client")
    again = load.measure(target, bodies, plan)
    errors = dict(Counter(measured.errors) + Counter(again.errors))
    return replace(again, requests=measured.requests + again.requests, errors=errors)


def once(tool: str, target: Target, bodies: Sequence[RequestBody], plan: LoadPlan) -> LoadResult:
    """The same, and never again: the times are also those of requests that failed."""
    if shutil.which(tool) is None:
        raise SlotwiseError(f"{tool} is not installed", f"on Debian: apt-get install {PACKAGES[tool]}")
    if plan.rate is not None or plan.poison:
        raise SlotwiseError(f"{tool} can do neither --rate nor --poison", "leave --tool away")
    if plan.requests is not None and tool == "wrk":
        raise SlotwiseError("wrk counts seconds, and no --requests", "name --seconds, or leave --tool away")
    with tempfile.TemporaryDirectory(prefix="slotwise-load-") as name:
        return (_wrk if tool == "wrk" else _ab)(target, bodies, plan, Path(name))


def _wrk(target: Target, bodies: Sequence[RequestBody], plan: LoadPlan, folder: Path) -> LoadResult:
    paths = [folder / f"request-{i}" for i in range(len(bodies))]
    for path, body in zip(paths, bodies, strict=True):
        path.write_bytes(target.request(body.data, body.content_type))
    lua = LUA % {"paths": "{" + ", ".join(json.dumps(str(path)) for path in paths) + "}"}
    (folder / "load.lua").write_text(lua, "utf-8")
    command = ["wrk", "-t1", f"-c{plan.clients}", "-s", str(folder / "load.lua"), "--timeout", f"{plan.timeout_s:.0f}s"]
    if plan.warm_up_s:
        _run([*command, f"-d{max(1, round(plan.warm_up_s))}s", target.url])
    output = _run([*command, f"-d{max(1, round(plan.seconds or 5))}s", target.url])
    line = re.search(r"^SLOTWISE (.*)$", output, re.MULTILINE)
    if not line:
        raise SlotwiseError(f"wrk measured nothing: {output.strip().splitlines()[-1:]}", "try --tool slotwise")
    counts = json.loads(line[1])
    errors = {key: counts[key] for key in ("connection", "timeout") if counts[key]}
    errors |= {"not 2xx": counts["status"]} if counts["status"] else {}
    times_ms = [us / 1000 for us in (*counts["p"], counts["max"])]
    return _result(plan, counts["us"] / 1e6, counts["requests"], counts["status"], times_ms, errors)


def _ab(target: Target, bodies: Sequence[RequestBody], plan: LoadPlan, folder: Path) -> LoadResult:
    if target.v2:
        raise SlotwiseError("ab cannot speak to Triton", "--tool wrk can, or leave --tool away")
    if target.headers:
        raise SlotwiseError("ab would show the token in the list of processes", "--tool wrk reads it from a file")
    (folder / "body").write_bytes(bodies[0].data)
    base = ["ab", "-q", "-k", "-l", "-r", "-c", str(plan.clients), "-p", str(folder / "body"), "-T", bodies[0].content_type]
    base += ["-s", f"{plan.timeout_s:.0f}", "-e", str(folder / "served.csv")]

    def run_for(seconds: float) -> list[str]:
        return ["-t", str(max(1, round(seconds))), "-n", "10000000"]

    if plan.warm_up_s:
        _run([*base, *run_for(plan.warm_up_s), target.url])
    limit = ["-n", str(max(plan.requests, plan.clients))] if plan.requests else run_for(plan.seconds or 5.0)
    output = _run([*base, *limit, target.url])

    def number(label: str) -> float:
        match = re.search(rf"^{label}:\s+([0-9.]+)", output, re.MULTILINE)
        return float(match[1]) if match else 0.0

    percentiles = dict(line.split(",") for line in (folder / "served.csv").read_text().splitlines()[1:])
    times_ms = [float(percentiles[str(p)]) for p in PERCENTS] + [float(max(percentiles.values(), key=float))]
    refused, failed = int(number("Non-2xx responses")), int(number("Failed requests"))
    errors = {key: count for key, count in (("not 2xx", refused), ("connection", failed)) if count}
    return _result(plan, number("Time taken for tests"), int(number("Complete requests")), refused + failed, times_ms, errors)


def _result(
    plan: LoadPlan, seconds: float, requests: int, failed: int, times_ms: list[float], errors: dict[str, int]
) -> LoadResult:
    p50, p90, p95, p99, max_ms = times_ms
    req_s = (requests - failed) / max(seconds, 1e-9)
    return LoadResult(plan.clients, None, seconds, requests, req_s, p50, p90, p95, p99, max_ms, 0.0, 0.0, 0.0, errors)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise SlotwiseError(f"{command[0]} failed: {lines[-1] if lines else 'no output'}", "is the model registered?")
    return done.stdout
