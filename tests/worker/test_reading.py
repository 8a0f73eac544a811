"""The servers' rows, headers, settings: everything between the wire and the heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotwise.worker import BadRequest, Headers, NotOffered, Request, Settings, SlotError, UnsupportedMedia
from slotwise.worker import slot_errors as worker_errors
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.environment.settings import pin_gpu
from slotwise.worker.hosts import reading
from slotwise.worker.hosts.java.context import ServerContext
from slotwise.worker.hosts.reading import RepeatedParts, bodies, deadline_s
from tests.worker.toy import RawContext


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"body": b"x"}, b"x"),
        ({"body": bytearray(b"x")}, b"x"),
        ({"data": b"x"}, b"x"),
        ({"picture": b"x"}, b"x"),
        ({"note": b"no", "file": b"x"}, b"x"),
        ({"body": "é"}, "é".encode()),
        ({"body": {"a": [1]}}, b'{"a": [1]}'),
        ({"body": b""}, b""),
    ],
)
def test_the_body_is_found(row: dict[str, Any], wanted: bytes) -> None:
    assert bodies(row, Headers()) == [wanted]


@pytest.mark.parametrize(
    ("row", "headers", "kind"),
    [
        ({}, {}, BadRequest),
        ({"a": b"1", "b": b"2"}, {}, BadRequest),
        ({"{": b""}, {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}, UnsupportedMedia),
    ],
)
def test_a_body_that_cannot_be_told_is_an_error(row: dict[str, Any], headers: dict[str, str], kind: type[SlotError]) -> None:
    with pytest.raises(kind):
        bodies(row, Headers(headers))


def test_json_that_the_server_could_parse_and_nobody_can_write_is_its_senders_fault() -> None:
    deep: Any = 1
    for _ in range(100_000):  # Python 3.13 writes 2,000
        deep = [deep]
    for row in ({"body": deep}, {"data": deep, "more": b"x"}):
        assert isinstance(reading.request(row, Headers(), "a").refused, BadRequest)


def test_headers_do_not_care_for_case_and_skip_the_parts_of_a_form() -> None:
    headers = Headers({"ACCEPT": "text/plain", "data": {"content-type": "image/png"}})
    assert headers["accept"] == headers.get("Accept") == "text/plain"
    assert "aCCept" in headers
    assert dict(headers) == {"accept": "text/plain"}
    assert deadline_s(Headers({"X-DEADLINE-MS": "1500"})) == 1.5


def read(row: dict[str, Any], headers: dict[str, Any] | None = None) -> Request:
    context = ServerContext(RawContext([headers or {}]))
    return reading.request(row, context.headers(0), context.request_id(0, context.headers(0)))


def test_a_request_has_its_fields_and_its_query() -> None:
    plain = read({"body": b"x", "top": b"3"})
    assert (plain.body, plain.query, plain.fields, plain.id) == (b"x", {"top": "3"}, {}, "id-0")
    form = read({"data": b"x", "note": "é"}, {"x-request-id": "mine"})
    assert (form.body, form.fields, form.id) == (b"x", {"data": [b"x"], "note": ["é".encode()]}, "mine")
    several = read({"left": b"1", "right": b"2"})
    assert several.fields == {"left": [b"1"], "right": [b"2"]}
    assert isinstance(several.unclear, BadRequest)


def test_every_part_of_one_name_is_a_body_of_its_own() -> None:
    assert read({"data": RepeatedParts([b"1", b"2"])}).bodies == [b"1", b"2"]
    assert read({"body": RepeatedParts([b"from the address", b"x"])}).bodies == [b"x"], "a parameter is no part"


def test_of_two_bodies_in_one_urlencoded_form_none_is_dropped() -> None:
    """TorchServe's own handlers get the last one, and so do they here (test_forms.py)."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for two in (
        reading.parsed(Request(b"body=1&body=2", Headers(headers))),
        read({"body": RepeatedParts([b"1", b"2"])}, headers),
    ):
        assert isinstance(two.refused, BadRequest)
    assert reading.parsed(Request(b"body=1", Headers(headers))).bodies == [b"1"]


def test_what_stands_beside_the_body_of_an_urlencoded_form_is_a_field_too() -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for form in (
        reading.parsed(Request(b"body=1&data=2", Headers(headers))),
        read({"body": b"1", "data": b"2"}, headers),
    ):
        assert (form.bodies, form.fields) == ([b"1"], {"body": [b"1"], "data": [b"2"]})


@pytest.mark.parametrize("content_type", ["multipart/form-data", "Multipart/Form-Data", "MULTIPART/FORM-DATA"])
def test_a_form_is_one_in_whatever_case_its_content_type_is_written(content_type: str) -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    body = part % (b"body", b"1") + part % (b"body", b"2") + part % (b"note", b"x") + b"--b--\r\n"
    form = reading.parsed(Request(body, Headers({"content-type": f"{content_type}; boundary=b"})))
    assert (form.bodies, form.fields, form.query) == ([b"1", b"2"], {"body": [b"1", b"2"], "note": [b"x"]}, {})
    plain = reading.parsed(Request(b"{}", Headers({"content-type": "text/x; of=multipart"}), query={"top": "3"}))
    assert (plain.bodies, plain.fields, plain.query) == ([b"{}"], {}, {"top": "3"})


def test_what_is_no_prediction_is_refused() -> None:
    assert isinstance(read({"body": b"x"}, {"explain": "True"}).refused, NotOffered)
    assert read({"body": b"x"}, {"explain": "False"}).refused is None
    assert isinstance(read({"body": b"x"}, {"x-deadline-ms": "soon"}).refused, BadRequest)


def test_the_parts_that_a_server_would_drop_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    service = pytest.importorskip("ts.service")
    monkeypatch.setattr(service.Service, "retrieve_data_for_inference", service.Service.retrieve_data_for_inference)
    reading.keep_repeated_parts("ts")
    parameters = [{"name": name, "contentType": "", "value": value} for name, value in (("a", b"1"), ("b", b"2"), ("a", b"3"))]
    sent = [{"requestId": b"r", "parameters": parameters}, {"requestId": b"s", "parameters": parameters[:2]}]
    headers, rows, ids = service.Service.retrieve_data_for_inference(sent)
    assert rows == [{"a": [b"1", b"3"], "b": b"2"}, {"a": b"1", "b": b"2"}]
    assert isinstance(rows[0]["a"], RepeatedParts)
    assert (len(headers), ids) == (2, {0: "r", 1: "s"})


def test_the_two_servers_are_told_apart() -> None:
    raw = RawContext()
    assert ServerContext(raw).server == "torchserve"
    del raw.system_properties["limit_max_image_pixels"]
    raw.system_properties["gpu_id"] = "-1"
    context = ServerContext(raw)
    assert (context.server, context.gpu_id, context.model_version) == ("mms", None, "1.0")


def test_every_error_has_a_status_that_http_knows() -> None:
    kinds = [kind for kind in vars(worker_errors).values() if isinstance(kind, type) and issubclass(kind, SlotError)]
    kinds.remove(worker_errors.StageFault)  # whose status is a stage's
    assert sorted(kind.code for kind in kinds) == [400, 413, 415, 422, 500, 500, 501, 503, 504, 507]
    for kind in kinds:
        assert kind.__name__ in (worker_errors.__doc__ or "")
        assert kind("why").body() == {"error": {"code": kind.code, "message": "why"}}
        assert kind(KeyError("why")).message == "'why'", "an exception as a message is its text"


def carried(folder: Path, **profiles: dict[str, Any]) -> Path:
    (folder / "slotwise.json").write_text(json.dumps({"model": {"name": "m"}, "profiles": profiles}))
    return folder


def test_the_profile_is_named_by_the_environment_else_by_the_gpu_else_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotwise.worker.environment.settings.has_cuda", lambda: True)
    model_dir = carried(
        tmp_path, cpu={"padding": "none"}, cuda={"precision": "fp16", "device": "cuda"}, ei={"padding": "static"}
    )
    assert Settings.load(model_dir, {}).profile == "cpu"
    assert Settings.load(model_dir, {}, gpu_id=0).precision == "fp16"
    assert Settings.load(model_dir, {"SLOTWISE_PROFILE": "ei"}, gpu_id=0).padding == "static"
    with pytest.raises(ValueError, match="cpu, cuda, ei"):
        Settings.load(model_dir, {"SLOTWISE_PROFILE": "tpu"})


def test_overrides_win_and_threads_stay_within_the_cores(tmp_path: Path) -> None:
    model_dir = carried(tmp_path, cpu={"threads": 4096, "engine": "torch", "unknown": 1})
    settings = Settings.load(model_dir, {"SLOTWISE_OVERRIDES": '{"engine": "onnxruntime"}'}, batch_size=32)
    assert settings.engine == "onnxruntime"
    assert settings.threads == available_cores()
    assert settings.batch_size == 32
    assert settings.model == {"name": "m"}
    assert Settings.load(tmp_path / "nowhere", {}).engine == "auto"


@pytest.mark.parametrize(
    ("visible", "gpu_id", "wanted"), [("", 1, "1"), ("2,3", 1, "3"), ("GPU-a,GPU-b", 0, "GPU-a"), ("1", 1, "1")]
)
def test_a_worker_sees_only_the_gpu_that_it_was_dealt(visible: str, gpu_id: int, wanted: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    pin_gpu(gpu_id, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": wanted}


def test_workers_share_the_cores() -> None:
    assert Settings(workers=2).within_budget(8).threads == 4
    assert Settings(workers=2, threads=3).within_budget(8).threads == 3
    assert Settings(workers=2, threads=8).within_budget(8).threads == 4
    assert Settings(workers=9).within_budget(8).threads == 1
    assert Settings(workers=2, decode_threads=8).within_budget(8).decode_threads == 8
