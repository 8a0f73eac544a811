"""Archives of torch-model-archiver: TorchServe's own image_classifier on the same network, and a handler as short as can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.torchvision_stub import SITECUSTOMIZE

HERE = Path(__file__).resolve().parent
MODEL_PY = {
    "resnet18": """\
from torchvision.models.resnet import BasicBlock, ResNet


class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(BasicBlock, [2, 2, 2, 2])
""",
    "resnet152": """\
from torchvision.models.resnet import Bottleneck, ResNet


class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(Bottleneck, [3, 8, 36, 3])
""",
    "efficientnet": """\
from slotwise.zoo.efficientnet import EfficientNetLite0


class ImageClassifier(EfficientNetLite0):
    def __init__(self):
        super().__init__(1000)
""",
}

NETWORKS = {name: name for name in ("resnet18", "resnet152")} | {
    "efficientnet": "efficientnet_lite0"
}  # of slotwise.zoo.networks


def build(store: Path, model: str, labels: list[str], weights: str, needs: Path) -> Path:
    """STORE/stock.mar: eager PyTorch, fp32, as `torch-model-archiver --handler image_classifier` makes it.

    needs: a folder whose content is carried along, see `requirements`. Returns the file with the network's weights.
    """
    import torch

    work = store / "stock-parts"
    work.mkdir(parents=True, exist_ok=True)
    (work / "model.py").write_text(MODEL_PY[model], "utf-8")
    (work / "index_to_name.json").write_text(json.dumps({str(i): label for i, label in enumerate(labels)}), "utf-8")
    torch.save(weights_of(model, len(labels), weights), work / "weights.pth")
    command = ["--model-file", "model.py", "--serialized-file", "weights.pth", "--handler", "image_classifier"]
    archive("stock", store, work, [*command, "--extra-files", f"index_to_name.json,{needs.resolve()}"])
    return work / "weights.pth"


def weights_of(model: str, labels: int, weights: str) -> dict[str, Any]:
    """The very weights that the model's own archive has: untrained ones are settled as its make.py does it."""
    import torch

    from slotwise.files.project import model_folder
    from slotwise.model_spec import load_spec
    from slotwise.worker.inputs.images import Recipe
    from slotwise.zoo import pictures
    from slotwise.zoo.imagenet import COMPARED
    from slotwise.zoo.networks import network, settle
    from slotwise.zoo.vision import PixelNetwork

    module = network(NETWORKS[model], labels, weights)
    if weights == "none":
        folder = model_folder(model)
        spec = load_spec(folder)
        recipe = Recipe.of(spec.input.model_dump())
        pixels = pictures.cuts_of([folder / name for name in spec.examples], recipe, COMPARED)
        settle(PixelNetwork(module, spec.input.mean, spec.input.std), torch.from_numpy(pixels[:16]))
    state: dict[str, Any] = module.state_dict()
    return state


def pack_handler(store: Path, name: str, settings: Mapping[str, Any]) -> None:
    """STORE/NAME.mar: torchserve_app.py, what it serves, and the settings that it reads."""
    work = store / f"{name}-parts"
    work.mkdir(parents=True, exist_ok=True)
    (work / "settings.json").write_text(json.dumps(settings), "utf-8")
    files = f"{HERE / 'classifier.py'},{HERE / 'misbehaving.py'},{work.resolve() / 'settings.json'}"
    archive(name, store, work, ["--handler", str(HERE / "torchserve_app.py"), "--extra-files", files])


def archive(name: str, store: Path, work: Path, arguments: list[str]) -> None:
    """STORE/NAME.mar, as torch-model-archiver packs it."""
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name, "--version", "1.0", "--force"]
    (work / "tmp").mkdir(exist_ok=True)
    environ = {**os.environ, "TMPDIR": str((work / "tmp").resolve())}
    command += ["--export-path", str(store.resolve()), *arguments]
    subprocess.run(command, cwd=work, check=True, capture_output=True, env=environ)


def requirements(folder: Path) -> Path:
    """A folder of what the stock handler needs besides torchserve: captum, which it imports, and a torchvision that loads.

    captum comes without its dependencies, which would change our numpy; a worker has its archive's folder on its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "captum").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "captum"]
        subprocess.run(command, check=True)
    if subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, "utf-8")
    return folder
