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

TAG = r"(?::(?:[\w.-]|\$\w+|\$\{[^}\s]*\})+)?(?:@sha256:\w+)?"
IMAGE = re.compile(rf"(?<![\w./:@-])(?:docker\.io/)?pytorch/torchserve(?:-nightly|-kfs)?{TAG}(?![\w./:@$-])")
LIKE_IT = re.compile(r"(?:[\w.-]+(?::\d+)?/)*pytorch/torchserve[\w.:@/-]*")
FROM = r"^(\s*(?i:FROM)\s+(?:--\S+\s+)*)"
ARG = r"^(\s*(?i:ARG)\s+{}=[\"']?)"
OPTIONS = r"start|stop|foreground|ts-config|model-store|workflow-store|models|(?:cpp-)?log-config|no-config-snapshots|ncs"
MORE_OPTIONS = r"plugins-path|ppath|disable-token-auth|dt|enable-model-api|version"
WORD = re.compile(rf"(?<![\w/.-])(?<!slotwise )torchserve(?=(?:\s|\\\r?\n)+(?:-v|--(?:{OPTIONS}|{MORE_OPTIONS}))(?![\w-]))")
ANY_WORD = re.compile(r"(?<![\w.-])(?<!slotwise )(?<!pytorch/)torchserve(?![\w.:@/-])")
PROSE = (".md", ".rst", ".txt")
CONTINUED = re.compile(r"\\\r?\n")
END = re.compile(r"(?:(?<=\s)\d)?[<>]|[;&|)`\n]")  # of a command in a line
GPU = "on a GPU: build Dockerfile.torchserve with a CUDA build of torch; that was not tried"
OWN_CODE = "a Python environment of its own: /home/venv is /opt/venv in the image here"
VERSION = "its runtimeVersion names TorchServe's image: take it out"
TAGGED = "a tag or digest beside the image's name is TorchServe's still: change it, too"
ARCHIVER = "the image has no torch-model-archiver: pack archives before, or `pip install torch-model-archiver`"

INSTALLS = "it installs torchserve itself: FROM the image instead, or install slotwise and link slotwise-torchserve"


class Around:
    """image: what stands where pytorch/torchserve stood."""

    def __init__(self, image: str) -> None:
        self.image = image

    def read(self, name: str, text: str) -> tuple[list[Said], str]:
        """What is found in one file, and its text as it is to be. Files that are not about TorchServe have no findings."""
        found: list[Said] = []
        changed = text
        if name.lower().startswith(("dockerfile", "containerfile")) or name.lower().endswith(".dockerfile"):
            found, changed = self._dockerfile(text)
        elif name.endswith((".yml", ".yaml")):
            found, changed = self._yaml(text)
        elif name.endswith(".sh") or text.startswith("#!"):
            found, changed = self._script(text)
        elif WORD.search(text) and not name.lower().endswith(PROSE):  # a Makefile, a unit of systemd's
            found = list(_still(text))
        return [*found, *self._left(changed)], changed

    def _left(self, changed: str) -> Iterator[Said]:
        """A note for each image that may be TorchServe's, and is named still."""
        lines = [line for line in changed.replace(self.image, "").splitlines() if not _is_comment(line)]
        for image in sorted(set(LIKE_IT.findall("\n".join(lines)))):
            yield "note", f"{image} is not changed: where that is TorchServe's image, name {self.image} instead"

    def _dockerfile(self, text: str) -> tuple[list[Said], str]:
        found: list[Said] = []
        froms = re.findall(rf"{FROM}(\S+)", text, re.MULTILINE)
        theirs = [image for _, image in froms if IMAGE.fullmatch(image)]
        changed = re.sub(FROM + IMAGE.pattern, rf"\g<1>{self.image}", text, flags=re.MULTILINE)
        for _, base in froms:
            if named := re.fullmatch(r"\$(?:(\w+)|\{(\w+)\})", base):
                arg = ARG.format(named[1] or named[2])
                theirs += [image for _, image in re.findall(rf"{arg}({IMAGE.pattern})", text, re.MULTILINE)]
                changed = re.sub(arg + IMAGE.pattern, rf"\g<1>{self.image}", changed, flags=re.MULTILINE)
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
            nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
            loaded = list(yaml.safe_load_all(text))
        except Exception:  # its constructors raise whatever an odd value meets: AttributeError, KeyError, IndexError
            return [], text
        read = [(one, node) for one, node in zip(loaded, nodes, strict=True) if isinstance(one, dict) and is_small(one)]
        documents = [one for one, _ in read]
        found: list[Said] = []
        lines = text.splitlines(keepends=True)
        for document, node in read:
            if document.get("kind") == "InferenceService":
                said = list(_kserve(document))
                if ("note", VERSION) in said and (line := _version_line(node, lines)) is not None:
                    lines[line] = ""
                    said[said.index(("note", VERSION))] = ("note", "runtimeVersion named TorchServe's image, and is gone")
                found += said
        changed = "".join(lines)
        images = [value for one in documents for value in _values(one) if IMAGE.fullmatch(value)]
        if images:
            found.append(("works", f"image {self.image}"))
            found += [("note", GPU)] if any("gpu" in image for image in images) else []
            found += [("note", TAGGED)] if any(_tagged(one) for one in documents) else []
            changed = IMAGE.sub(self.image, changed)
        commands = [words for one in documents for words in _commands(one)]
        return (found + [one for words in commands for one in _said(words)] if found else []), changed

    def _script(self, text: str) -> tuple[list[Said], str]:
        changed = WORD.sub("slotwise torchserve", text)
        found: list[Said] = [("works", "says `slotwise torchserve`")] if changed != text else []
        for line in CONTINUED.sub(" ", text).splitlines():
            for match in WORD.finditer("" if _is_comment(line) else line):
                found += _said(_command(line[match.end() :]))
        return found + list(_still(changed)), changed


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _still(text: str) -> Iterator[Said]:
    """A note where a text says `torchserve` still."""
    lines = [str(i) for i, line in enumerate(text.splitlines(), 1) if ANY_WORD.search(line) and not _is_comment(line)]
    if lines:
        yield "note", f"line {', '.join(lines)}: says torchserve still: where that is the command, say `slotwise torchserve`"


def _version_line(node: Any, lines: list[str]) -> int | None:
    """The line that has an InferenceService's runtimeVersion and nothing else; None where there is none."""
    for names in (("spec",), ("predictor",), ("pytorch", "model"), ("runtimeVersion",)):
        entries = node.value if node.id == "mapping" else []
        entry = next(((key, value) for wanted in names for key, value in entries if key.value == wanted), None)
        if entry is None:
            return None
        key, node = entry
    line: int = key.start_mark.line
    alone = re.fullmatch(r"\s*[\"']?runtimeVersion[\"']?:[^\n,{}\[\]&]*\n?", lines[line])
    return line if alone and node.end_mark.line == line else None


def _kserve(service: dict[str, Any]) -> Iterator[Said]:
    """What an InferenceService asks for, where it is TorchServe that answers."""
    spec = _mapping(service.get("spec"))
    predictor = _mapping(spec.get("predictor"))
    model = _mapping(predictor.get("model"))
    framework = _mapping(model.get("modelFormat")).get("name")
    if "pytorch" not in (framework, *predictor) and model.get("runtime") != "kserve-torchserve":
        return
    asked = _mapping(predictor.get("pytorch")) or model
    yield "works", "the service stays; the cluster's runtime changes: k8s/kserve/torchserve.yaml"
    if str(asked.get("protocolVersion", "")).startswith("grpc"):
        yield "cannot", "V2 over gRPC was KServe's program's before TorchServe: k8s/kserve/runtime.yaml has it"
    if asked.get("runtimeVersion"):
        yield "note", VERSION
    if asked.get("storageUri"):
        yield "note", "what lies at its storageUri was not seen: migrate that folder, too"
    if "explainer" in spec:
        yield "note", "its explainer is a container of its own, and was not looked at"


def _tagged(document: Any) -> bool:
    """Whether an image's tag stands beside it, under a key of its own, as in Helm's values and kustomize."""
    values = list(document.values()) if isinstance(document, dict) else document if isinstance(document, list) else []
    beside = isinstance(document, dict) and not {"tag", "newTag", "digest"}.isdisjoint(document)
    return any(_tagged(one) or (beside and isinstance(one, str) and bool(IMAGE.fullmatch(one))) for one in values)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


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
        yield from (_command(line[match.end() :]) for match in WORD.finditer(line))


def _command(rest: str) -> list[str]:
    """The words of a command, of what comes behind its first one."""
    return _words(END.split(CONTINUED.sub(" ", rest), maxsplit=1)[0])


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
