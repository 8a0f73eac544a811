"""What TorchServe's front can be told, each key alone, where a model costs little; and one registration for every load.

Every variant is a server of its own with MNIST registered in three sizes of batches. All but the one that is asked are stopped.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from measuring.alone import OneAtATime
from measuring.rounds import Cell, Reading, Readings, in_turn, rows
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.bodies import examples
from slotwise.console import say
from slotwise.profiles.render import JVM
from slotwise.server.java import start_module
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting

Server = Callable[..., Any]  # parts.server
AS_IT_IS = "as slotwise starts it"
VARIANTS: Mapping[str, Mapping[str, str]] = {  # keys of a profile, or of TorchServe's config.properties (and of the JVM)
    AS_IT_IS: {},
    "number_of_netty_threads=1": {"number_of_netty_threads": "1"},
    "netty_client_threads=1": {"netty_client_threads": "1"},
    "use_native_io=false (no epoll)": {"use_native_io": "false"},
    "prefer_direct_buffer=true": {"prefer_direct_buffer": "true"},
    "metrics_mode=log": {"metrics_mode": "log"},
    "log_level=INFO, request_log": {"log_level": "INFO", "request_log": "true"},
    "-XX:+UseSerialGC": {JVM: JVM.replace("Parallel", "Serial")},
    "-XX:TieredStopAtLevel=1": {JVM: f"{JVM} -XX:TieredStopAtLevel=1"},
}
OF_A_PROFILE = ("number_of_netty_threads", "metrics_mode", "log_level", "request_log")
LANES = {
    f"{size}, {delay} ms" if size > 1 else "1": TrialSetting(size, delay, 2, 1, "onnxruntime", "fp32")
    for size, delay in ((1, 1), (4, 1), (16, 1), (16, 0))
}
AT_ITS_LOAD = {8: LANES["4, 1 ms"], 64: LANES["16, 1 ms"]}  # clients: what the tuner found for them
LANE_CLIENTS = (1, 8, 64)


@contextmanager
def told(keys: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile a server that is started gets these keys in its config.properties; JVM in place of the JVM's own flags."""
    plain = start_module.render_properties

    def render(*given: Any, **named: Any) -> str:
        text = plain(*given, **named)
        flags = keys.get(JVM, JVM)
        more = "".join(f"{key}={value}\n" for key, value in keys.items() if key != JVM)
        return text.replace(JVM, flags, 1) + more

    start_module.render_properties = render
    try:
        yield
    finally:
        start_module.render_properties = plain


def measure(options: Namespace, info: ArchiveInfo, server: Server, tool: str) -> dict[str, Any]:
    """Rounds in turn of every variant, with as many clients as its batches were found for; then every lane at every load."""
    bodies = [body for body in examples(str(info.path)) if body.name.endswith(".f32")]
    with ExitStack() as stack:
        records, benches = {}, {}
        for i, (name, keys) in enumerate(VARIANTS.items()):
            say(f"starting {name}")
            changes = {key: value for key, value in keys.items() if key in OF_A_PROFILE}
            with told({key: value for key, value in keys.items() if key not in OF_A_PROFILE}):
                records[name] = stack.enter_context(server(name=f"front-{i}", **changes))
            benches[name] = stack.enter_context(LiveBench(records[name], info, bodies, tool=tool))
            benches[name].keep_ready(list(LANES.values()))
            benches[name].warm_up(AT_ITS_LOAD[64], 64)
        turns = stack.enter_context(OneAtATime({name: record.pid for name, record in records.items()}))

        def ask(cell: Cell, name: str) -> Reading:
            with turns.running(name):
                return Reading.of(benches[name].measure(AT_ITS_LOAD[cell[1]], cell[1], options.seconds))

        def ask_lane(cell: Cell, lane: str) -> Reading:
            with turns.running(AS_IT_IS):
                return Reading.of(benches[AS_IT_IS].measure(LANES[lane], cell[1], options.seconds))

        cells = [("mnist", clients) for clients in AT_ITS_LOAD]
        readings: Readings = in_turn(cells, list(VARIANTS), ask, options.rounds, say=say, warm_ups=1)
        lanes = [("lane", clients) for clients in LANE_CLIENTS]
        of_lanes = in_turn(lanes, list(LANES), ask_lane, options.rounds, say=say, warm_ups=1)
    return {"rows": rows(readings, detail=True), "lanes": rows(of_lanes, detail=True)}
