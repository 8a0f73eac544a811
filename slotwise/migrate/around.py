"""What is written around a TorchServe: Dockerfile, compose, Kubernetes, KServe, Helm's values, scripts. Which words change."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from slotwise.archive.guarding.foreign import is_small
from slotwise.drop_in.arguments import parsed
from slotwise.migrate.findings import Said

IMAGE = re.compile(r"(?:docker\.io/)?pytorch/torchserve(?:-nightly|-kfs)?(?::[\w.-]+)?")
WORD = re.compile(r"(?<![\w/.-])torchserve(?=\s+--(?:start|stop|version)\b)")
GPU = "on a GPU: build Dockerfile.torchserve with a CUDA build of torch; that was not tried"
OWN_CODE = "a Python environment of its own: /home/venv is /opt/venv in the image here"
ARCHIVER = "the image has no torch-model-archiver: pack archives before, or `pip install torch-model-archiver`"

INSTALLS = "it installs torchserve itself: FROM the image instead, or install slotwise and link slotwise-torchserve"


class Around:
    """image: what stands where pytorch/torchserve stood."""

    def __init__(self, image: str) -> None:
        self.image = image

    def read(self, name: str, text: str) -> tuple[list[Said], str]:
        """What is found in one file, and its text as it is to be. Files that are not about TorchServe have no findings."""
        if name.lower().startswith("dockerfile") or name.lower().endswith(".dockerfile"):
            return self._dockerfile(text)
        if name.endswith((".yml", ".yaml")):
            return self._yaml(text)
        if name.endswith(".sh") or text.startswith("#!"):
            return self._script(text)
        return [], text

    def _dockerfile(self, text: str) -> tuple[list[Said], str]:
        found: list[Said] = []
        froms = re.findall(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", text, re.MULTILINE | re.IGNORECASE)
        theirs = [image for image in froms if IMAGE.fullmatch(image)]
        changed = re.sub(
            rf"^(\s*FROM\s+(?:--\S+\s+)*){IMAGE.pattern}", rf"\g<1>{self.image}", text, flags=re.MULTILINE | re.IGNORECASE
        )
        if theirs:
            found.append(("works", f"FROM {self.image}"))
            notes = {GPU: "gpu" in "".join(theirs), OWN_CODE: "/home/venv" in text}
            notes[ARCHIVER] = re.search(r"^\s*(?:RUN|&&).*torch-model-archiver\b", text, re.MULTILINE) is not None
            found += [("note", note) for note, holds in notes.items() if holds]
        elif re.search(r"pip3?\s+install\b[^\n]*\btorchserve\b", text):
            found.append(("note", INSTALLS))
        if found:
            found += [one for words in _docker_commands(text) for one in _said(words)]
        return found, changed

    def _yaml(self, text: str) -> tuple[list[Said], str]:
        import yaml  # noqa: PLC0415  optional: TorchServe brings it

        try:
            documents = [one for one in yaml.safe_load_all(text) if isinstance(one, dict) and is_small(one)]
        except (yaml.YAMLError, ValueError, RecursionError):
            return [], text
        found: list[Said] = []
        changed = text
        for document in documents:
            if document.get("kind") == "InferenceService":
                found += _kserve(document)
                changed = re.sub(r"^[ \t]*runtimeVersion:.*\n", "", changed, flags=re.MULTILINE)
        images = [value for one in documents for value in _values(one) if IMAGE.fullmatch(value)]
        if images:
            found.append(("works", f"image {self.image}"))
            found += [("note", GPU)] if any("gpu" in image for image in images) else []
            changed = IMAGE.sub(self.image, changed)
        commands = [words for one in documents for words in _commands(one)]
        return (found + [one for words in commands for one in _said(words)] if found else []), changed

    def _script(self, text: str) -> tuple[list[Said], str]:
        if not WORD.search(text):
            return [], text
        found: list[Said] = [("works", "says `slotwise torchserve`")]
        for line in text.replace("\\\n", " ").splitlines():
            if (match := WORD.search(line)) and not line.lstrip().startswith("#"):
                found += _said(_words(re.split(r"[;&|<>]", line[match.end() :])[0]))
        return found, WORD.sub("slotwise torchserve", text)


def _kserve(service: dict[str, Any]) -> Iterator[Said]:
    """What an InferenceService asks for, where it is TorchServe that answers."""
    predictor = (service.get("spec") or {}).get("predictor") or {}
    model = predictor.get("model") or {}
    framework = (model.get("modelFormat") or {}).get("name")
    if "pytorch" not in (framework, *predictor) and model.get("runtime") != "kserve-torchserve":
        return
    asked = predictor.get("pytorch") or model
    yield "works", "the service stays; the cluster's runtime changes: k8s/kserve/torchserve.yaml"
    if str(asked.get("protocolVersion", "")).startswith("grpc"):
        yield "cannot", "V2 over gRPC was KServe's program's before TorchServe: k8s/kserve/runtime.yaml has it"
    if asked.get("runtimeVersion"):
        yield "note", "runtimeVersion named TorchServe's image, and is gone"
    if asked.get("storageUri"):
        yield "note", "what lies at its storageUri was not seen: migrate that folder, too"
    if "explainer" in (service.get("spec") or {}):
        yield "note", "its explainer is a container of its own, and was not looked at"


def _said(words: list[str]) -> Iterator[Said]:
    """What a command line of TorchServe's says that differs here."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as complaint:
            arguments = parsed(words)
    except SystemExit:
        yield "cannot", f"its command line: {complaint.getvalue().strip().partition('error: ')[2]}"
        return
    for remark in arguments.remarks():
        yield "note", remark


def _docker_commands(text: str) -> Iterator[list[str]]:
    """The words behind `torchserve` in CMD and ENTRYPOINT."""
    for line in re.findall(r"^\s*(?:CMD|ENTRYPOINT)\s+(.*)$", text.replace("\\\n", " "), re.MULTILINE):
        with contextlib.suppress(ValueError):
            words = json.loads(line)
            if isinstance(words, list) and all(isinstance(word, str) for word in words):
                yield from _after_the_word(words)
                continue
        yield from _after_the_word(_words(line))


def _commands(document: Any) -> Iterator[list[str]]:
    """The words behind `torchserve` in every `command` and `args` of a document."""
    if isinstance(document, dict):
        for key in ("command", "args"):
            words = document.get(key)
            words = _words(words) if isinstance(words, str) else words
            if isinstance(words, list):
                yield from _after_the_word([str(word) for word in words])
        document = list(document.values())
    if isinstance(document, list):
        for one in document:
            yield from _commands(one)


def _after_the_word(words: list[str]) -> Iterator[list[str]]:
    if "torchserve" in words:
        yield words[words.index("torchserve") + 1 :]
    elif any(" " in word and WORD.search(word) for word in words):  # sh -c "torchserve --start ..."
        line = next(word for word in words if WORD.search(word))
        yield _words(re.split(r"[;&|<>]", line[WORD.search(line).end() :])[0])  # type: ignore[union-attr]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _values(document: Any) -> Iterator[str]:
    """Every text in a document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for one in document.values() if isinstance(document, dict) else document:
            yield from _values(one)
