"""The numbers within sentences: a name of the list below, or the way to a number (`gateway.overload.p99_ms`)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.comparison.results import against, fastest, kind
from benchmarks.measuring.rounds import Cell, Ratio, Row, by_cell, ratio
from benchmarks.pages.tables import number

Figures = Mapping[str, Any]
FP32, BF16, INT8 = (f"slotwise-openvino-{precision}" for precision in ("fp32", "bf16", "int8"))
CAMPAIGN_BROKEN = ("lost", "wrong", "unplanned", "hangs")
NONE = "no"  # a ratio to a system that answered nothing
LARGE = ("batch 16, 1 ms delay, 2 workers of 1 thread", 64)  # as parts.py has them in TUNED
SMALL = ("batch 4, 1 ms delay, 1 worker of 2 threads", 8)
SINGLE = ("batch 1, 2 workers of 1 thread", 8)


def value(name: str, figures: Figures) -> str:
    """The number of a marker. Raises KeyError for an unknown one."""
    if name in VALUES:
        result = VALUES[name](figures)
        if isinstance(result, str):
            return result
        return number(result.median) if result else NONE
    step: Any = figures
    for key in name.split("."):
        step = step[int(key)] if isinstance(step, list) else step[key]
    return number(step) if isinstance(step, int | float) else str(step)


def campaign_total(key: str, figures: Figures) -> str:
    """One of the campaign's counts over all parts: 1,234,567."""
    return f"{sum(part[key] for part in figures['campaign']['parts'].values()):,}"


def campaign_share(figures: Figures) -> str:
    """The scale of most parts, and of those that had another: 100% (soak: 10%)."""
    scales = {name: part["scale"] for name, part in figures["campaign"]["parts"].items()}
    usual = statistics.mode(scales.values())
    others = [f"{name}: {scale:.0%}" for name, scale in scales.items() if scale != usual]
    return f"{usual:.0%} ({', '.join(others)})" if others else f"{usual:.0%}"


def cell(figures: Figures, part: str, key: Cell) -> Mapping[str, Row]:
    """The systems of one cell."""
    return by_cell(figures[part]["rows"])[key]


def by_round(figures: Figures, part: str, key: Cell, ours: str, other: str) -> Ratio | None:
    """What one system reached for each of the other in the same round."""
    systems = cell(figures, part, key)
    return ratio(systems[ours]["rounds"], systems[other]["rounds"])


def batched(figures: Figures, part: str, model: str) -> Ratio | None:
    """The largest batches of a part against batch 1."""
    single, *_, largest = cell(figures, part, (model, 64)).values()
    return ratio(largest["rounds"], single["rounds"])


def range_720(figures: Figures, system: str, other: str, part: str = "vision") -> str:
    """The lowest and the highest of the medians over the cells with the 720x720 picture."""
    cells = [systems for (workload, _), systems in by_cell(figures[part]["rows"]).items() if workload == "720"]
    ratios = [against(systems, systems[system])[other] for systems in cells if system in systems]
    medians = [ratio_of_cell.median for ratio_of_cell in ratios if ratio_of_cell]
    return " to ".join(dict.fromkeys(f"{median:.1f}" for median in (min(medians), max(medians))))


def least(figures: Figures, part: str) -> str:
    """The least that ours gives for each answer of a peer, over the peers and the cells."""
    cells = by_cell(figures[part]["rows"]).values()
    found = [
        ratio(systems[FP32]["rounds"], systems[name]["rounds"]) for systems in cells for name in systems if kind(name) == "peer"
    ]
    return number(min(each.median for each in found if each))


PEER_NAMES = {"litserve": "LitServe", "fastapi": "FastAPI", "mosec": "Mosec", "ray": "Ray Serve", "triton": "Triton"}
PEER_NAMES |= {"bentoml": "BentoML", "mlserver": "MLServer"}


def processes(figures: Figures) -> str:
    """The processes that our fp32 and the others had."""
    counts = {given["processes"] for name, given in figures["vision"]["settings"].items() if name != "stock-defaults"}
    return f"{' or '.join(map(str, sorted(counts)))} processes each"


def peers(figures: Figures) -> str:
    """The peers that were measured, in words."""
    systems = next(iter(by_cell(figures["vision"]["rows"]).values()))
    *names, last = (shown for name, shown in PEER_NAMES.items() if name in systems)
    return f"{', '.join(names)} and {last}"


def our_fastest(figures: Figures, part: str = "vision") -> str:
    """The systems of ours that are the fastest in some cell, as `openvino-int8`."""
    rows = [fastest(systems, "ours") for systems in by_cell(figures[part]["rows"]).values()]
    return ", ".join(dict.fromkeys(row["system"].removeprefix("slotwise-") for row in rows if row))


def p99_to_p50(figures: Figures) -> str:
    """How far bf16's slowest answers are from its usual ones."""
    row = cell(figures, "vision", ("720", 8))[BF16]
    return number(row["p99_ms"] / row["p50_ms"])


def tuned(figures: Figures, part: str, who: str) -> list[float]:
    """The rounds of a tuning's winner, default or profile."""
    (entry,) = [entry for entry in figures[part]["finalists"] if entry["setting"] == figures[part][who]]
    return [load["req_s"] for load in entry["rounds"]]


def won_by(figures: Figures, part: str, other: str) -> Ratio | None:
    """The winner of a tuning against its default or profile."""
    return ratio(tuned(figures, part, "winner"), tuned(figures, part, other))


def winner_rounds(figures: Figures) -> str:
    """The winner's best round against its worst."""
    rounds = tuned(figures, "tune-mnist-8", "winner")
    return f"{max(rounds) / min(rounds):.1f}"


def spread(rounds: Ratio | None) -> str:
    """The lowest and the highest round."""
    return f"{number(rounds.low)} to {number(rounds.high)}" if rounds else NONE


def machine(figures: Figures) -> str:
    """The machine of the vision figures."""
    about = figures["vision"]["machine"]
    has = [name for name in ("avx2", "avx512", "vnni", "amx", "bf16") if about[name]]
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items() if version)
    return f"{about['cores']} cores of an {about['cpu']} with {', '.join(has)}, Python {about['python']}, {packages}"


def on_hosts(figures: Figures, model: str) -> str:
    """The setting of a model on all hosts."""
    workloads = (workload.partition(", ") for workload, _ in by_cell(figures["hosts"]["rows"]))
    return next(setting for name, _, setting in workloads if name == model)


def on_own_host(figures: Figures, model: str, clients: int) -> Ratio | None:
    """Our own host against TorchServe, both alone."""
    key = next(key for key in by_cell(figures["own_host"]["rows"]) if key[0].startswith(model) and key[1] == clients)
    return by_round(figures, "own_host", key, "own host", "torchserve")


def gateways_of_own_host(figures: Figures) -> str:
    """Our own host behind its gateway against TorchServe behind its own: the lowest and the highest median over the rows."""
    keys = by_cell(figures["own_host"]["rows"])
    ratios = [by_round(figures, "own_host", key, "own host, gateway", "torchserve, gateway") for key in keys]
    medians = [one.median for one in ratios if one]
    return f"{number(min(medians))} to {number(max(medians))}"


def rows_ratio(figures: Figures, ours: Cell, other: Cell, system: str = "mnist") -> Ratio | None:
    """One system in two cells of the echo part."""
    return ratio(cell(figures, "echo", ours)[system]["rounds"], cell(figures, "echo", other)[system]["rounds"])


def replicas_of_a_proxy(figures: Figures) -> str:
    """How many replicas of ResNet-18 one proxy is enough for."""
    each = next(row["rps"] for row in figures["scale"]["rows"] if (row["model"], row["replicas"]) == ("resnet18", 1))
    return str(int(figures["scale"]["proxy"]["proxy_rps"] // each))


VALUES: dict[str, Callable[[Figures], str | Ratio | None]] = {
    "vision.machine": machine,
    "vision.fp32.vs_stock": lambda f: range_720(f, FP32, "vs_stock"),
    "vision.fp32.vs_peer": lambda f: range_720(f, FP32, "vs_best_peer"),
    "vision.bf16.vs_stock": lambda f: range_720(f, BF16, "vs_stock"),
    "vision.bf16.vs_peer": lambda f: range_720(f, BF16, "vs_best_peer"),
    "vision-amx.bf16.vs_stock": lambda f: range_720(f, BF16, "vs_stock", "vision-amx"),
    "inference.least": lambda f: least(f, "inference"),
    "engines.least": lambda f: least(f, "engines"),
    "vision.processes": processes,
    "vision.peers": peers,
    "vision.fastest": our_fastest,
    "vision.bf16_vs_fp32.8": lambda f: by_round(f, "vision", ("720", 8), BF16, FP32),
    "vision.bf16_vs_fp32.32": lambda f: by_round(f, "vision", ("720", 32), BF16, FP32),
    "vision.bf16.p99_to_p50": p99_to_p50,
    "vision.raw.bf16": lambda f: number(cell(f, "vision", ("720", 8))["raw-openvino-bf16"]["rps"]),
    "vision.raw.fp32": lambda f: number(cell(f, "vision", ("720", 8))["raw-openvino-fp32"]["rps"]),
    "captions.batched": lambda f: batched(f, "captions", "captions"),
    "translation.places": lambda f: str(sum(f["translation"]["limits"].values())),
    "lite0.fastest": lambda f: our_fastest(f, "lite0"),
    "lite0.int8_vs_fp32.8": lambda f: by_round(f, "lite0", ("720", 8), INT8, FP32),
    "text.translation": lambda f: batched(f, "text", "translation"),
    "text.captions": lambda f: batched(f, "text", "captions"),
    "gateway.vs_direct": lambda f: by_round(f, "gateway", ("fp32", 8), "gateway", "direct"),
    "gateway.answered": lambda f: str(f["gateway"]["overload"]["requests"] - f["gateway"]["overload"]["errors"]["429"]),
    **{f"hosts.{model}": lambda f, model=model: on_hosts(f, model) for model in ("mnist", "resnet18")},  # type: ignore[misc]
    **{f"campaign.{key}": partial(campaign_total, key) for key in ("cases", "requests", "innocents", *CAMPAIGN_BROKEN)},
    **{
        f"own_host.{model}.{clients}": lambda f, model=model, clients=clients: on_own_host(f, model, clients)  # type: ignore[misc]
        for model, clients in (("mnist", 1), ("mnist", 8), ("mnist", 32), ("mnist", 64), ("resnet18", 8))
    },
    "own_host.gateways": gateways_of_own_host,
    "nodes.line": lambda f: "{a_ms:g}·n + {b_ms:g}".format(**f["nodes"]["line"]),
    "scale.resnet18_replicas": replicas_of_a_proxy,
    "campaign.share": campaign_share,
    "disasters.innocent_lost": lambda f: str(len(f["disasters"]["lost"])),
    "tune-mnist-64.vs_default": lambda f: won_by(f, "tune-mnist-64", "default"),
    "tune-mnist-64.vs_profile": lambda f: won_by(f, "tune-mnist-64", "profile"),
    "tune-mnist-8.vs_default": lambda f: won_by(f, "tune-mnist-8", "default"),
    "tune-mnist-8.vs_profile": lambda f: won_by(f, "tune-mnist-8", "profile"),
    "tune-mnist-8.winner_rounds": winner_rounds,
    "echo.mnist_vs_echo": lambda f: by_round(f, "echo", LARGE, "mnist", "echo"),
    "echo.mnist_vs_echo.spread": lambda f: spread(by_round(f, "echo", LARGE, "mnist", "echo")),
    "echo.bare_mnist_vs_echo": lambda f: by_round(f, "echo", LARGE, "bare_mnist", "echo"),
    "echo.mnist_vs_bare_mnist": lambda f: by_round(f, "echo", LARGE, "mnist", "bare_mnist"),
    "echo.slotwise_echo_vs_echo": lambda f: by_round(f, "echo", LARGE, "slotwise_echo", "echo"),
    "echo.small_vs_single": lambda f: rows_ratio(f, SMALL, SINGLE),
    "echo.single.echo": lambda f: number(cell(f, "echo", SINGLE)["echo"]["rps"]),
    "echo.single.slotwise_echo": lambda f: number(cell(f, "echo", SINGLE)["slotwise_echo"]["rps"]),
}
