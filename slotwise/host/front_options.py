"""What the options of `slotwise gateway` mean, from their JSON: where it listens, what it allows, and whom it lets in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.frontend.frontend import GatewayOptions
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.http.request_head import HeadLimits
from slotwise.frontend.listening import ListenAddress
from slotwise.frontend.observing.watching import WatchOptions
from slotwise.frontend.serve import Access, FrontSettings


def listen_address(options: Mapping[str, Any]) -> ListenAddress:
    """Where it listens."""
    return ListenAddress(
        options["host"], options["port"], options["translation_port"], options["drain_delay_s"], options["grpc_port"]
    )


def front_settings(options: Mapping[str, Any], restarts: int, own: str = "") -> FrontSettings:
    """All that a front is opened with. options: by the names of the command's parameters; all of them."""
    limits = ConnectionLimits(
        max_connections=options["max_connections"],
        max_connections_per_address=options["max_connections_per_address"],
        head=HeadLimits(options["max_head_bytes"], options["max_head_lines"]),
        head_timeout_s=options["head_timeout_s"],
        min_body_rate=options["min_body_rate"],
        max_pipelined=options["max_pipelined"],
    )
    access = Access(
        keys=_path(options["keys"]),
        public=tuple(options["public"] or ()),
        tls_cert=_path(options["tls_cert"]),
        tls_key=_path(options["tls_key"]),
        tls_client_ca=_path(options["tls_client_ca"]),
        hosts=tuple(options["allow_host"] or ()),
        connections=limits,
    )
    gateway = GatewayOptions(
        timeout_s=options["timeout_s"],
        max_memory_bytes=options["max_memory_mb"] * 2**20,
        in_flight=options["max_in_flight"],
        queued=options["max_queued"],
        hedge=options["hedge"],
        default_model=options["default_model"],
        max_form_fields=options["max_form_fields"],
        trusted_proxies=TrustedProxies(options["trusted_proxy"] or ()),
    )
    watched = ("remember", "access_log", "traces", "trace_share", "trace_slow_s")
    watch = WatchOptions(**{name: options[name] for name in watched})
    on_demand = options["multi_model"] is not None
    return FrontSettings(listen_address(options), gateway, access, on_demand, restarts, watch, options["log_format"], own)


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None
