"""Write k8s/grafana/*.json, the dashboards, from the metrics that scripts/metrics.py describes.

python scripts/dashboards.py             write them
python scripts/dashboards.py --check     exit with 1 where one is not what would be written
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "k8s" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, PER_ROW = 12, 8, 2
OF = 'model=~"$model"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """One panel. queries: what is asked, by its legend. unit: Grafana's word for it."""

    title: str
    unit: str
    queries: dict[str, str]
    description: str = ""


def quantile(share: float, histogram: str, by: str = "model", of: str = OF) -> str:
    """A quantile of a histogram over the last minutes."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({histogram}_bucket{{{of}}}{RATE})))"


def rate(counter: str, by: str = "model", of: str = OF) -> str:
    """So many a second."""
    return f"sum by ({by}) (rate({counter}{{{of}}}{RATE}))"


ANSWERS = Panel(
    "Answers a second, by status", "reqps", {"{{model}} {{status}}": rate("slotwise_requests_total", "model, status")}
)
TIMES = Panel(
    "From body read to answer",
    "s",
    {"{{model}} p50": quantile(0.5, "slotwise_request_seconds"), "{{model}} p99": quantile(0.99, "slotwise_request_seconds")},
)
FAILED = Panel(
    "Share of answers that failed",
    "percentunit",
    {
        "{{model}} 5xx": 'sum by (model) (rate(slotwise_requests_total{model=~"$model", status=~"5.."}[$__rate_interval])) '
        "/ on (model) " + rate("slotwise_requests_total"),
        "{{model}} shed": rate("slotwise_sheds_total") + " / on (model) " + rate("slotwise_requests_total"),
    },
)
WAITING = Panel(
    "In flight and waiting in the front",
    "short",
    {
        "{{model}} in flight": f"sum by (model) (slotwise_in_flight_requests{{{OF}}})",
        "{{model}} waits": f"sum by (model) (slotwise_queued_requests{{{OF}}})",
    },
)
WORKERS = Panel(
    "Workers that take requests",
    "short",
    {
        "{{model}} {{version}}": f"slotwise_host_ready_workers{{{OF}}}",
        "{{model}} {{version}} is to have": f"slotwise_host_wanted_workers{{{OF}}}",
    },
)
ASLEEP = Panel("Models that sleep", "short", {"{{model}} {{version}}": f"slotwise_host_asleep{{{OF}}}"})
MEMORY = Panel("Memory of workers", "bytes", {"{{model}} {{version}}": f"slotwise_host_worker_memory_bytes{{{OF}}}"})
ENDS = Panel(
    "Workers that ended, in 10 minutes",
    "short",
    {"{{model}} {{reason}}": f"sum by (model, reason) (increase(slotwise_host_worker_ends_total{{{OF}}}[10m]))"},
)
BATCHES = Panel(
    "Requests in an answer's batch",
    "short",
    {"{{model}} p50": quantile(0.5, "slotwise_batch_size"), "{{model}} p95": quantile(0.95, "slotwise_batch_size")},
)
STAGES = Panel(
    "A batch's stages",
    "ms",
    {
        f"{{{{ModelName}}}} {stage}": f'avg by (ModelName) ({stage}Time{{ModelName=~"$model"}})'
        for stage in ("Decode", "Inference", "Encode")
    },
)
OLDEST = Panel(
    "How long the oldest waits for a worker",
    "s",
    {"{{model}} {{version}}": f"slotwise_host_oldest_waiting_seconds{{{OF}}}"},
)
ENDED = Panel(
    "How requests ended",
    "reqps",
    {"{{model}} {{outcome}}": rate("slotwise_host_requests_total", "model, outcome")},
)
COST = Panel(
    "What a batch costs: each, and a request in it",
    "s",
    {"{{model}} {{part}}": f"slotwise_host_batch_cost_seconds{{{OF}}}"},
)
ERRORS = Panel(
    "Slots with an error, by status",
    "short",
    {"{{ModelName}} {{Code}}": f'sum by (ModelName, Code) (rate(SlotErrors{{ModelName=~"$model"}}{RATE}))'},
)
CUT = Panel(
    "Groups that were cut",
    "short",
    {"{{ModelName}}": 'sum by (ModelName) (rate(Bisections{ModelName=~"$model"}[$__rate_interval]))'},
)

DASHBOARDS: dict[str, tuple[str, Sequence[Panel]]] = {
    "overview": (
        "Slotwise: overview",
        (
            Panel("Server answers", "short", {"{{instance}}": "slotwise_server_up"}),
            ANSWERS,
            TIMES,
            FAILED,
            WAITING,
            WORKERS,
            MEMORY,
            ASLEEP,
            ENDS,
            Panel(
                "Trouble",
                "short",
                {
                    "{{model}} killers": f"sum by (model) (increase(slotwise_killers_total{{{OF}}}[10m]))",
                    "bodies refused": "sum (slotwise_convicted_bodies)",
                    "gateway restarts": "sum (slotwise_gateway_restarts)",
                },
            ),
        ),
    ),
    "model": (
        "Slotwise: one model",
        (
            ANSWERS,
            TIMES,
            BATCHES,
            Panel(
                "Batches: fill and padding",
                "percent",
                {
                    "{{ModelName}} fill": 'avg by (ModelName) (BatchFill{ModelName=~"$model"})',
                    "{{ModelName}} padding": 'avg by (ModelName) (PaddingShare{ModelName=~"$model"})',
                },
            ),
            STAGES,
            OLDEST,
            Panel(
                "Waiting, under suspicion, not ended",
                "short",
                {
                    "{{model}} waits": f"slotwise_host_waiting_requests{{{OF}}}",
                    "{{model}} aside": f"slotwise_host_aside_requests{{{OF}}}",
                    "{{model}} suspected": f"slotwise_host_suspected_requests{{{OF}}}",
                    "{{model}} open": f"slotwise_host_open_requests{{{OF}}}",
                },
            ),
            ENDED,
            COST,
            Panel("Batches a second", "short", {"{{model}}": rate("slotwise_host_batches_total")}),
            Panel(
                "Refused: no room, or too late",
                "reqps",
                {"{{model}} {{reason}}": rate("slotwise_host_refused_total", "model, reason")},
            ),
            Panel(
                'What linger = "auto" chose',
                "short",
                {"{{model}} {{reason}}": rate("slotwise_host_batch_choices_total", "model, reason")},
            ),
            Panel(
                'Why linger = "auto" let a worker wait, or not',
                "short",
                {"{{model}} {{reason}}": rate("slotwise_host_batch_waits_total", "model, reason")},
            ),
            Panel(
                "Changes of the number of workers by the load, in an hour",
                "short",
                {"{{model}} {{reason}}": f"sum by (model, reason) (increase(slotwise_host_worker_changes_total{{{OF}}}[1h]))"},
            ),
            ERRORS,
            CUT,
        ),
    ),
    "request": (
        "Slotwise: one request's way",
        (
            replace(TIMES, description="A point is one request: `slotwise trace` or your traces know its trace_id."),
            WAITING,
            OLDEST,
            COST,
            STAGES,
            BATCHES,
            CUT,
            ERRORS,
            ENDED,
            ENDS,
        ),
    ),
    "streams": (
        "Slotwise: streams",
        (
            Panel("Open streams", "short", {"{{model}}": f"sum by (model) (slotwise_open_streams{{{OF}}})"}),
            Panel("Pieces a second", "short", {"{{model}}": rate("slotwise_pieces_total")}),
            Panel(
                "To the first piece",
                "s",
                {
                    "{{model}} p50": quantile(0.5, "slotwise_first_piece_seconds"),
                    "{{model}} p99": quantile(0.99, "slotwise_first_piece_seconds"),
                },
            ),
            Panel("Between pieces", "s", {"{{model}} p99": quantile(0.99, "slotwise_between_pieces_seconds")}),
            Panel("Clients that did not read", "short", {"{{model}}": rate("slotwise_cut_off_readers_total")}),
        ),
    ),
    "rollout": (
        "Slotwise: roll-out",
        (
            Panel(
                "Answers a second, by model and status",
                "reqps",
                {"{{model}} {{status}}": rate("slotwise_requests_total", "model, status")},
                "A roll-out's archive is a model of its own name beside the old one.",
            ),
            TIMES,
            FAILED,
            BATCHES,
            WORKERS,
        ),
    ),
    "capacity": (
        "Slotwise: capacity",
        (
            WAITING,
            Panel(
                "How long the oldest waits",
                "s",
                {"{{model}}": f"max by (model) (slotwise_host_oldest_waiting_seconds{{{OF}}})"},
            ),
            Panel("Refused with 429", "reqps", {"{{model}}": rate("slotwise_sheds_total")}),
            Panel(
                "Memory for requests",
                "bytes",
                {"taken": "sum (slotwise_gateway_memory_bytes)", "budget": "sum (slotwise_gateway_memory_limit_bytes)"},
            ),
            Panel("Nobody was answered for", "s", {"{{instance}}": "slotwise_gateway_longest_block_seconds"}),
            Panel("Fill of batches", "percent", {"{{ModelName}}": 'avg by (ModelName) (BatchFill{ModelName=~"$model"})'}),
        ),
    ),
    "copies": (
        "Slotwise: TorchServe, MMS, Ray, Triton behind",
        (
            Panel(
                "Copies of requests",
                "reqps",
                {
                    "{{model}} retried": rate("slotwise_retries_total"),
                    "{{model}} hedged": rate("slotwise_hedges_total"),
                    "{{model}} hedge was first": rate("slotwise_hedge_wins_total"),
                    "{{model}} alone": rate("slotwise_alone_total"),
                },
            ),
            Panel("What hedges saved, seconds a second", "s", {"{{model}}": rate("slotwise_hedge_saved_seconds_total")}),
            Panel("Switches of servers", "short", {"{{instance}}": "increase(slotwise_swaps_total[1h])"}),
        ),
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana imports it."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"slotwise-{name}",
        "title": title,
        "tags": ["slotwise"],
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "model",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(slotwise_requests_total, model)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(i, panel) for i, panel in enumerate(panels)],
    }


def _panel(i: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": i + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": i % PER_ROW * WIDTH, "y": i // PER_ROW * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + k),
                "datasource": SOURCE,
                "expr": expr,
                "legendFormat": legend,
                "exemplar": "_bucket" in expr,
            }
            for k, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def main() -> int:
    """Write or check; the exit code."""
    from written_pages import write_or_check

    pages = {FOLDER / f"{name}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in DASHBOARDS}
    return write_or_check(pages, str(__doc__), "python scripts/dashboards.py")


if __name__ == "__main__":
    sys.exit(main())
