"""Profiles: batch settings, worker settings and server keys in one TOML file.

A profile's keys stand in four sections, [registration], [worker], [server] and [ray], and share one namespace: `--set
KEY=VALUE` and a model.toml's `[profiles.NAME]` name a key without its section. A key's value is taken from the first of
these that has it:

    --set KEY=VALUE
    BATCH_SIZE, WORKERS, MAX_BATCH_DELAY (or LINGER_MS) in the environment (for containers)
    [profiles.NAME] of a model's model.toml
    profiles/NAME.toml
    the default of the key

`"auto"` (auto_values) is replaced in each place by what it stands for.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import read_toml
from slotwise.profiles import auto_values
from slotwise.profiles.profile_keys import ProfileKeys, section_of
from slotwise.profiles.variables import from_environment
from slotwise.worker.environment.cores import available_cores

SECTIONS = ("registration", "worker", "server", "ray")
UNITS = {"ms": "milliseconds", "s": "seconds", "bytes": "bytes"}


class Profile(ProfileKeys):
    """One profile, its sections side by side; `load_profile` makes it. A wrong key or value raises SlotwiseError."""

    _source: str = PrivateAttr("")
    _explicit: dict[str, Any] = PrivateAttr(default_factory=dict)  # --set and environment: stronger than a model's wishes
    _cores: int = PrivateAttr(0)  # threads are checked against these; 0: not at all
    _chosen: frozenset[str] = PrivateAttr(frozenset())  # the keys that are "auto"

    def but(self, changes: Mapping[str, Any], source: str) -> Profile:
        """The same profile with some keys changed. source: what an error names as the place to correct."""
        before = self.model_dump()
        changed = _parse({**before, **auto_values.as_numbers(changes, before, source)}, source)
        changed._chosen = frozenset((self._chosen - changes.keys()) | auto_values.chosen(changes))
        changed._source, changed._explicit, changed._cores = self._source, self._explicit, self._cores
        _check_threads(changed, source)
        return changed

    def explicitly(self, changes: Mapping[str, Any], source: str) -> Profile:
        """As `but`, with changes that are stronger than any model's model.toml."""
        changed = self.but(changes, source)
        changed._explicit = {**self._explicit, **changes}
        return changed

    def for_model(self, wishes: Mapping[str, Any], source: str = "model.toml") -> Profile:
        """The profile as one model wants it. wishes: the `[profiles.NAME]` of its model.toml."""
        where = f"{source}: [profiles.{self.name}]"
        for key in wishes:
            if section_of(key) == "server":
                raise SlotwiseError(f"{where}: {key} is for the whole server", f"set it in {self._source or 'the profile'}")
        return self.but({**wishes, **self._explicit}, where) if wishes else self

    def on(self, kind: str) -> Profile:
        """The profile as a server of this kind reads it: on Ray its replicas are the workers.

        Raises SlotwiseError for an "auto" that it cannot choose.
        """
        self.check_kind(kind)
        replicas = self.num_replicas or (self.min_replicas if self.max_replicas else 0)
        if kind != "ray" or not replicas or "initial_workers" in self._explicit:
            return self
        return self.but({"initial_workers": replicas}, f"{self._source}: num_replicas")

    @property
    def chosen(self) -> frozenset[str]:
        """The keys that are "auto", for our own host to choose."""
        return self._chosen

    def check_kind(self, kind: str) -> None:
        """Raise SlotwiseError where a key is "auto" that a server of this kind cannot choose."""
        auto_values.check_kind(kind, self.chosen)

    def takes_registrations(self, kind: str) -> bool:
        """Whether a server of this kind registers models while it runs, not only at its start."""
        return self.model_api or kind != "torchserve"

    def most_workers(self, cores: int) -> int:
        """How many workers a model may come to have on our own host, which has so many cores for it."""
        by_load = 0 if self.workers_by_load == "off" else self.max_workers or cores
        return max(self.initial_workers, by_load)

    def registration(self) -> dict[str, float]:
        """The parameters for the management API: batch_size, max_batch_delay (ms), initial_workers, response_timeout (s)."""
        return {
            "batch_size": self.batch_size,
            "max_batch_delay": self.max_batch_delay_ms,
            "initial_workers": self.initial_workers,
            "response_timeout": self.response_timeout_s,
        }

    def worker(self) -> dict[str, Any]:
        """The settings for a worker: the [worker] keys, how many workers share the cores, and the server's limits."""
        keys = (*self.section("worker"), "response_timeout_s", "max_response_bytes")
        return {**{key: getattr(self, key) for key in keys}, "workers": self.initial_workers}

    def environment(self, overrides: Iterable[str]) -> dict[str, str]:
        """The environment of a server's workers. overrides: the keys that `--set` and the environment set."""
        worker = self.worker()
        overridden = {"workers" if key == "initial_workers" else key for key in overrides}
        return {
            "SLOTWISE_PROFILE": self.name,
            "SLOTWISE_WORKER": json.dumps(worker),
            "SLOTWISE_OVERRIDES": json.dumps({key: value for key, value in worker.items() if key in overridden}),
        }

    def __repr__(self) -> str:
        return f"Profile({self.name!r}, {self._source!r}, {self._explicit})"


def load_profile(
    name: str,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    cores: int | None = None,
) -> Profile:
    """The profile of that name (or .toml file), with the changes of the environment and of `overrides` (--set).

    environ None: this process's. cores: what workers x threads are checked against; None: this machine's, 0: unchecked.
    """
    path = project.profile_file(name)
    said = _flat(read_toml(path), path)
    profile = _parse(auto_values.as_numbers(said, {}, str(path)), str(path))
    profile._chosen = frozenset(auto_values.chosen(said))
    profile._source = str(path)
    profile._cores = available_cores() if cores is None else cores
    _check_threads(profile, str(path))
    from_variables = from_environment(os.environ if environ is None else environ)
    if from_variables:
        profile = profile.explicitly(_typed(from_variables, "environment"), "environment")
    return profile.explicitly(_typed(overrides, "--set"), "--set") if overrides else profile


def _flat(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The TOML file's sections as one dict; a key outside its section is an error."""
    flat: dict[str, Any] = {"name": path.stem, "description": data.pop("description", "")}
    for section, keys in data.items():
        if section not in SECTIONS or not isinstance(keys, dict):
            belongs = section_of(section)
            hint = f"it belongs in [{belongs}]" if belongs else f"sections: {', '.join(f'[{name}]' for name in SECTIONS)}"
            raise SlotwiseError(f"{path}: unknown section or key {section!r}", hint)
        for key, value in keys.items():
            belongs = section_of(key)
            if belongs is None:
                raise _unknown(key, f"{path}: [{section}]", Profile.section(section))
            if belongs != section:
                raise SlotwiseError(f"{path}: [{section}]: {key} is not a key of this section", f"it belongs in [{belongs}]")
            flat[key] = value
    return flat


def _typed(texts: Mapping[str, str], source: str) -> dict[str, Any]:
    """`--set` texts as TOML values: 8, true, 0.5; everything else stays text."""
    typed: dict[str, Any] = {}
    for key, text in texts.items():
        if section_of(key) is None:
            raise _unknown(key, source, [known for known in Profile.model_fields if section_of(known)])
        try:
            typed[key] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):  # no TOML, or a number of 5000 digits
            typed[key] = text.strip()
    return typed


def _parse(data: Mapping[str, Any], source: str) -> Profile:
    """A Profile; SlotwiseError, one line naming source and key, for the first value that is wrong."""
    try:
        return Profile.model_validate(dict(data))
    except ValidationError as failed:
        first = failed.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise _unknown(key, source, [known for known in Profile.model_fields if section_of(known)]) from failed
        unit = UNITS.get(key.rpartition("_")[2])
        field = Profile.model_fields[key]
        hint = field.description or ""
        if unit:
            hint += f", in {unit}" if field.annotation is not int else f", a whole number of {unit}"
        problem = first["msg"].replace("Input should", "must", 1)
        raise SlotwiseError(f"{source}: {key}: {problem}, not {data[key]!r}", hint) from failed


def _unknown(key: str, source: str, known: list[str]) -> SlotwiseError:
    close = difflib.get_close_matches(key, known, 1, 0.55)
    unit = UNITS.get(close[0].rpartition("_")[2]) if close else None
    hint = f"did you mean {close[0]}{f' (in {unit})' if unit else ''}?" if close else f"keys: {', '.join(known)}"
    return SlotwiseError(f"{source}: unknown key {key!r}", hint)


def _check_threads(profile: Profile, source: str) -> None:
    """Raise SlotwiseError for more threads than cores. One thread a worker is always allowed: no worker can have fewer."""
    workers = max(profile.initial_workers, profile.max_workers if profile.workers_by_load == "auto" else 0)
    if profile._cores and profile.threads > 1 and workers * profile.threads > profile._cores:
        raise SlotwiseError(
            f"{source}: threads: {workers} workers x {profile.threads} threads are more than the {profile._cores} cores here",
            "threads = 0 gives every worker its share of the cores",
        )
