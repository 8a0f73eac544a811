"""What is seen of requests, for people: the tables of `slotwise top`, the lines of `slotwise trace`."""

from __future__ import annotations

from typing import Any

from slotwise.console import table


def top_table(status: dict[str, Any]) -> Any:
    """What GET /status/top says, as tables."""
    from rich.console import Group  # noqa: PLC0415  slow to import

    last = status["last"]["models"]
    rows, errors = [], []
    for model in status["models"]:
        numbers = last.get(model["name"], {})
        rows.append(
            [
                model["name"],
                model["version"],
                f"{model['ready_workers']} of {model['workers']}",
                f"{model['in_flight']} of {model['in_flight_max']}",
                f"{model['queued']} of {model['queue_max']}",
                f"{_number(numbers.get('batch'))} of {model['batch_size']}",
                _number(numbers.get("answers_per_s")),
                _number(numbers.get("p50_ms")),
                _number(numbers.get("p99_ms")),
            ]
        )
    for model, numbers in last.items():
        errors += [[model, count, cause] for cause, count in numbers["errors"].items()]
    columns = ["model", "version", "workers", "in flight", "queued", "batch", "a second", "p50 ms", "p99 ms"]
    ready = "ready" if status["ready"] else "NOT READY"
    title = f"{ready}{', draining' if status['draining'] else ''}; the last {status['last']['over_s']:g} s"
    parts = [table(title, columns, rows)]
    return Group(*parts, table("errors by cause", ["model", "count", "cause"], errors)) if errors else parts[0]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def trace_lines(seen: dict[str, Any]) -> list[str]:
    """Its lines for people. Milliseconds from when it came."""
    who = f" with the key {seen['key']}" if seen["key"] else ""
    trace = f"; trace {seen['trace_id']}" if seen["trace_id"] else ""
    lines = [
        f"{seen['request_id']}  {seen['method']} {seen['path']}  {seen['status']} in {seen['took_ms']:.1f} ms",
        f"  came {seen['came']} from {seen['address'] or 'somebody'}{who}, {seen['bytes_in']} bytes{trace}",
    ]
    lines += _way(seen, "  ")
    for record in seen["records"]:
        lines += [f"  record {record['request_id']}", *_way(record, "    ")]
    got = f": {seen['reason']}" if seen["reason"] else f", {seen['bytes_out']} bytes" if seen["bytes_out"] else ""
    return [*lines, f"  {seen['took_ms']:9.1f}  answered {seen['status']}{got}"]


def _way(one: dict[str, Any], indent: str) -> list[str]:
    steps: list[tuple[float, str]] = [(note["at_ms"], note["what"]) for note in one["notes"]]
    if one["placed_ms"] is not None:
        steps.append((one["placed_ms"], "read, and let in"))
    for batch in one["batches"]:
        steps += _steps(batch)
    if stream := one.get("stream"):
        steps.append((stream["first_ms"], "first piece"))
        steps.append((stream["last_ms"], f"last of {stream['pieces']} pieces"))
    return [f"{indent}{at:9.1f}  {what}" for at, what in sorted(steps, key=lambda step: step[0])]


def _steps(batch: dict[str, Any]) -> list[tuple[float, str]]:
    others = batch["size"] - 1
    shared = f"with {others} others" if others > 1 else "with one other" if others else "alone"
    at = batch["sent_ms"]
    where = f"batch {batch['batch']} of {batch['worker']}" if batch["worker"] else "a batch"
    steps = [(at, f"{where}: slot {batch['slot']} of {batch['size']}, {shared}")]
    if batch["failure"]:
        steps.append((at, f"that batch has no report: {batch['failure']}"))
    if "decode_ms" in batch:
        told = [batch["engine"], batch["precision"], f"{batch['cuts']} cuts" if batch["cuts"] else ""]
        what = f"decoded {batch['decode_ms']:.1f} ms, model {batch['inference_ms']:.1f} ms"
        steps.append((at, f"{what} {' '.join(filter(None, told))}".rstrip()))
        for call in batch["calls"]:
            mine = "" if call["had_it"] else ", without this one"
            error = f" raised {call['error']}" if call["error"] else ""
            steps.append(
                (call["at_ms"], f"the model ran {call['rows']} rows as {call['size']}, {call['took_ms']:.1f} ms{mine}{error}")
            )
    return steps
