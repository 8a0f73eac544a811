"""Write the report of a tuning: one HTML file with everything inside, the same figure as PNG, the same numbers as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.bench.load import LoadResult
from slotwise.bench.report import from_zero, line_text, panels
from slotwise.tune.finals import figure
from slotwise.tune.space import TrialSetting
from slotwise.tune.tuning import TuneResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.answer { font-size: 1.15rem; border-left: .3rem solid #3a7; padding: .2rem 1rem; }
.missed { border-color: #c63; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
tr.won { font-weight: 600; }
figure { margin: 1rem 0; background: #fff; } figure svg { width: 100%; height: auto; }
code { background: #8882; padding: .1rem .3rem; }
"""


def write(outcome: TuneResult, folder: Path, command: str) -> Path:
    """Write index.html, tune.png and tune.json into `folder`; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    drawing = draw(outcome)
    drawing.savefig(folder / "tune.png", dpi=150)
    (folder / "tune.json").write_text(json.dumps({"command": command, **outcome.as_json()}, indent=2, default=str), "utf-8")
    page = folder / "index.html"
    page.write_text(html(outcome, svg(drawing), command), "utf-8")
    return page


def svg(drawing: Figure) -> str:
    """The figure as an SVG element to put into a page."""
    target = io.StringIO()
    drawing.savefig(target, format="svg")
    text = target.getvalue()
    return text[text.index("<svg") :]


def html(outcome: TuneResult, drawing: str, command: str) -> str:
    """The whole page."""
    request, goal = outcome.request, outcome.request.goal
    winner = outcome.winner
    what = "most answers a second" if goal.objective == "throughput" else "lowest p99"
    named = winner is None or outcome.reason.startswith(str(winner))
    answer = f"{outcome.reason}." if named else f"{winner}: {outcome.reason}."
    about = outcome.machine
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    line = f"<p>On one thread {escape(line_text(outcome.service.line))}.</p>" if outcome.service else ""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(request.model)}: tuned</title><style>{STYLE}</style>
<h1>{escape(request.model)}: {what} with {goal.clients} clients, p99 within {goal.slo_p99_ms:g} ms, no error</h1>
<p class="answer{"" if winner else " missed"}">{escape(answer)}</p>
{_finalists(outcome)}
<figure>{drawing}</figure>
{line}
{_front(outcome)}
<h2>All trials</h2>
{_trials(outcome)}
<h2>Again</h2>
<p><code>{escape(command)}</code></p>
<p>{escape(str(about.get("processor")))}, {about.get("cores")} cores, {escape(str(about.get("server")))}, profile
{escape(str(about.get("profile")))}; {escape(versions)}; took {outcome.took_s:.0f} s.</p>
</html>
"""


def _finalists(outcome: TuneResult) -> str:
    if outcome.decision is None:
        return ""
    rows, ratios = [], outcome.decision.ratios
    for f in sorted(outcome.decision.finalists, key=lambda f: -f.median("req_s")):
        names = {outcome.default: " (registered without parameters)", outcome.profile: " (the profile)"}
        name = f"{f.setting}{names.get(f.setting, '')}"
        cells = [
            name,
            f"{f.median('req_s'):.4g}",
            str(ratios.get(f.setting, "")),
            f"{f.median('p99_ms'):.4g}",
            _batch(f.median("mean_batch")),
        ]
        rows.append(([*cells, str(f.lost)], f.setting == outcome.winner))
    title = f"<h2>The final: {outcome.request.rounds} rounds in turn, medians</h2>"
    return title + _table(["setting", "answers/s", "winner to it, 95% interval", "p99 ms", "batch", "lost"], rows)


def _front(outcome: TuneResult) -> str:
    """What another target would have given: the settings that no other one beats in both numbers."""
    trials = [(t.setting, t.measured) for t in outcome.trials if t.state == "measured" and t.measured and not t.measured.lost]
    if not trials:
        return ""
    rows = [
        ([f"{result.p99_ms:.4g}", f"{result.req_s:.4g}", str(setting)], setting == outcome.winner)
        for setting, result in front(trials)
    ]
    warm = " ".join(figure(result.req_s) for result in outcome.warm_up)
    return (
        "<h2>With another target</h2>"
        + _table(["a p99 within, ms", "answers/s at most", "setting (one measurement each)"], rows)
        + (f"<p>The server's warm-up, round by round: {warm} answers a second.</p>" if warm else "")
    )


def front(trials: Sequence[tuple[TrialSetting, LoadResult]]) -> list[tuple[TrialSetting, LoadResult]]:
    """The trials that no other one beats in both numbers, the lowest p99 first."""
    best: list[tuple[TrialSetting, LoadResult]] = []
    for setting, result in sorted(trials, key=lambda trial: trial[1].p99_ms):
        if not best or result.req_s > best[-1][1].req_s:
            best.append((setting, result))
    return best


def _trials(outcome: TuneResult) -> str:
    rows = []
    for i, t in enumerate(outcome.trials, 1):
        m = t.measured
        numbers = [figure(m.req_s), figure(m.p50_ms), figure(m.p99_ms), _batch(m.mean_batch), str(m.lost)] if m else [""] * 5
        rows.append(([f"{i}. {t.setting}", *numbers, t.note or t.state], t.setting == outcome.winner))
    return _table(["setting", "answers/s", "p50 ms", "p99 ms", "batch", "lost", ""], rows)


def _batch(mean: float) -> str:
    return f"{mean:.1f}" if mean else ""  # wrk and ab do not see batch sizes


def _table(columns: Sequence[str], rows: Sequence[tuple[list[str], bool]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr{' class=won' if won else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells, won in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def draw(outcome: TuneResult) -> Figure:
    """Throughput over clients by batch size, over delay, throughput against p99, and the handler's line."""
    drawing, axes = panels(4, columns=2)
    _by_clients(axes[0], outcome)
    axes[1].plot([ms for ms, _ in outcome.by_delay], [m.req_s for _, m in outcome.by_delay], "o-")
    axes[1].set(xlabel="max_batch_delay, ms", ylabel="answers a second", title="over the delay")
    _pareto(axes[2], outcome)
    if outcome.service:
        line = outcome.service.line
        axes[3].plot([t.n for t in outcome.timed], [t.batch_ms for t in outcome.timed], "o")
        axes[3].plot([0, 32], [line.at(0), line.at(32)], "-", label=f"{line.a_ms:.3g} n + {line.b_ms:.3g}")
        axes[3].legend()
    axes[3].set(xlabel="batch size n", ylabel="ms a batch, one thread", title="the handler alone")
    from_zero(axes)
    return drawing


def _by_clients(axis: Any, outcome: TuneResult) -> None:
    for size in sorted({size for size, _ in outcome.by_clients}):
        points = [m for n, m in outcome.by_clients if n == size]
        axis.plot([m.clients for m in points], [m.req_s for m in points], "o-", label=f"batch size {size}")
    axis.set(xlabel="clients", ylabel="answers a second", title="over the clients")
    if outcome.by_clients:
        axis.legend()


def _pareto(axis: Any, outcome: TuneResult) -> None:
    trials = [(t.setting, t.measured) for t in outcome.trials if t.measured and t.measured.req_s]
    axis.plot([m.p99_ms for _, m in trials], [m.req_s for _, m in trials], "o", alpha=0.5, label="trials")
    unbeaten = [result for _, result in front(trials)]
    axis.plot([m.p99_ms for m in unbeaten], [m.req_s for m in unbeaten], "-", label="front")
    for result in [result for setting, result in trials if setting == outcome.winner]:
        axis.plot([result.p99_ms], [result.req_s], "*", markersize=14, label="winner")
    axis.axvline(outcome.request.goal.slo_p99_ms, color="k", linestyle=":", label="target")
    axis.set(xlabel="p99, ms", ylabel="answers a second", title="throughput and p99", xlim=(0, None))
    axis.legend()
