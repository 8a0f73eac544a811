"""Render a profile as the config.pbtxt of one model in a Triton model repository."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile

WRITTEN = "# Written by Slotwise "  # how what is rendered here begins
HEADER = f"""\
{WRITTEN}from the profile {{profile}}: change it there.
# In: BODY, the bytes of one request; HEADERS, a JSON object of its headers, which may be left out.
# Out: ANSWER, STATUS (200) and HEADERS; a refused request is an error whose message is JSON: status, headers, body.
"""
NATIVE_HEADER = f"""\
{WRITTEN}from the profile {{profile}}: change it there.
# The graph alone: no handler decodes, normalises or names labels, and a batch that fails fails for all of its requests.
"""
TENSORS = """\
input [
  { name: "BODY" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true },
  { name: "HEADERS" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true optional: true }
]
output [
  { name: "ANSWER" data_type: TYPE_UINT8 dims: [ -1 ] },
  { name: "STATUS" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "HEADERS" data_type: TYPE_UINT8 dims: [ -1 ] }
]
"""


def config_pbtxt(
    name: str,
    profile: Profile,
    archive_sha256: str,
    *,
    gpu: bool,
    overrides: Iterable[str] = (),
    warm_up_bytes: int = 0,
) -> str:
    """The configuration of one model.

    profile: as this model wants it. gpu: whether its instances are for GPUs, so many for each. overrides: the keys that `--set`
    and the environment set. warm_up_bytes: the size of warmup/example, which Triton sends through the model when it loads it.
    """
    parameters = {
        "archive_sha256": archive_sha256,
        "response_timeout_s": str(profile.response_timeout_s),
        "FORCE_CPU_ONLY_INPUT_TENSORS": "yes",
        **profile.environment(overrides),
    }
    return "".join(
        [
            HEADER.format(profile=profile.name),
            f'name: {_text(name)}\nbackend: "python"\nmax_batch_size: {profile.batch_size}\n',
            TENSORS,
            _batching(profile.batch_size, profile.max_batch_delay_ms),
            _instances(profile.initial_workers, gpu),
            _warm_up(warm_up_bytes) if warm_up_bytes else "",
            _parameters(parameters),
        ]
    )


@dataclass(frozen=True)
class NativeTensor:
    """An input or output of a graph. kind: Triton's data type; shape: without the batch, -1 where a side is free."""

    name: str
    kind: str
    shape: Sequence[int]
    labels: str = ""  # the file with a label a line

    def text(self) -> str:
        """The tensor as config.pbtxt has it; Triton takes none without a side."""
        sides = f"dims: [ {', '.join(map(str, self.shape))} ]" if self.shape else "dims: [ 1 ] reshape: { shape: [ ] }"
        labels = f" label_filename: {_text(self.labels)}" if self.labels else ""
        return f"{{ name: {_text(self.name)} data_type: {self.kind} {sides}{labels} }}"


def native_pbtxt(name: str, profile: Profile, given: NativeTensor, found: NativeTensor, *, batch_size: int) -> str:
    """The configuration of an ONNX graph that Triton runs by itself.

    given, found: its input and the output that is served. batch_size: 0 where the graph's batch is fixed, so that Triton makes
    none; the tensors then have all of their sides.
    """
    return "".join(
        [
            NATIVE_HEADER.format(profile=profile.name),
            f'name: {_text(name)}\nplatform: "onnxruntime_onnx"\nmax_batch_size: {batch_size}\n',
            f"input [ {given.text()} ]\noutput [ {found.text()} ]\n",
            _batching(batch_size, profile.max_batch_delay_ms) if batch_size > 1 else "",
            _instances(profile.initial_workers, profile.device == "cuda"),
            _parameters({"intra_op_thread_count": str(profile.threads)} if profile.threads else {}),
        ]
    )


def _batching(batch_size: int, delay_ms: float) -> str:
    """No queue policy: with one, Triton 2.51 misses requests that come while an instance finishes, for half a second."""
    full = f"  preferred_batch_size: [ {batch_size} ]\n" if batch_size > 1 else ""
    return f"dynamic_batching {{\n{full}  max_queue_delay_microseconds: {round(delay_ms * 1000)}\n}}\n"


def _instances(count: int, gpu: bool) -> str:
    return f"instance_group [ {{ count: {count} kind: {'KIND_GPU' if gpu else 'KIND_CPU'} }} ]\n"


def _warm_up(size_bytes: int) -> str:
    body = f'data_type: TYPE_UINT8 dims: [ {size_bytes} ] input_data_file: "example"'
    return f'model_warmup [ {{ name: "example" batch_size: 1 inputs {{ key: "BODY" value: {{ {body} }} }} }} ]\n'


def _parameters(values: Mapping[str, Any]) -> str:
    return "".join(
        f"parameters {{ key: {_text(key)} value: {{ string_value: {_text(value)} }} }}\n" for key, value in values.items()
    )


def _text(value: str) -> str:
    """A text as protobuf's text format reads it: what is not plain ASCII as octal escapes of its UTF-8."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').encode("utf-8")
    return '"' + "".join(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in escaped) + '"'
