"""The tables of the tuner, of the batching study, and of what follows from a handler's line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measuring.study import PUBLISHED, PUBLISHED_BY_DELAY
from benchmarks.pages.tables import each, number, table
from slotwise.bench.load import LoadResult
from slotwise.tune.finals import Finalist, paired
from slotwise.tune.space import TrialSetting

Figures = Mapping[str, Any]
TUNED = ("tune-mnist-64", "tune-mnist-8", "tune-resnet18", "tune-resnet18-amx", "tune-efficientnet")
PUBLISHED_BATCH_MS = {8: 140, 16: 260, 32: 440, 64: 1040}  # ants and bees on Elastic Inference: 64 is dearer a picture than 32
SHARE = 0.7  # how busy a pod shall be, docs/kubernetes.md


def setting(values: Mapping[str, Any]) -> str:
    """A setting of the tuner, short."""
    delay = f", {values['max_batch_delay']} ms" if values["batch_size"] > 1 else ""
    return f"batch {values['batch_size']}{delay}, {values['workers']} x {values['threads']} threads"


def final(name: str) -> Callable[[Figures], str]:
    """The final of a tuning, the fastest first, and why the winner won."""

    def render(figures: Figures) -> str:
        tuned, lines = figures[name], []
        winner = next((entry for entry in tuned["finalists"] if entry["setting"] == tuned["winner"]), None)
        for entry in sorted(tuned["finalists"], key=lambda entry: -entry["req_s"]):
            roles = {"winner": "winner", "profile": "profile", "no parameters": "default"}
            is_a = ", ".join(role for role, key in roles.items() if tuned[key] == entry["setting"])
            rounds = each(load["req_s"] for load in entry["rounds"])
            won_by = winner and entry is not winner and paired(_finalist(winner), _finalist(entry), "req_s")
            lines.append(
                [setting(entry["setting"]), is_a, number(entry["req_s"]), rounds, number(entry["p99_ms"]), won_by or None]
            )
        reason = f"\n\n> {tuned['reason']}" if tuned["reason"] else ""
        return table(["setting", "", "answers a second", "rounds", "p99 ms", "the winner gives"], lines) + reason

    return render


def _finalist(entry: Mapping[str, Any]) -> Finalist:
    return Finalist(TrialSetting(**entry["setting"]), tuple(LoadResult(**load) for load in entry["rounds"]))


def study_by_clients(figures: Figures) -> str:
    """The batching study: published, the stand-in, the model."""
    study = figures["study"]
    lines: list[list[Any]] = [["published", size, *row] for size, row in PUBLISHED.items()]
    for name, curves in study["curves"].items():
        lines += [[name, size, *(f"{value:.0f}" for value in row)] for size, row in curves["by_clients"].items()]
    return table(["", "batch size", *(f"{n} clients" for n in study["clients"])], lines)


def study_by_delay(figures: Figures) -> str:
    """The same over the delay."""
    study = figures["study"]
    lines = [[name, *(f"{value:.0f}" for value in curves["by_delay"])] for name, curves in study["curves"].items()]
    return table(["", *(f"{ms} ms" for ms in study["delays"])], [["published", *PUBLISHED_BY_DELAY], *lines])


def offline(figures: Figures) -> str:
    """A handler by itself, docs/bench.md."""
    keys = ("batch_ms", "decode_ms", "model_ms", "encode_ms", "item_ms")
    lines = [[timed["n"], *(f"{timed[key]:.2f}" for key in keys)] for timed in figures["offline-digits"]["batches"]]
    return table(["n", "batch", "decode", "model", "encode", "a request"], lines)


def offline_ants(figures: Figures) -> str:
    """The handler of ants and bees on profile ei, beside what was published of an Elastic Inference accelerator."""
    lines = [
        [timed["n"], *_with_item(PUBLISHED_BATCH_MS.get(timed["n"]), timed["n"]), *_with_item(timed["batch_ms"], timed["n"])]
        for timed in figures["offline-ants"]["batches"]
    ]
    return table(["batch", "published: ms a batch", "ms a picture", "ours: ms a batch", "ms a picture"], lines)


def _with_item(batch_ms: float | None, n: int) -> list[str | None]:
    """A batch's milliseconds, and a picture's; nothing where it was not published."""
    return [None, None] if batch_ms is None else [f"{batch_ms:.0f}", f"{batch_ms / n:.1f}"]


def replicas(figures: Figures) -> str:
    """How many pods a rate needs, docs/kubernetes.md."""
    rates, lines = (10, 50, 200, 1000), []
    for model, n, workers in (("digits", 16, 1), ("resnet18", 8, 1)):
        a, b = figures[f"offline-{model}"]["line"].values()
        most = workers * 1000 * n / (a * n + b)
        pods = [math.ceil(rate / (SHARE * most)) for rate in rates]
        lines.append([f"`{model}`", f"{a:.3g}", f"{b:.3g}", n, workers, round(most), *pods])
    return table(["model", "a", "b", "n", "workers", "at most", *(f"{rate:,}/s".replace(",", " ") for rate in rates)], lines)


def scale_rows(figures: Figures) -> str:
    """Answers a second for 1 to 1,000 replicas."""
    keys = ("model", "replicas", "clients", "rps", "every_node_rps", "one_proxy_rps", "p99_ms")
    rows = ([row[key] for key in keys] for row in figures["scale"]["rows"])
    lines = [[number(value) if isinstance(value, float) else value for value in row] for row in rows]
    return table(["model", "replicas", "clients", "replicas alone", "a proxy a node", "one proxy", "p99 ms"], lines)


def nodes_rows(figures: Figures) -> str:
    """Two nodes as measured, beside the simulation."""
    keys = ("replicas", "nodes", "clients", "rps", "simulated_rps", "p99_ms", "simulated_p99_ms", "mean_batch")
    lines = [
        [number(value) if isinstance(value, float) else value for value in (row[key] for key in keys)]
        for row in figures["nodes"]["rows"]
    ]
    names = ["replicas", "nodes", "clients", "answers/s", "simulated", "p99 ms", "simulated", "mean batch of 8"]
    return table(names, lines)


TABLES: dict[str, Callable[[Figures], str]] = {
    "scale.rows": scale_rows,
    "nodes.rows": nodes_rows,
    "study.by_clients": study_by_clients,
    "study.by_delay": study_by_delay,
    "offline-digits.batches": offline,
    "offline-ants.batches": offline_ants,
    "offline-digits+offline-resnet18.replicas": replicas,
    **{f"{name}.final": final(name) for name in TUNED},
}
