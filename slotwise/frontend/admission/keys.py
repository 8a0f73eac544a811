"""Who may ask: keys with names, the models that each may use, how often, and until when.

A key is 32 random bytes, printed once. Its SHA-256 stands in the file, and needs no salt: nobody can guess such a key. While a
key is rotated its name has two: the old one, which ends, and the new one. Limits are those of the name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from slotwise.backends.interface import Refused
from slotwise.errors import SlotwiseError
from slotwise.files.disk import check_regular, clear_partials, locked, write_secret
from slotwise.frontend.admission.key_rates import AccessKey, KeyRates

log = logging.getLogger("slotwise.gateway")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}").fullmatch
OWN = "slotwise"  # the name of the gateway's own key, by which the commands on its machine ask it for its state
SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch
MOST_WEIGHT, MOST_PRIORITY, MOST_AMOUNT = 100, 9, 1e15
LOOK_AGAIN_S, LOOK_FOR_UNKNOWN_S = 1.0, 0.05  # a key that is not known may have been written just now
FRESH_NS = 2_000_000_000  # a file system may count in seconds
Stamp = tuple[int, ...]


@dataclass
class KeyFile:
    """The keys of a file, read again when it changes; and the gateway's own, which stands in no file of keys."""

    file: Path
    own: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def __post_init__(self) -> None:
        clear_partials(self.file)
        self._own = AccessKey(OWN, _sha256(self.own))
        self.rates = KeyRates()
        self._keys: dict[bytes, AccessKey] = {}  # by digest
        self._stamp: Stamp = ()
        self._looked_at = 0.0
        self._read()

    def find(self, headers: Mapping[bytes, bytes]) -> AccessKey:
        """The key that a request carries. Raises Refused (401)."""
        given = headers.get(b"x-api-key", b"")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        digest = hashlib.sha256(given).digest()  # a digest that opens nothing tells nothing
        opened_by = self._current(LOOK_AGAIN_S).get(digest)
        if opened_by is None and given:
            opened_by = self._current(LOOK_FOR_UNKNOWN_S).get(digest)
        if opened_by is None or opened_by.ended:
            known = "this key has ended" if opened_by else "this key is not known"
            what = known if given else "this needs a key: Authorization: Bearer KEY, or x-api-key: KEY"
            raise Refused(401, what, extra=[(b"www-authenticate", b"Bearer")])
        return opened_by

    def permit(self, key: AccessKey, model: str) -> None:
        """Raise Refused (403, 429) where this key may not ask that model, or not now. It costs the key nothing."""
        if not key.opens(model):
            raise Refused(403, "this key may not use this model")
        self.rates.refuse_if_spent(key)

    def _current(self, look_again_s: float) -> dict[bytes, AccessKey]:
        """The keys as the file said so long ago at most; where it cannot be read, as it said before."""
        now = time.monotonic()
        if now - self._looked_at >= look_again_s:
            self._looked_at = now
            if _stamp_of(self.file) != self._stamp:
                try:
                    self._read()
                except SlotwiseError as error:
                    log.error("%s; the keys from before go on working", error)
        return self._keys

    def _read(self) -> None:
        self._looked_at = time.monotonic()
        keys, self._stamp = _read_stamped(self.file)
        self._keys = {bytes.fromhex(key.sha256): key for key in (*keys, self._own)}
        self.rates.keep({key.name for key in keys})


def read(file: Path) -> list[AccessKey]:
    """The keys in a file. Raises SlotwiseError."""
    return _read_stamped(file)[0]


def _read_stamped(file: Path) -> tuple[list[AccessKey], Stamp]:
    """The keys in a file, and what it was *before* they were read: a change while they are read is another stamp."""
    try:
        check_regular(file)
        with file.open("rb") as stream:
            stamp = _stamp(os.fstat(stream.fileno()))
            entries = json.loads(stream.read())["keys"]
        keys_read = [AccessKey(**{**entry, "models": tuple(entry.get("models", ()))}) for entry in entries]
    except FileNotFoundError:
        raise SlotwiseError(f"there is no file of keys {file}", f"{_command('add', 'NAME', file)} makes one") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise SlotwiseError(f"the keys in {file} cannot be read: {error}", "`slotwise key add` writes such a file") from error
    for entry, key in zip(entries, keys_read, strict=True):
        if type(key.sha256) is not str or not SHA256(key.sha256):
            raise SlotwiseError(f"{file} has a key without its SHA-256", "`slotwise key add` writes such a file")
        models = entry.get("models", [])
        texts = type(models) is list and all(type(model) is str for model in models)
        if type(key.name) is not str or key.name == OWN or not texts:
            what = f"{file}: a name must be a text other than {OWN}, models a list of texts"
            raise SlotwiseError(what, "`slotwise key add` writes such a file")
        _check(key, f"{file}: {key.name}")
    return keys_read, stamp


def _check(key: AccessKey, whose: str) -> None:
    """Raise SlotwiseError where one of its numbers is none that it may be."""
    wrong: tuple[str, str, str] | None = None
    if type(key.weight) is not int or not 1 <= key.weight <= MOST_WEIGHT:
        wrong = "weight", f"1 to {MOST_WEIGHT}", "so many requests go in its turn"
    elif type(key.priority) is not int or abs(key.priority) > MOST_PRIORITY:
        wrong = "priority", f"-{MOST_PRIORITY} to {MOST_PRIORITY}", "the highest goes first; 0 is everybody's"
    elif not _is_amount(key.requests_per_s):
        wrong = "requests_per_s", "0 or more", "0 is any number"
    elif not _is_amount(key.until):
        wrong = "until", "a Unix time in seconds", "0: it has no end"
    if wrong is not None:
        name, what, hint = wrong
        raise SlotwiseError(f"{whose}: {name} must be {what}, not {getattr(key, name)!r}", hint)


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_AMOUNT  # type: ignore[operator]


def _stamp(found: os.stat_result) -> Stamp:
    """What changes with a file. One that was changed this very moment may be changed again within the clock's own step."""
    fresh = time.time_ns() - found.st_mtime_ns < FRESH_NS
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, secrets.randbits(64) if fresh else 0


def _stamp_of(file: Path) -> Stamp | None:
    try:
        return _stamp(file.stat())
    except OSError:
        return None


def add(
    file: Path,
    name: str,
    models: tuple[str, ...] = (),
    requests_per_s: float = 0.0,
    until: float = 0.0,
    weight: int = 1,
    priority: int = 0,
) -> str:
    """A new key, which stands nowhere else from now on: the file holds its SHA-256. Raises SlotwiseError."""
    if not NAME(name) or name == OWN:
        raise SlotwiseError(f"{name!r} is no name for a key", "letters, digits, '_', '.' and '-', at most 64")
    new = secrets.token_urlsafe(32)
    key = AccessKey(name, _sha256(new), models, requests_per_s, until, weight, priority)
    _check(key, name)
    with locked(file):
        keys = read(file) if file.exists() else []
        if of_name := [one for one in keys if one.name == name]:
            hint = f"{_command('remove', name, file)} takes it away"
            if not all(one.ended for one in of_name):
                hint = f"{_command('rotate', name, file)} gives it a new key, {hint}"
            raise SlotwiseError(f"there is a key named {name!r} in {file}", hint)
        _write(file, [*keys, key])
    return new


def rotate(file: Path, name: str, old_until: float, until: float = 0.0) -> str:
    """A second key under this name, with its models and limits. Raises SlotwiseError.

    old_until: when the first one ends, if it does not end before that. until: the end of the new one, 0: none.
    """
    new = secrets.token_urlsafe(32)
    with locked(file):
        keys = read(file)
        of_name = [key for key in keys if key.name == name and not key.ended]
        if not of_name:
            hint = f"{_command('add', name, file)} makes one"
            if any(key.name == name for key in keys):
                hint = f"{_command('remove', name, file)} takes away what has ended, then {hint}"
            raise SlotwiseError(f"there is no key named {name!r} in {file} that has not ended", hint)
        if len(of_name) > 1:
            hint = f"wait until the old one ends, or {_command('remove', f'{name} --old', file)}"
            raise SlotwiseError(f"{name} has two keys at this time already", hint)
        (old,) = of_name
        ending = replace(old, until=min(old_until, old.until or old_until))
        rest = [key for key in keys if key.name != name]
        _write(file, [*rest, ending, replace(old, sha256=_sha256(new), until=until)])
    return new


def remove(file: Path, name: str, *, old: bool = False) -> None:
    """The keys of that name open nothing any more; a running gateway notices within a second. Raises SlotwiseError.

    old: only the first of two, which a rotation left.
    """
    with locked(file):
        keys = read(file)
        gone = [key for key in keys if key.name == name]
        if old:
            gone = gone[:-1]
        if not gone:
            what = f"no older key of {name!r}" if old else f"no key named {name!r}"
            raise SlotwiseError(f"there is {what} in {file}", f"{_command('list', '', file)} shows them")
        _write(file, [key for key in keys if key not in gone])


def _command(what: str, name: str, file: Path) -> str:
    """The command about this file, as a person types it."""
    return f"`{' '.join(['slotwise key', what, *filter(None, [name]), '--keys', shlex.quote(str(file))])}`"


def _write(file: Path, keys: list[AccessKey]) -> None:
    unsaid = {"until": 0.0, "weight": 1, "priority": 0}
    entries = [{what: value for what, value in asdict(key).items() if value != unsaid.get(what)} for key in keys]
    write_secret(file, json.dumps({"keys": entries}, indent=2))


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
