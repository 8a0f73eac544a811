"""Profiles: what is read, what is refused and in which words, what wins over what, and what the servers are told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import load_spec
from slotwise.profiles import render
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import SECTIONS, Profile, load_profile
from slotwise.profiles.render import render_properties
from slotwise.profiles.variables import ENVIRONMENT, from_environment
from slotwise.worker.engines import git, translation
from slotwise.worker.environment.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
GIVEN = ("cpu", "cuda", "deterministic", "ei")


def written(folder: Path, text: str, name: str = "mine") -> str:
    """The path of a profile with this text."""
    path = folder / f"{name}.toml"
    path.write_text(text, "utf-8")
    return str(path)


def properties(text: str) -> dict[str, str]:
    """A config.properties as Java reads it: a line that ends in a backslash goes on."""
    lines = text.replace("\\\n", "").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_profile_says_every_key_but_the_servers_own_choices(name: str) -> None:
    text = project.profile_file(name).read_text("utf-8")
    said = set(re.findall(r"^(\w+) = ", text, re.MULTILINE))
    keys = {key for section in SECTIONS for key in Profile.section(section) if section != "ray"}
    assert keys - said <= {"number_of_netty_threads", "memory_fraction"}


def test_the_given_profiles_keep_what_they_promise() -> None:
    cpu, cuda, same, ei = (load_profile(name, environ={}, cores=0) for name in GIVEN)
    assert (cpu.device, cpu.initial_workers, cpu.padding) == ("cpu", 1, "none")
    assert (cuda.device, cuda.precision, cuda.initial_workers) == ("cuda", "fp16", 1)
    assert (ei.batch_size, ei.max_batch_delay_ms, ei.initial_workers) == (32, 10, 2)
    assert (ei.engine, ei.padding) == ("torch", "static")
    assert ei.memory_fraction * ei.initial_workers <= 1
    assert all((p.log_level, p.request_log, p.metrics_mode) == ("WARN", False, "prometheus") for p in (cpu, cuda, same, ei))
    assert [p.deterministic for p in (cpu, cuda, same, ei)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[registration]\nbatchsize = 8", "[registration]: unknown key 'batchsize'", "did you mean batch_size?"),
        ("[registration]\nbatch_size = 0", "batch_size: must be greater than or equal to 1, not 0", "full batch"),
        ("[registration]\nbatch_size = '8'", "batch_size: must be a valid integer, not '8'", "full batch"),
        ("[registration]\nbatch_size = true", "batch_size: must be a valid integer, not True", "full batch"),
        ("[registration]\nmax_batch_delay = 5", "unknown key 'max_batch_delay'", "max_batch_delay_ms (in milliseconds)?"),
        ("[registration]\nmax_batch_delay_s = 5", "unknown key 'max_batch_delay_s'", "max_batch_delay_ms (in milliseconds)?"),
        ("[registration]\nmax_batch_delay_ms = '5 ms'", "max_batch_delay_ms: must", "in milliseconds"),
        ("[registration]\nresponse_timeout_s = 120_000", "response_timeout_s: must", "a whole number of seconds"),
        ("[registration]\nthreads = 1", "[registration]: threads is not a key of this section", "it belongs in [worker]"),
        ("[worker]\nthreads = 64", "threads: 1 workers x 64 threads are more than the 8 cores", "threads = 0"),
        ("[worker]\nprecision = 'int7'", "precision: must be 'auto', 'fp32'", "numbers the engine computes in"),
        ("[worker]\nmemory_fraction = 40", "memory_fraction: must be less than or equal to 1", "GPU's memory"),
        ("[server]\nlog_level = 'quiet'", "log_level: must be 'ERROR', 'WARN'", "the server's own log"),
        ("[servers]\nlog_level = 'WARN'", "unknown section or key 'servers'", "[registration], [worker], [server]"),
        ("batch_size = 8", "unknown section or key 'batch_size'", "it belongs in [registration]"),
        ("[registration", "cannot be read", "TOML"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(text: str, message: str, hint: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SlotwiseError) as raised:
        load_profile(path, environ={}, cores=8)
    assert raised.value.message.startswith(path)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert "\n" not in raised.value.message + raised.value.hint


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"batch_sise": "8"}, "--set: unknown key 'batch_sise'"),
        ({"batch_size": "9" * 5000}, "--set: batch_size: must be a valid integer, not '999"),
        ({"batch_size": "many"}, "--set: batch_size: must be a valid integer, not 'many'"),
        ({"initial_workers": "4", "threads": "4"}, "--set: threads: 4 workers x 4 threads are more than the 8 cores"),
        ({"name": "other"}, "--set: unknown key 'name'"),
    ],
)
def test_a_wrong_override_is_named(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(SlotwiseError) as raised:
        load_profile("cpu", overrides, {}, cores=8)
    assert message in raised.value.message


def test_texts_become_values_of_their_keys() -> None:
    given = {"batch_size": " 8 ", "request_log": "true", "memory_fraction": "0.5", "engine": "torch", "precision": '"fp32"'}
    profile = load_profile("cpu", given, {}, cores=8)
    assert [getattr(profile, key) for key in given] == [8, True, 0.5, "torch", "fp32"]


def test_set_beats_environment_beats_model_beats_file() -> None:
    environ = {"BATCH_SIZE": "4", "MAX_BATCH_DELAY": "7", "WORKERS": ""}
    profile = load_profile("ei", {"batch_size": "2"}, environ, cores=8)
    assert (profile.batch_size, profile.max_batch_delay_ms, profile.initial_workers) == (2, 7, 2)
    wishes = {"batch_size": 64, "max_batch_delay_ms": 50, "engine": "onnxruntime"}
    model = profile.for_model(wishes)
    assert (model.batch_size, model.max_batch_delay_ms, model.engine, model.padding) == (2, 7, "onnxruntime", "static")
    assert load_profile("ei", environ={}, cores=8).for_model(wishes).batch_size == 64


def test_a_model_may_not_set_what_holds_for_the_whole_server() -> None:
    profile = load_profile("cpu", environ={}, cores=8)
    with pytest.raises(SlotwiseError, match=r"digits: \[profiles.cpu\]: log_level is for the whole server"):
        profile.for_model({"log_level": "DEBUG"}, "digits")
    with pytest.raises(SlotwiseError, match=r"digits: \[profiles.cpu\]: batch_size"):
        profile.for_model({"batch_size": 0}, "digits")
    with pytest.raises(SlotwiseError, match=r"threads: 1 workers x 9 threads"):
        profile.for_model({"threads": 9}, "digits")


def test_linger_ms_is_another_name_of_the_delay_and_never_ignored() -> None:
    environ = {"BATCH_SIZE": "32", "WORKERS": "2", "LINGER_MS": "25"}
    assert load_profile("ei", {}, environ, cores=8).max_batch_delay_ms == 25
    assert from_environment({"LINGER_MS": "25", "MAX_BATCH_DELAY": ""}) == {"max_batch_delay_ms": "25"}
    assert from_environment({"LINGER_MS": "", "MAX_BATCH_DELAY": "7"}) == {"max_batch_delay_ms": "7"}
    with pytest.raises(SlotwiseError, match="LINGER_MS is 25, but MAX_BATCH_DELAY is 7"):
        from_environment({"LINGER_MS": "25", "MAX_BATCH_DELAY": "7"})


def test_the_environments_names() -> None:
    assert from_environment({"BATCH_SIZE": "8", "WORKERS": "2", "HOME": "/"}) == {"batch_size": "8", "initial_workers": "2"}
    assert set(ENVIRONMENT.values()) <= set(Profile.section("registration"))


def test_registration_and_worker_have_the_words_of_those_who_read_them() -> None:
    profile = load_profile("ei", environ={}, cores=0)
    registration = {"batch_size": 32, "max_batch_delay": 10, "initial_workers": 2, "response_timeout": 120}
    assert profile.registration() == registration
    assert set(profile.worker()) <= set(Settings.__dataclass_fields__)


def test_a_worker_gets_the_profile_as_it_is_now_and_its_models_wishes(tmp_path: Path) -> None:
    """The archive was built with an older cpu profile; the profile `mine` it has never heard of."""
    model = {"name": "m", "profiles": {"cpu": {"engine": "openvino", "initial_workers": 2}, "mine": {"padding": "static"}}}
    (tmp_path / "slotwise.json").write_text(json.dumps({"model": model, "profiles": {"cpu": {"padding": "bucketed"}}}))
    now = load_profile("cpu", {"precision": "fp32"}, {}, cores=0).environment(["precision"])
    settings = Settings.load(tmp_path, now)
    assert (settings.padding, settings.engine, settings.precision, settings.workers) == ("none", "openvino", "fp32", 2)
    said = load_profile("cpu", {"engine": "torch", "initial_workers": "1"}, {}, cores=0)
    settings = Settings.load(tmp_path, said.environment(["engine", "initial_workers"]))
    assert (settings.engine, settings.workers) == ("torch", 1)
    mine = load_profile(written(tmp_path, "[worker]\nengine = 'torch'"), environ={}, cores=0)
    settings = Settings.load(tmp_path, mine.environment([]))
    assert (settings.profile, settings.engine, settings.padding) == ("mine", "torch", "static")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_x_threads_never_exceed_the_cores(workers: int) -> None:
    worker = load_profile("cpu", {"initial_workers": str(workers)}, {}, cores=0).worker()
    settings = Settings(**worker).within_budget(6)
    assert settings.threads * workers == 6


def test_torchserve_is_told_everything() -> None:
    profile = load_profile("cpu", {"number_of_netty_threads": "3", "model_api": "false"}, {}, cores=8)
    models = {"digits": {"1.0": {"marName": "digits.mar", "batchSize": 8}}}
    ports = Ports(1, 2, 3, 4, 5)
    keys = properties(render_properties(profile, model_store="/srv/model store", ports=ports, models=models))
    assert keys["inference_address"] == "http://127.0.0.1:1"
    assert keys["metrics_address"] == "http://127.0.0.1:3"
    assert (keys["grpc_inference_port"], keys["grpc_inference_address"]) == ("4", "127.0.0.1")
    assert keys["default_response_timeout"] == "120"
    assert (keys["enable_model_api"], keys["disable_token_authorization"]) == ("false", "false")
    assert keys["number_of_netty_threads"] == "3"
    assert keys["models"] == '{  "digits": {"1.0": {"marName": "digits.mar", "batchSize": 8}}}'


def test_mms_is_told_only_what_it_reads_and_its_timeout_in_seconds() -> None:
    keys = properties(render_properties(load_profile("ei", environ={}, cores=0), "mms"))
    assert keys["default_response_timeout_seconds"] == "120"
    assert not {"default_response_timeout", "models", "allowed_urls", "metrics_address", "enable_model_api"} & set(keys)
    assert keys["decode_input_request"] == "false"


def test_only_the_model_store_may_be_loaded_from() -> None:
    profile = load_profile("cpu", environ={}, cores=8)
    for store, inside, outside in [
        ("/srv/models", ["file:///srv/models/a.mar"], ["file:///srv/models/b/a.mar", "file:///srv/a.mar"]),
        ("model_store", ["file:///home/me/model_store/a.mar"], ["file:///home/me/a.mar", "https://x/model_store/a.mar"]),
    ]:
        pattern = re.compile(properties(render_properties(profile, model_store=store))["allowed_urls"])
        assert all(pattern.fullmatch(url) for url in inside)
        assert not any(pattern.fullmatch(url) for url in outside)


def test_no_gpu_is_given_out_where_the_profile_wants_none() -> None:
    said = {name: properties(render_properties(load_profile(name, environ={}, cores=0))) for name in GIVEN}
    assert [said[name].get("number_of_gpu") for name in GIVEN] == ["0", None, "0", None]


def test_what_is_not_latin_is_escaped_for_java() -> None:
    text = render_properties(load_profile("cpu", environ={}, cores=8), model_store="/srv/模型\\x")
    assert "model_store=/srv/\\u6a21\\u578b\\\\x\n" in text


def test_the_committed_files_are_what_the_profiles_render_to() -> None:
    assert render.drifted(ROOT) == []
    names = {"config.properties", "profiles/log4j2.xml", *(f"profiles/{name}.properties" for name in GIVEN)}
    assert names <= set(render.committed_files())


def test_render_leaves_somebody_elses_config_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.properties").write_text("inference_address=http://127.0.0.1:9000\n")
    with pytest.raises(SlotwiseError, match="was not rendered from a profile"):
        render.write(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.properties"]


def test_render_writes_and_check_finds_what_drifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    written(tmp_path / "profiles", "[registration]\nbatch_size = 3\n[server]\nlog_level = 'DEBUG'")
    assert "profiles/mine.properties" in render.write(tmp_path)
    assert render.write(tmp_path) == []
    render.check(tmp_path)
    keys = properties((tmp_path / "profiles/mine.properties").read_text("utf-8"))
    flags = "-XX:+UseParallelGC -Dlog4j2.disableJmx=true -Djdk.reflect.useNativeAccessorOnly=true"
    assert keys["vmargs"] == f"-Dlog4j.configurationFile=profiles/mine.log4j2.xml {flags}"
    assert '"batchSize": 3' in keys["models"]
    written(tmp_path / "profiles", "[registration]\nbatch_size = 4")
    with pytest.raises(SlotwiseError, match=r"not what the profiles render to: .*profiles/mine.properties"):
        render.check(tmp_path)


def test_a_model_alone_may_have_its_batches_chosen_for_a_target() -> None:
    profile = load_profile("cpu", environ={}, cores=0)
    own = profile.for_model({"linger": "auto", "latency_p99_ms": 50})
    assert (profile.linger, own.linger, own.latency_p99_ms) == ("free", "auto", 50)


def test_every_key_is_on_the_page_as_it_is() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text("utf-8")
    for section in SECTIONS:
        told = page.split(f"### [{section}]")[1].split("##")[0]
        fields = {key: Profile.model_fields[key] for key in Profile.section(section)}
        rows = [f"| `{key}` | {json.dumps(field.default)} | {field.description} |" for key, field in fields.items()]
        assert re.findall(r"^\| `.*$", told, re.MULTILINE) == rows
    assert all(variable in page for variable in ENVIRONMENT)


def test_the_pages_table_of_profiles() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text("utf-8")
    for name in GIVEN:
        profile = load_profile(name, environ={}, cores=0)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.split("|")]
        wanted = [str(profile.batch_size), f"{profile.max_batch_delay_ms} ms", str(profile.initial_workers)]
        assert [cells[3], cells[4], re.split(r"\D", cells[5])[0]] == wanted


@pytest.mark.parametrize(("model", "order"), [("captions", git.ORDER), ("translation", translation.ORDER)])
@pytest.mark.parametrize("name", sorted(project.profiles()))
def test_every_profile_names_an_engine_that_the_text_models_have(
    model: str, order: dict[str, tuple[str, ...]], name: str
) -> None:
    """With cuda's own, torch, their workers ended at the start."""
    own = load_spec(project.model_folder(model)).profiles.get(name, {})
    profile = load_profile(name, environ={}, cores=0).for_model(own)
    assert profile.engine in ("auto", *(engine for engines in order.values() for engine in engines))
