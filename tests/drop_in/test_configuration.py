"""What holds: config.properties, the command line, the environment."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest

from slotwise.backends.management.bearer import Tokens
from slotwise.drop_in import snapshots
from slotwise.drop_in.archive_source import DeployedArchives
from slotwise.drop_in.arguments import Arguments, parsed
from slotwise.drop_in.configuration import Address, Configuration, configured
from slotwise.drop_in.known_keys import KEYS, remarks
from slotwise.drop_in.model_table import shown_word
from slotwise.drop_in.server import MOST_MINUTES, _minutes, introduced, profile_of
from slotwise.drop_in.server_numbers import _of_models
from slotwise.drop_in.snapshots import Snapshots, models_of, newest
from slotwise.drop_in.web_apis import printable
from slotwise.errors import SlotwiseError
from slotwise.worker.environment.cores import available_cores

PAGE = Path(__file__).parents[2] / "docs" / "config-properties.md"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    return tmp_path


def configured_with(text: str, words: str = "--model-store store", **environ: str) -> Configuration:
    Path("config.properties").write_text(text)
    return configured(parsed(words.split()), environ)


def test_the_environment_wins_over_the_command_line_which_wins_over_the_file() -> None:
    text = "enable_envvars_config=true\nload_models=file\nmodel_store=elsewhere\ndefault_response_timeout=1"
    held = configured_with(text, "--model-store store --models line", TS_LOAD_MODELS="environment")
    assert held.text("load_models") == "environment"
    assert held.model_store == Path("store").resolve()
    assert held.number("default_response_timeout", 120) == 1


def test_without_enable_envvars_config_the_environment_says_nothing() -> None:
    assert configured_with("", TS_LOAD_MODELS="environment").text("load_models") == ""


def test_variables_are_called_as_on_torchserve() -> None:
    environ = {
        "TS_TOKEN_EXPIRATION_TIME_MIN": "3",
        "TS_TOKEN_EXPIRATION_MIN": "4",
        "TS_HEADER_KEY_SEQUENCE_ID": "x-sequence",
        **{"TS_MODELS": "a.mar b.mar", "TS_MODEL_SNAPSHOT": "x", "TS_METRIC_TIME_INTERVAL": "1"},
    }
    held = configured_with("enable_envvars_config=true", **environ)
    assert dict(held.keys) == {
        **{"enable_envvars_config": "true", "model_store": "store"},
        **{"token_expiration_min": "3", "ts_header_key_sequence_id": "x-sequence"},
    }


def test_a_variable_allows_urls_only_where_the_file_says_so() -> None:
    text = "enable_envvars_config=true\nallowed_urls=http://file/.*\n"
    assert configured_with(text, TS_ALLOWED_URLS="http://a/.*").text("allowed_urls") == "http://file/.*"
    text += "use_env_allowed_urls=TRUE"
    assert configured_with(text, TS_ALLOWED_URLS="http://a/.*").text("allowed_urls") == "http://a/.*"


def test_a_file_is_read_as_java_reads_it() -> None:
    text = "# a comment\n! another\njob_queue_size : 7\nallowed_urls = file://.*, \\\n   http://a/.*\nload_models=caf\\u00e9\nlast=x"
    held = configured_with(text)
    assert held.number("job_queue_size", 100) == 7
    assert held.text("allowed_urls") == "file://.*, http://a/.*"
    assert held.text("load_models") == "café"
    assert held.text("last") == "x"


def test_a_value_may_name_a_variable() -> None:
    assert configured_with("load_models=$$WHICH$$.mar", WHICH="mine").text("load_models") == "mine.mar"
    with pytest.raises(SlotwiseError, match="Invalid Environment Variable NOBODY"):
        configured_with("load_models=$$NOBODY$$")


def test_ts_config_file_wins_over_the_option() -> None:
    Path("other").write_text("load_models=other")
    Path("third").write_text("load_models=third")
    held = configured_with("load_models=plain", "--model-store store --ts-config third", TS_CONFIG_FILE="other")
    assert held.text("load_models") == "other"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("keystore=a.p12", "keystore is refused"),
        ("max_request_size=0", "max_request_size is below 1"),
        ("inference_address=http://127.0.0.1:0", "is no address"),
        ("job_queue_size=many", "job_queue_size is not a whole number"),
        ("default_response_timeout=-1", "below 0"),
        ("inference_address=ftp://x:1", "is no address"),
        ("metrics_address=http://127.0.0.1:8081", "share a port"),
        ("management_address=http://0.0.0.0:8080", "share a port"),
        ("management_address=http://127.0.0.1:8080\nmetrics_address=http://127.0.0.1:8080", "share a port"),
        ("inference_address=https://127.0.0.1:8443", "private_key_file and certificate_file"),
        ("enable_grpc_ssl=true", "enable_grpc_ssl needs private_key_file and certificate_file"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(SlotwiseError, match=why):
        configured_with(text)


def test_inference_and_management_may_be_one() -> None:
    assert configured_with("management_address=http://127.0.0.1:8080").one_port
    assert not configured_with("").one_port


@pytest.mark.parametrize("words", ["", "--model-store nowhere", "--model-store store --ts-config nowhere"])
def test_what_is_missing_is_named(words: str) -> None:
    with pytest.raises(SlotwiseError, match=r"model-store|not found"):
        configured_with("", words)


def test_what_is_false_is_not_asked_for() -> None:
    assert configured_with("keystore=false\nenable_grpc_ssl=False").text("enable_grpc_ssl") == "False"


def test_what_has_no_meaning_is_named_once_and_without_its_value() -> None:
    lines = remarks({"vmargs": "-Dsecret=1", "job_queue_size": "1", "made_up": "x"})
    assert lines == [
        "config.properties: made_up is no key of TorchServe's: ignored",
        "config.properties: vmargs has no meaning here (Java's: there is none here)",
    ]
    assert parsed(["--model-store", "s", "--workflow-store", "w"]).remarks()[0].startswith("--workflow-store has no meaning")


@pytest.mark.parametrize("key", KEYS)
def test_the_page_has_every_key(key: str) -> None:
    assert f"| `{key}` | {KEYS[key].use} | {KEYS[key].note} |" in PAGE.read_text("utf-8")


def test_an_address_is_taken_apart() -> None:
    assert Address.parsed("https://[::1]:8443", "inference") == Address("::1", 8443, True)
    assert Address("::1", 8443, True).url == "https://[::1]:8443"
    for text in ("::1", "[::1]", " ::1 "):
        assert configured_with(f"grpc_inference_address={text}").grpc_host("inference") == "::1"
    plain = [Address.parsed("http://0.0.0.0", api).port for api in ("inference", "management", "metrics")]
    secured = [Address.parsed("https://0.0.0.0", api).port for api in ("inference", "management", "metrics")]
    assert (plain, secured) == ([80, 8081, 8082], [443, 8444, 8445])


def test_a_command_line_opens_its_own_start_alone() -> None:
    held = configured_with(
        "job_queue_size=7\nload_models=$$WHICH$$", "--model-store store --dt --enable-model-api", WHICH="a.mar"
    )
    assert not held.tokens
    assert (held.text("load_models"), held.kept["load_models"], held.kept["job_queue_size"]) == ("a.mar", "$$WHICH$$", "7")
    assert "disable_token_authorization" not in held.kept
    assert not configured_with("disable_token_authorization=true").tokens
    assert configured_with("disable_token_authorization=true ").tokens  # as Java reads it


def test_numbers_are_those_of_this_process() -> None:
    assert configured_with("number_of_gpu=-1").gpus() == 0
    assert configured_with("").workers_at_start() == available_cores()
    assert profile_of(configured_with("default_response_timeout=100000")).response_timeout_s == 86_400


def test_the_newest_snapshot_is_the_configuration_where_none_is_named() -> None:
    config = Path("logs/config")
    config.mkdir(parents=True)
    (config / "20260101000000000-shutdown.cfg").write_text("load_models=older")
    (config / "20260101000000001-snapshot.cfg").write_text("load_models=newer")
    (config / "mine.cfg").write_text("load_models=mine")
    assert configured_with("load_models=plain").text("load_models") == "newer"
    assert configured_with("load_models=plain", "--model-store store --ncs").text("load_models") == "plain"


@pytest.mark.parametrize("text", ["{", "[]", '{"models": 3}', '{"models": {"a": 3}}'])
def test_a_snapshot_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SlotwiseError, match="model_snapshot"):
        models_of(text, "model_snapshot")


def test_numbers_of_models_may_be_texts_as_on_torchserve() -> None:
    text = '{"m": {"1.0": {"marName": "08", "batchSize": "8", "maxBatchDelay": "2.5", "minWorkers": 2}}}'
    (found,) = models_of(text, "models")
    assert (found.archive, *map(found.number, ("batchSize", "maxBatchDelay", "minWorkers"))) == ("08", 8, None, 2)


def test_the_command_line_is_torchserves() -> None:
    words = ["--start", "--foreground", "--models", "a.mar", "b=c.mar", "--ncs", "--dt", "--enable-model-api", "--ppath", "x"]
    said = parsed(words)
    assert said.keys() == {
        "load_models": "a.mar,b=c.mar",
        "disable_token_authorization": "true",
        "enable_model_api": "true",
    }
    assert (said.foreground, said.no_config_snapshots, said.words) == (True, True, tuple(words))
    with pytest.raises(SystemExit):
        parsed(["--start", "--stop"])
    assert Arguments().keys() == {}


def test_no_line_has_the_secret_of_an_address() -> None:
    address = "https://user:S3CRET@bucket/x.mar?sig=S3CRET"
    assert shown_word(f"k={address}") == "k=https://bucket/x.mar"
    assert (shown_word("a.mar"), shown_word("k=a.mar")) == ("a.mar", "k=a.mar")
    for target in (f"/models?url={address}&X-Amz-Signature=S3CRET&batch_size=4", f"/models?batch_size=4&url={quote(address)}"):
        line = printable(target)
        assert "S3CRET" not in line
        assert "url=https://bucket/x.mar" in line
        assert "batch_size=4" in line
    assert printable("/models?url=a.mar&synchronous=true") == "/models?url=a.mar&synchronous=true"


def test_a_snapshot_is_the_newest_one_also_where_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return times.pop(0)

    times = [datetime(2026, 10, 25, 2, 55), datetime(2026, 10, 25, 2, 5), datetime(2026, 10, 25, 3, 5)]
    monkeypatch.setattr(snapshots, "datetime", Clock)
    for mark in "abc":
        Snapshots(Path("logs/config"), {"mark": mark}).save("snapshot", [])
        last = newest(Path("logs/config"))
        assert last is not None
        assert f"mark={mark}" in last.read_text()
    assert last.name.startswith("20261025030500000")


def test_it_is_said_which_apis_are_open_to_whoever_reaches_them(tmp_path: Path) -> None:
    text = "disable_token_authorization=true\ngrpc_inference_address=0.0.0.0\n"
    text += "grpc_management_address=[::]\ngrpc_management_port=71"
    said = introduced(configured_with(text), parsed([]), tmp_path).splitlines()
    assert [line for line in said if line.startswith("whoever")] == [
        "whoever reaches 0.0.0.0:7070 may use the inference API over gRPC: tokens are switched off",
        "whoever reaches [::]:71 may use the management API over gRPC: tokens are switched off",
    ]


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "soon"])
def test_a_tokens_life_that_is_no_number_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SlotwiseError, match=f"token_expiration_min is no number: {text}"):
        _minutes(configured_with(f"token_expiration_min={text}"))


def test_a_token_lives_no_longer_than_a_date_can_say(tmp_path: Path) -> None:
    minutes = _minutes(configured_with("token_expiration_min=999999999999"))
    assert minutes == MOST_MINUTES
    tokens = Tokens(tmp_path, 60 * minutes)
    assert tokens.opens("inference", b"Bearer " + tokens.now["inference"].encode())
    assert _minutes(configured_with("token_expiration_min=0.05")) == 0.05


@pytest.mark.parametrize("entry", ["unit: ms", "Foo", "[Foo]"])
def test_a_metric_without_a_name_is_refused_in_one_line(entry: str) -> None:
    pytest.importorskip("yaml")
    Path("metrics.yaml").write_text(f"model_metrics:\n  counter:\n    - {entry}\n")
    with pytest.raises(SlotwiseError, match=r"metrics_config: metrics\.yaml: no name in counter: "):
        list(_of_models(configured_with("metrics_config=metrics.yaml")))


def test_all_models_are_those_that_are_not_hidden(place: Path) -> None:
    for name in (
        ".old.mar",
        "._a.mar",
        "a.mar",
        "b.tar.gz",
        "notes.txt",
        "folder/MAR-INF/MANIFEST.json",
        ".git/MAR-INF/MANIFEST.json",
    ):
        (place / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "store" / name).touch()
    assert DeployedArchives(configured_with(""), place / "archives").all() == ["a.mar", "b.tar.gz", "folder"]
