"""TorchServe's command line, taken apart."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arguments:
    """What the command line says. words: it all, for the process that serves."""

    words: tuple[str, ...] = ()
    stop: bool = False
    version: bool = False
    foreground: bool = False
    ts_config: str = ""
    model_store: str = ""
    workflow_store: str = ""
    models: tuple[str, ...] = ()
    log_config: str = ""
    no_config_snapshots: bool = False
    plugins_path: str = ""
    disable_token_auth: bool = False
    enable_model_api: bool = False
    no_guard: bool = False

    def keys(self) -> dict[str, str]:
        """The keys of config.properties that it sets."""
        keys = {"model_store": self.model_store, "load_models": ",".join(self.models)}
        keys |= {"disable_token_authorization": "true"} if self.disable_token_auth else {}
        keys |= {"enable_model_api": "true"} if self.enable_model_api else {}
        return {key: value for key, value in keys.items() if value}

    def remarks(self) -> list[str]:
        """A line for every option that has no meaning here."""
        lines = {
            "--workflow-store": (self.workflow_store, "workflows are not there: two models are called one after the other"),
            "--plugins-path": (self.plugins_path, "plug-ins are Java's"),
            "--log-config": (self.log_config, "a log4j2.xml is Java's; LOG_LOCATION and METRICS_LOCATION hold"),
        }
        return [f"{option} has no meaning here ({why})" for option, (value, why) in lines.items() if value]


def parsed(words: Sequence[str]) -> Arguments:
    """What these words say. Ends the program with 2 where they are no command line of TorchServe's."""
    parser = argparse.ArgumentParser(prog="torchserve", description="TorchServe's command line, served by Slotwise")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-v", "--version", action="store_true", help="Return the version")
    what.add_argument("--start", action="store_true", help="Start the model server")
    what.add_argument("--stop", action="store_true", help="Stop the model server")
    parser.add_argument("--ts-config", default="", help="Configuration file for the model server")
    parser.add_argument("--model-store", default="", help="Where archives are loaded from")
    parser.add_argument("--workflow-store", default="", help="No meaning here: there are no workflows")
    parser.add_argument("--models", nargs="+", default=[], metavar="[NAME=]ARCHIVE", help="Models to load: archives, URLs, all")
    parser.add_argument("--log-config", default="", help="No meaning here: a log4j2.xml is Java's")
    parser.add_argument("--cpp-log-config", default="", help=argparse.SUPPRESS)
    parser.add_argument("--foreground", action="store_true", help="Run in the foreground; with --stop: wait for the end")
    parser.add_argument("--no-config-snapshots", "--ncs", action="store_true", help="Store no snapshots")
    parser.add_argument("--plugins-path", "--ppath", default="", help="No meaning here: plug-ins are Java's")
    parser.add_argument("--disable-token-auth", "--dt", action="store_true", help="Anybody may call")
    parser.add_argument("--enable-model-api", action="store_true", help="Models can be registered while it runs")
    parser.add_argument(
        "--no-guard", action="store_true", help="Ours: other tools' handlers get whole batches, and fail as a whole"
    )
    said = vars(parser.parse_args(list(words)))
    del said["start"], said["cpp_log_config"]
    return Arguments(**{**said, "models": tuple(said["models"])}, words=tuple(words))
