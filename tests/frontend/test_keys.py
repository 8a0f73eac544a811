"""Keys: who is let in, to what, how often; TLS; and that no key is ever seen in a log."""

from __future__ import annotations

import errno
import json
import math
import os
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.load_tools import measure
from slotwise.cli import build_app as build_cli
from slotwise.errors import SlotwiseError
from slotwise.frontend import process
from slotwise.frontend.admission import keys
from slotwise.frontend.admission.key_rates import Bill
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.http.access import PUBLIC
from slotwise.frontend.http.app import build_app
from tests.support.certificates import certificate
from tests.support.errors import error

from .conftest import Front, MakeFront
from .live import StandInThread

OPEN = ("/", "/index.html", "/healthz", "/ready", "/ready/digits", "/static/page.js")
CLOSED = ("/status", "/metrics", "/docs", "/openapi.json", "/models", "/examples/digits/7.png", "/nosuch")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


async def guarded(make_front: MakeFront, file: Path, *public: str) -> Front:
    """A front with keys."""
    front = await make_front()
    front.gateway.keys = KeyFile(file)
    front.client._transport = httpx.ASGITransport(build_app(front.gateway, public), raise_app_exceptions=False)
    return front


@pytest.mark.anyio
async def test_only_who_has_a_key_gets_in(make_front: MakeFront, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    key = keys.add(file, "app")
    front = await guarded(make_front, file)
    for path in OPEN:
        assert (await front.client.get(path)).status_code == 200, path
    for path in CLOSED:
        refused = await front.client.get(path)
        assert error(refused)["code"] == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "default-src 'none'" in refused.headers["content-security-policy"]
    for headers in (
        {},
        bearer(""),
        bearer(key[:-1]),
        bearer(key + "x"),
        {"x-api-key": "é".encode()},
        {"authorization": f"Basic {key}"},
    ):
        assert error(await front.predict(headers=headers))["code"] == 401
    assert front.server.seen == []
    for headers in (bearer(key), {"authorization": f"bearer {key}"}, {"x-api-key": key}):
        assert (await front.predict(headers=headers)).status_code == 200
        assert (await front.client.get("/status", headers=headers)).status_code == 200
    assert all(key not in str(seen.headers) for seen in front.server.seen)
    assert key not in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("what", sorted(PUBLIC))
async def test_what_is_public_needs_none(make_front: MakeFront, file: Path, what: str) -> None:
    keys.add(file, "app")
    front = await guarded(make_front, file, what)
    for name, paths in PUBLIC.items():
        assert ((await front.client.get(paths[0])).status_code == 200) == (name == what)
    assert (await front.predict()).status_code == 401


@pytest.mark.anyio
async def test_a_key_opens_its_models_only_and_only_so_often(make_front: MakeFront, file: Path) -> None:
    narrow, slow = keys.add(file, "narrow", models=("captions",)), keys.add(file, "slow", requests_per_s=0.01)
    front = await guarded(make_front, file)
    assert error(await front.predict(headers=bearer(narrow)))["code"] == 403
    assert (await front.predict(headers=bearer(slow))).status_code == 200
    refused = await front.predict(headers=bearer(slow))
    assert (error(refused)["code"], int(refused.headers["retry-after"]) in range(60, 101)) == (429, True)


@pytest.mark.anyio
async def test_killers_count_for_the_key_not_for_the_address(make_front: MakeFront, file: Path) -> None:
    one, other = keys.add(file, "one"), keys.add(file, "other")
    front = await guarded(make_front, file)
    for i in range(3):
        assert (await front.predict(b"killer %d" % i, headers=bearer(one))).status_code == 500
    assert (await front.predict(headers=bearer(one))).status_code == 429
    assert (await front.predict(headers=bearer(other))).status_code == 200


def test_the_file_holds_hashes_is_read_again_and_survives_nonsense(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0)
    first = keys.add(file, "first")
    assert first not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    known = KeyFile(file)
    second = keys.add(file, "second", ("digits",), 5)
    assert known.find({b"x-api-key": second.encode()}).models == ("digits",)
    assert known.find({b"x-api-key": known.own.encode()}).name == "slotwise"
    keys.remove(file, "first")
    with pytest.raises(keys.Refused):
        known.find({b"x-api-key": first.encode()})
    file.write_text("nonsense")
    assert known.find({b"x-api-key": second.encode()}).name == "second"
    digest = "0" * 64
    entries: list[Any] = [
        {"name": "x"},
        {"name": "x", "sha256": ""},
        {"name": "x", "sha256": 5},
        {"name": "x", "sha256": "z" * 64},
        {"name": 5, "sha256": digest},
        {"name": keys.OWN, "sha256": digest},
        {"name": "x", "sha256": digest, "models": "digits"},
        {"name": "x", "sha256": digest, "models": None},
        {"name": "x", "sha256": digest, "models": ["digits", 1]},
        None,
    ]
    for text in ("nonsense", "[]", *(json.dumps({"keys": [entry]}) for entry in entries)):
        file.write_text(text)
        with pytest.raises(SlotwiseError):
            KeyFile(file)
        assert known.find({b"x-api-key": second.encode()}).name == "second"


def test_a_key_that_was_just_written_opens_and_bad_ones_do_not_read_the_file_each_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reads, read = [100.0], [], keys._read_stamped
    monkeypatch.setattr(keys.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(keys, "_read_stamped", lambda path: (reads.append(path), read(path))[1])
    first = keys.add(file, "first")
    known = KeyFile(file)
    clock[0] += 0.2
    second = keys.add(file, "second")
    reads.clear()
    assert known.find({b"x-api-key": second.encode()}).name == "second"
    for _ in range(100):
        clock[0] += 0.001
        with pytest.raises(keys.Refused):
            known.find({b"x-api-key": b"no key"})
    assert len(reads) <= 3
    assert known.find({b"x-api-key": first.encode()}).name == "first"


def test_names_that_are_taken_or_no_names_are_refused(file: Path) -> None:
    keys.add(file, "app")
    for name in ("app", "slotwise", "", "a b", "../x"):
        with pytest.raises(SlotwiseError):
            keys.add(file, name)
    with pytest.raises(SlotwiseError, match="no key named"):
        keys.remove(file, "nobody")
    with pytest.raises(SlotwiseError, match="there is no file of keys"):
        keys.read(file.with_name("other"))


def test_a_rotated_name_has_two_keys_until_the_old_one_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0)
    old = keys.add(file, "app", ("digits",), 2.0)
    known = KeyFile(file)
    new = keys.rotate(file, "app", now + 60, now + 3600)
    both = [known.find({b"x-api-key": key.encode()}) for key in (old, new)]
    assert [(key.name, key.models, key.requests_per_s, key.until) for key in both] == [
        ("app", ("digits",), 2.0, now + 60),
        ("app", ("digits",), 2.0, now + 3600),
    ]
    for key in both:
        known.permit(key, "digits")
        Bill(key, known.rates).pay(1)
    with pytest.raises(keys.Refused, match="2 times a second"):  # what a name may do, not each of its keys
        known.permit(both[0], "digits")
    with pytest.raises(SlotwiseError, match="two keys"):
        keys.rotate(file, "app", now + 60)
    monkeypatch.setattr(keys.time, "time", lambda: now + 61)
    with pytest.raises(keys.Refused, match="this key has ended"):
        known.find({b"x-api-key": old.encode()})
    assert known.find({b"x-api-key": new.encode()}).name == "app"
    third = keys.rotate(file, "app", now + 10_000)
    assert {key.until for key in keys.read(file)} == {now + 3600, 0}, "it ends no later than before, and the ended one is gone"
    keys.remove(file, "app", old=True)
    with pytest.raises(keys.Refused, match="not known"):
        known.find({b"x-api-key": new.encode()})
    assert known.find({b"x-api-key": third.encode()}).until == 0
    with pytest.raises(SlotwiseError, match="no older key"):
        keys.remove(file, "app", old=True)


def test_a_change_while_the_keys_are_read_is_noticed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0)
    monkeypatch.setattr(keys, "FRESH_NS", 0)
    gone = keys.add(file, "gone")
    keys.add(file, "stay")
    loads, stamp = json.loads, file.stat()

    def removed_meanwhile(text: bytes) -> object:
        monkeypatch.setattr(keys.json, "loads", loads)
        keys.remove(file, "gone")
        file.write_bytes(file.read_bytes().ljust(stamp.st_size))
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the same size and time
        return loads(text)

    monkeypatch.setattr(keys.json, "loads", removed_meanwhile)
    with pytest.raises(keys.Refused):
        KeyFile(file).find({b"x-api-key": gone.encode()})


def test_a_file_that_is_changed_twice_within_the_clocks_step_is_read_twice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0)
    first = keys.add(file, "first")
    known = KeyFile(file)
    known.find({b"x-api-key": first.encode()})
    text = file.read_text().replace(keys._sha256(first), "0" * 64)
    with file.open("r+") as stream:  # in place: the same inode, size and, on a slow clock, times
        stream.write(text)
    os.utime(file, ns=(known._stamp[2], known._stamp[2]))
    with pytest.raises(keys.Refused):
        known.find({b"x-api-key": first.encode()})


def test_changes_by_many_processes_at_once_are_all_in_the_file(file: Path) -> None:
    for i in range(4):
        keys.add(file, f"old{i}")
    code = "import sys; from pathlib import Path; from slotwise.frontend.admission import keys\n"
    code += "f = Path(sys.argv[1]); i = sys.argv[2]\n"
    code += "print(*[keys.add(f, f'new{i}-{j}') for j in range(8)], *[keys.remove(f, f'old{i}') or '' for _ in range(1)])"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(file), str(i)], stdout=subprocess.PIPE, text=True) for i in range(4)
    ]
    printed = [word for process in processes for word in process.communicate()[0].split()]
    known = keys.read(file)
    assert {key.sha256 for key in known} == {keys._sha256(key) for key in printed}
    assert len(known) == 32
    assert not [key for key in known if key.name.startswith("old")]
    assert sorted(path.name for path in file.parent.iterdir()) == [".keys.json.lock", "keys.json"]


def test_what_a_killed_process_left_is_taken_away_and_a_file_keeps_its_mode_and_its_link(file: Path, tmp_path: Path) -> None:
    keys.add(file, "app")
    file.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    left = [tmp_path / ".keys.json.123.partial", tmp_path / "keys.json.partial"]
    for path in left:
        path.write_text("{")
    KeyFile(link)
    assert not [path for path in left if path.exists()]
    left[0].write_text("{")
    keys.add(link, "other")
    assert not left[0].exists()
    assert link.is_symlink()
    assert (len(keys.read(file)), stat.S_IMODE(file.stat().st_mode)) == (2, 0o640)


def slotwise_key(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`slotwise key`."""
    command = [sys.executable, "-m", "slotwise.cli", "key", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environ})


@pytest.mark.parametrize("place", ["/dev/full", "/dev/zero", ".", "pipe"])
def test_what_is_no_file_is_refused(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / place
    for change in (lambda: keys.add(file, "app"), lambda: keys.read(file), lambda: keys.rotate(file, "app", 1)):
        with pytest.raises(SlotwiseError, match="is no regular file"):
            change()
    assert not list(Path("/dev").glob(".*.lock"))


def test_a_full_disk_is_named_and_the_file_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys.add(file, "app")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as raised:
        keys.add(file, "other")
    assert raised.value.filename == str(file)
    assert [known.sha256 for known in keys.read(file)] == [keys._sha256(key)]
    assert not list(file.parent.glob("*.partial")) + list(file.parent.glob(".*.partial"))


def test_the_commands_rotate_and_list_also_where_only_ascii_is_printed(file: Path) -> None:
    first = slotwise_key("add", "app", "--models", "modèle", "--for", "90d", "--keys", str(file)).stdout.strip()
    second = json.loads(slotwise_key("rotate", "app", "--keep", "30m", "--keys", str(file), "--json").stdout)
    assert second["key"] != first
    assert 1700 < second["old_until"] - time.time() <= 1800
    listed = slotwise_key("list", "--keys", str(file), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (listed.returncode, listed.stdout.count("mod\\xe8le")) == (0, 2), listed.stderr
    assert slotwise_key("rotate", "app", "--keep", "soon", "--keys", str(file)).returncode == 2
    gone = slotwise_key("remove", "app", "--old", "--keys", str(file), "--json")
    assert json.loads(gone.stdout) == {"removed": "app", "file": str(file), "old": True}


def test_a_key_that_ends_after_the_last_year_of_a_date_is_listed(file: Path) -> None:
    """As one whose end somebody has written in milliseconds."""
    keys.add(file, "app", until=1767225600000.0)
    listed = CliRunner().invoke(build_cli(), ["key", "list", "--keys", str(file)], env={"COLUMNS": "240"})
    assert listed.exit_code == 0
    assert "the year 9999 is over" in listed.output


def test_what_is_said_about_an_ended_key_leads_to_a_new_one(file: Path) -> None:
    keys.add(file, "app", until=1.0)
    with pytest.raises(SlotwiseError) as raised:
        keys.rotate(file, "app", 0.0)
    remove, add = f"`slotwise key remove app --keys {file}`", f"`slotwise key add app --keys {file}`"
    assert raised.value.hint == f"{remove} takes away what has ended, then {add} makes one"
    with pytest.raises(SlotwiseError) as raised:
        keys.add(file, "app")
    assert raised.value.hint == f"{remove} takes it away"


@pytest.mark.parametrize("models", ["", " ", ","])
def test_a_list_of_models_that_names_none_is_not_all_of_them(file: Path, models: str) -> None:
    """As an empty variable of a script gives it."""
    said = CliRunner().invoke(build_cli(), ["key", "add", "app", "--models", models, "--keys", str(file)])
    assert (said.exit_code, file.exists()) == (2, False)
    assert "names no model" in said.output


def test_a_gateway_process_with_keys_and_tls(tmp_path: Path, file: Path) -> None:
    key, (cert, private) = keys.add(file, "app"), certificate(tmp_path)
    options = [
        "--keys",
        str(file),
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(private),
        "--public",
        "metrics",
        "--grpc-port",
        "0",
    ]
    home = tmp_path / "home"
    home.mkdir()
    with StandInThread().front(home, *options) as gateway:
        assert gateway.url.startswith("https://")
        with httpx.Client(base_url=gateway.url, verify=False, trust_env=False) as http:
            assert http.post("/predictions/digits", content=b"7").status_code == 401
            assert http.post("/predictions/digits", content=b"7", headers=bearer(key)).status_code == 200
            assert http.get("/metrics").status_code == 200
        ports = [int(urlsplit(gateway.url).port or 0), int(gateway.grpc.rpartition(":")[2])]
        assert [ssl.get_server_certificate(("127.0.0.1", port)) for port in ports] == [cert.read_text()] * 2
        other, its_key = certificate(tmp_path, "renewed")
        other.replace(cert)  # as certbot does it, one after the other: for a moment they do not belong together
        time.sleep(1.5)
        assert all(ssl.get_server_certificate(("127.0.0.1", port)) != cert.read_text() for port in ports)
        its_key.replace(private)
        deadline = time.monotonic() + 90
        while [ssl.get_server_certificate(("127.0.0.1", port)) for port in ports] != [cert.read_text()] * 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert gateway.status()["ready"] in (True, False)  # what `slotwise apply` asks, with the gateway's own key
        record = home / "default" / "gateway.json"
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        own = json.loads(record.read_text())["key"]
        seen = (home / "default" / "gateway.log").read_text() + Path(f"/proc/{gateway.pid}/cmdline").read_text()
        seen += str(dict(os.environ))
        assert key not in seen
        assert own not in seen


@pytest.mark.parametrize("options", [["--tls-cert", "nosuch.pem"], ["--keys", "nosuch.json"], ["--public", "everything"]])
def test_what_cannot_be_used_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    with pytest.raises(SlotwiseError, match=r"did not start") as raised:
        process.start_detached("default", ["--port", "0", "--translation-port", "-1", *options])
    hints = [
        line for line in (tmp_path / "default" / "gateway.log").read_text("utf-8").splitlines() if line.startswith("hint: ")
    ]
    assert [f"hint: {raised.value.hint}"] == (hints[:1] or [f"hint: its output is in {tmp_path}/default/gateway.log"])


def test_an_open_gateway_says_what_is_open(tmp_path: Path) -> None:
    with StandInThread().front(tmp_path, "--host", "0.0.0.0"):
        log = tmp_path / "default" / "gateway.log"
        deadline = time.monotonic() + 90
        while "--keys FILE asks for a key" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "can ask every model" in log.read_text()


def test_no_token_stands_on_abs_command_line() -> None:
    target, plan = Target("http://127.0.0.1:1/x", bearer("secret")), LoadPlan(clients=1, seconds=1)
    with pytest.raises(SlotwiseError, match=r"ab would show|not installed"):
        measure("ab", target, [RequestBody(b"x")], plan)


def test_a_key_has_a_weight_and_a_priority_which_a_rotation_keeps(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys.add(file, "plain")
    assert "weight" not in file.read_text()  # earlier releases read it, too
    keys.add(file, "heavy", weight=3, priority=-1)
    keys.rotate(file, "heavy", old_until=time.time() + 60)
    assert [(key.weight, key.priority) for key in keys.read(file)] == [(1, 0), (3, -1), (3, -1)]


NUMBERS = [-1, math.nan, math.inf, 10**400, True, "5", None]
WEIGHTS = [*NUMBERS, 0, 101, 1.5]


@pytest.mark.parametrize(
    "wrong",
    [{name: value} for name in ("requests_per_s", "until") for value in NUMBERS]
    + [{"weight": value} for value in WEIGHTS]
    + [{"priority": value} for value in (10, -10, *WEIGHTS[1:7])],
    ids=lambda wrong: f"{wrong}"[:40],
)
def test_what_is_no_number_that_may_be_is_refused_in_one_line(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(SlotwiseError, match=next(iter(wrong))):
        keys.add(file, "one", **wrong)
    keys.add(file, "one")
    content = json.loads(file.read_text())
    content["keys"][0].update(wrong)
    file.write_text(json.dumps(content))
    with pytest.raises(SlotwiseError, match=next(iter(wrong))):
        keys.read(file)


def test_of_keys_that_come_and_go_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0)
    file = tmp_path / "keys.json"
    stays = keys.add(file, "stays", requests_per_s=0.01)
    known = KeyFile(file)
    known.rates.charge(known.find({b"x-api-key": stays.encode()}), 1)
    entry = json.loads(file.read_text())["keys"][0]
    for i in range(50):
        others = [{**entry, "name": f"k{i}-{j}", "sha256": f"{i * 100 + j:064x}"} for j in range(100)]
        file.write_text(json.dumps({"keys": [entry, *others]}))
        known.find({b"x-api-key": stays.encode()})
        for key in list(known._keys.values()):
            if key.name.startswith("k"):
                known.rates.charge(key, 1)
    assert len(known._keys) == 102
    assert len(known.rates._buckets) <= 101
    with pytest.raises(keys.Refused):
        known.permit(known.find({b"x-api-key": stays.encode()}), "digits")  # it still owes what it owed
