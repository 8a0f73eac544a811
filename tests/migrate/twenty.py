"""Twenty deployments as people have them: seventeen of TorchServe's that move, one that cannot, and two SageMaker models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.drop_in.stores import archive
from tests.support.certificates import certificate

TEXT = {"content-type": "text/plain"}
STREAMS = """
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    if data is None:
        return None
    send_intermediate_predict_response(["piece"], context.request_ids, "ok", 200, context)
    return ["end"]
"""
FUNCTION = "def answer(data, context):\n    return None if data is None else ['function'] * len(data)\n"
CONFIGURED = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 50\nresponseTimeout: 60\n"
METRICS = """\
dimensions: [&model_name "ModelName"]
ts_metrics: {counter: [{name: Requests2XX, unit: Count, dimensions: []}]}
model_metrics: {counter: []}
"""
ADDRESSES = (
    "inference_address=http://0.0.0.0:8080\nmanagement_address=http://0.0.0.0:8081\nmetrics_address=http://0.0.0.0:8082\n"
)
DOCKERFILE = """\
FROM pytorch/torchserve:0.12.0-cpu
COPY config.properties /home/model-server/config.properties
COPY model-store /home/model-server/model-store
CMD ["torchserve", "--start", "--foreground", "--ts-config", "config.properties", "--models", "all"]
"""
COMPOSE = """\
services:
  models:
    image: pytorch/torchserve:0.12.0-cpu   # the release of last year
    command: torchserve --start --foreground --model-store model-store --models all --workflow-store wf
    volumes: [./model-store:/home/model-server/model-store]
"""
SERVICE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: digits}
spec:
  predictor:
    model:
      modelFormat: {name: pytorch}
      runtimeVersion: 0.9.0
      protocolVersion: v2
      storageUri: pvc://models
"""
HELM = "torchserve_image: pytorch/torchserve:latest-gpu\nnamespace: torchserve\ntorchserve:\n  n_gpu: 1\n"
SCRIPT = """\
#!/bin/sh
# torchserve --stop is not needed at the start
torchserve --stop --foreground; torchserve --start --foreground \\
  --ts-config config.properties --model-store model-store --models all --ncs
"""
OWN_FUNCTIONS = """
import json

def model_fn(model_dir):
    with open(f"{model_dir}/factor.json") as file:
        return json.load(file)

def input_fn(body, content_type):
    if content_type != "application/json":
        raise ValueError("this is no JSON")
    return json.loads(body)

def predict_fn(data, model):
    return [model * value for value in data]

def output_fn(prediction, accept):
    return json.dumps(prediction), accept
"""


@dataclass(frozen=True)
class Told:
    """One deployment. verdict: what `slotwise migrate` is to say. models: who is asked, with these bodies. lines: of its
    config.properties beside addresses. options: of its command line."""

    write: Callable[[Path], None]
    verdict: str = "works"
    models: tuple[str, ...] = ("echo",)
    bodies: tuple[tuple[bytes, dict[str, str]], ...] = ((b"one", TEXT), (b'{"a": 1}', {"content-type": "application/json"}))
    lines: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--ncs", "--models", "all", "--dt")
    scheme: str = "http"
    about: tuple[str, ...] = field(default=())  # what is to be said, among other things


def store(folder: Path, *names: str) -> None:
    for name in names or ("echo",):
        archive(folder / "model-store", name, name)


def config(folder: Path, *lines: str) -> None:
    (folder / "config.properties").write_text(ADDRESSES + "".join(f"{line}\n" for line in lines))


def written(**texts: str) -> Callable[[Path], None]:
    """A store with echo, a config.properties, and these files."""

    def write(folder: Path) -> None:
        store(folder)
        config(folder)
        for name, text in texts.items():
            (folder / name.replace("__", ".")).write_text(text)

    return write


def configured(*lines: str, names: tuple[str, ...] = ("echo",)) -> Callable[[Path], None]:
    """A store and a config.properties with these lines."""

    def write(folder: Path) -> None:
        store(folder, *names)
        config(folder, *lines)

    return write


def with_yaml(folder: Path) -> None:
    (folder / "settings.yaml").write_text(CONFIGURED)
    archive(folder / "model-store", "echo", "echo", config_file=folder / "settings.yaml")


def with_function(folder: Path) -> None:
    """The archiver has no words for it; people write the manifest."""
    (folder / "entry.py").write_text(FUNCTION)
    archive(folder / "model-store", "echo", str(folder / "entry.py"), form="no-archive")
    packed = folder / "model-store" / "echo"
    manifest = packed / "MAR-INF" / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace('"entry.py"', '"entry.py:answer"'))
    shutil.make_archive(str(folder / "model-store" / "made"), "zip", packed)
    (folder / "model-store" / "made.zip").rename(folder / "model-store" / "echo.mar")
    shutil.rmtree(packed)


def in_form(form: str) -> Callable[[Path], None]:
    return lambda folder: archive(folder / "model-store", "echo", "echo", form=form)


def two_versions(folder: Path) -> None:
    archive(folder / "model-store", "echo", "echo")
    archive(folder / "model-store", "next", "echo", version="2.0")


def with_tls(folder: Path) -> None:
    configured("private_key_file=key.pem", "certificate_file=cert.pem")(folder)
    made, key = certificate(folder)
    made.rename(folder / "cert.pem")
    key.rename(folder / "key.pem")


def with_metrics(folder: Path) -> None:
    configured("metrics_mode=prometheus", "metrics_config=metrics.yaml")(folder)
    (folder / "metrics.yaml").write_text(METRICS)


def as_kserve(folder: Path) -> None:
    (folder / "config").mkdir()
    (folder / "config" / "config.properties").write_text("inference_address=http://0.0.0.0:8085\nenable_envvars_config=true\n")
    (folder / "service.yaml").write_text(SERVICE)
    store(folder)


def with_wishes(folder: Path) -> None:
    """A handler of torch's, as most are: its own class, weights in the archive."""
    import torch

    torch.manual_seed(0)
    torch.jit.trace(torch.nn.Linear(4, 3).eval(), torch.zeros(1, 4)).save(str(folder / "traced.pt"))  # type: ignore[no-untyped-call]
    archive(folder / "model-store", "traced", "tensors", serialized_file=folder / "traced.pt")
    (folder / "traced.pt").unlink()


def streaming(folder: Path) -> None:
    (folder / "streams.py").write_text(STREAMS)
    archive(folder / "model-store", "streams", str(folder / "streams.py"))


def workflow(folder: Path) -> None:
    configured()(folder)
    (folder / "wf").mkdir()
    (folder / "wf" / "two.war").write_bytes(b"PK\x05\x06" + bytes(18))


def sagemaker_own(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "inference.py").write_text(OWN_FUNCTIONS)
    (folder / "code" / "requirements.txt").write_text("requests\n")
    (folder / "factor.json").write_text("3")


def sagemaker_script(folder: Path) -> None:
    import torch

    torch.manual_seed(1)
    torch.jit.script(torch.nn.Linear(2, 3).eval()).save(str(folder / "model.pt"))  # type: ignore[no-untyped-call]


BATCHED = {"echo": {"1.0": {"defaultVersion": True, "marName": "echo.mar", "batchSize": 8, "maxBatchDelay": 50}}}
NUMBERS = ((b"[[1, 2, 3, 4]]", {"content-type": "application/json"}),)
TWENTY = {
    "a store alone": Told(store),
    "a Dockerfile": Told(written(Dockerfile=DOCKERFILE), about=("FROM slotwise-torchserve",)),
    "a compose file": Told(written(compose__yaml=COMPOSE), "note", about=("--workflow-store has no meaning",)),
    "a start script": Told(written(start__sh=SCRIPT), about=("says `slotwise torchserve`",)),
    "Helm's values": Told(written(values__yaml=HELM), "note", about=("on a GPU",)),
    "KServe": Told(as_kserve, "note", about=("runtimeVersion",)),
    "model-config.yaml": Told(with_yaml),
    "models in config.properties": Told(configured(f"models={json.dumps(BATCHED)}"), lines=(f"models={json.dumps(BATCHED)}",)),
    "a function as handler": Told(with_function),
    "an archive as .tar.gz": Told(in_form("tgz")),
    "an archive as a folder": Told(in_form("no-archive")),
    "two versions": Told(two_versions, models=("echo", "next")),
    "TLS": Told(with_tls, lines=("private_key_file=key.pem", "certificate_file=cert.pem"), scheme="https"),
    "metrics of its own": Told(with_metrics, lines=("metrics_mode=prometheus", "metrics_config=metrics.yaml")),
    "tokens, Java's options": Told(
        configured("vmargs=-Xmx4g", "number_of_netty_threads=4", names=("echo", "headers")),
        "note",
        models=("echo", "headers"),
        options=("--ncs", "--models", "all"),
        lines=("number_of_netty_threads=4",),
        about=("Java's",),
    ),
    "a network of torch's": Told(with_wishes, models=("traced",), bodies=NUMBERS),
    "a handler that streams": Told(streaming, models=("streams",)),
    "a workflow": Told(workflow, "cannot", models=(), about=("workflows are not there",)),
    "SageMaker's functions": Told(sagemaker_own, "note", bodies=((b"[1, 2]", {"content-type": "application/json"}),)),
    "SageMaker's TorchScript": Told(
        sagemaker_script,
        bodies=(
            (b"[[1, 2]]", {"content-type": "application/json"}),
            (b"1,2", {"content-type": "text/csv"}),
            (b"[[1, 2]]", {"content-type": "application/json", "accept": "text/csv"}),
        ),
    ),
}


def made(place: Path, name: str) -> Path:
    """The folder of one of the twenty."""
    folder = place / name.replace(" ", "-").replace("'", "").replace(",", "")
    folder.mkdir(parents=True)
    TWENTY[name].write(folder)
    return folder


def command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`slotwise` with these words."""
    line = [sys.executable, "-m", "slotwise.cli", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=cwd)
