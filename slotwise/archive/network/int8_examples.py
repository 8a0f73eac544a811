"""Make a network's int8 weights from its ONNX graph and the model's own examples, where no make.py has made any.

Pictures are cut up as by the make.py of slotwise.zoo: cuts judge, and others, mirrored, darker and brighter, calibrate. Of
tensors every other example calibrates, and the rest judge.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.archive.input_digests import SERVING
from slotwise.archive.make_script import installed_versions, partial_folder
from slotwise.archive.network.named_examples import named_examples
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import locked
from slotwise.model_spec import ModelSpec
from slotwise.worker.engines import load_engine
from slotwise.worker.environment.settings import Settings
from slotwise.worker.inputs.images import Recipe
from slotwise.worker.labels import kind_of, scores
from slotwise.worker.separability.about import version_of

HANDLERS = ("image_classifier", "tensor_classifier")
FILE, MEASURED = "int8.xml", "int8.json"
CUTS = 64
LEAST_TENSORS = 16  # examples


def need_examples(spec: ModelSpec) -> None:
    """Raise SlotwiseError where nobody can make int8 weights of this model from what is there, and say what is missing."""
    if spec.weights.onnx is None:
        raise SlotwiseError(
            f"{spec.name} has no int8 weights, and no ONNX graph to make them from",
            'name one in its model.toml: [weights] onnx = "model.onnx"; or openvino_int8, which its make.py writes',
        )
    if spec.handler not in HANDLERS or kind_of(spec.model_dump()) not in ("logits", "probabilities"):
        raise SlotwiseError(
            f"{spec.name} has no int8 weights, and only classifiers of pictures and tensors are calibrated by their examples",
            "name a file in its model.toml: [weights] openvino_int8, which its make.py writes",
        )
    least = 1 if spec.handler == HANDLERS[0] else LEAST_TENSORS
    if len(spec.examples) < least:
        raise _too_few(spec, f"{len(spec.examples)} examples", least)


def _too_few(spec: ModelSpec, has: str, least: int) -> SlotwiseError:
    return SlotwiseError(
        f"{spec.name} has {has}, and int8 is calibrated with at least {least}",
        "name bodies as they are really sent in its model.toml: examples = [...]",
    )


def with_int8(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, Path, dict[str, Any]]:
    """Make the weights, or take those that were made of the same files, for the same description and with the same versions.

    Returns the description that names them, the folder that they are in, and how far they agree with fp32, as a make.py does.

    Raises SlotwiseError where `need_examples` does, for an example that is refused, and for a graph that has no int8.
    """
    need_examples(spec)
    graph = next((path for source in sources if (path := source / str(spec.weights.onnx)).is_file()), None)
    if graph is None:
        raise SlotwiseError(f"{spec.weights.onnx} is named in model.toml but is not in {sources[-1]}", "add the file")
    calibrating, judging, key = _inputs(spec, sources, graph)
    out = project.cache_dir() / spec.name / f"int8-{key}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.parent / "int8"):
        if not (out / MEASURED).is_file():
            with partial_folder(out.with_name(f"{out.name}.partial")) as unfinished:
                _write(spec, graph, unfinished, calibrating, judging)
                shutil.rmtree(out, ignore_errors=True)
                unfinished.rename(out)
    weights = spec.weights.model_copy(update={"openvino_int8": FILE})
    return spec.model_copy(update={"weights": weights}), out, json.loads((out / MEASURED).read_text("utf-8"))


def _inputs(spec: ModelSpec, sources: list[Path], graph: Path) -> tuple[Any, Any, str]:
    """Engine inputs to calibrate with and to judge on, and a digest of all that the weights depend on."""
    handler = _handler(spec.handler)
    handler.settings = Settings(engine="onnxruntime", precision="fp32", threads=1, model=_described(spec))
    handler.load(graph.parent, handler.settings)  # how bodies become items, and items inputs
    if spec.handler == HANDLERS[0]:
        calibrating, judging = _pictures(spec, sources, handler)
    else:
        items = list(named_examples(spec, sources, handler.decode, "[input]"))
        if (others := len({item.tobytes() for item in items})) < LEAST_TENSORS:
            raise _too_few(spec, f"{others} examples that are not alike", LEAST_TENSORS)
        calibrating, judging = items[::2], items[1::2]
    inputs = handler.collate(list(calibrating)), handler.collate(list(judging))
    versions = {**installed_versions(), "nncf": version_of("nncf")}
    digest = hashlib.sha256(f"{spec.model_dump_json(exclude=SERVING)} {json.dumps(versions)}".encode())
    digest.update(graph.read_bytes())
    for rows in inputs:
        digest.update(np.ascontiguousarray(rows).tobytes())
    return *inputs, digest.hexdigest()[:16]


def _pictures(spec: ModelSpec, sources: list[Path], handler: Any) -> tuple[Any, Any]:
    from slotwise.zoo.pictures import cuts_of, for_calibration  # noqa: PLC0415  brings Pillow

    recipe = Recipe.of(_described(spec)["input"])
    if recipe.ink:  # a cut of a drawn sign is another sign
        judging = np.stack(list(named_examples(spec, sources, handler.decode, "[input]")))
    else:
        files = [path for name in spec.examples if (path := _file(name, sources)) and _is_picture(path)]
        if not files:
            raise SlotwiseError(f"none of {spec.name}'s examples is a picture by itself", "name a JPEG or a PNG in examples")
        judging = cuts_of(files, recipe, CUTS)
    return for_calibration(judging, trained=True), judging


def _file(name: str, sources: list[Path]) -> Path | None:
    return next((path for folder in sources if (path := folder / name).is_file()), None)


def _is_picture(path: Path) -> bool:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  slow to import

    try:
        with Image.open(path):
            return True
    except (UnidentifiedImageError, OSError):
        return False


def _write(spec: ModelSpec, graph: Path, out: Path, calibrating: Any, judging: Any) -> None:
    from slotwise.zoo import agreement, int8_weights  # noqa: PLC0415  brings nncf

    int8_weights.write(graph, out / FILE, calibrating, spec.options.get("int8_exact", 0))
    before = _outputs(spec, graph.parent, {"onnx": graph.name}, "onnxruntime", "fp32", judging)
    try:
        after = _outputs(spec, out, {"openvino_int8": FILE}, "openvino", "int8", judging)
    except ValueError as error:
        raise SlotwiseError(f"{spec.name} cannot serve in int8: {error}", "build it without --int8") from error
    verdict = {**agreement.compare(before, after, "int8", True, partial(scores, model=_described(spec))), "checked": True}
    measured = {"pictures": len(judging), "engines": {"openvino-int8": verdict}}
    (out / MEASURED).write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


def _outputs(spec: ModelSpec, folder: Path, weights: dict[str, str], engine: str, precision: str, inputs: Any) -> Any:
    """What an engine gives [n, ...]."""
    model = {**_described(spec), "weights": weights}
    run = load_engine(folder, Settings(engine=engine, precision=precision, threads=1, model=model))
    return np.concatenate([np.asarray(run(inputs[i : i + 1]), np.float64).reshape(1, -1) for i in range(len(inputs))])


def _described(spec: ModelSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_none=True)


def _handler(name: str) -> Any:
    """A given handler, as its file makes it."""
    spec = importlib.util.spec_from_file_location(f"slotwise_given_{name}", project.handler_file(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.handle.__self__.handler
