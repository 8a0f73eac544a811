"""The parts of the comparison: which systems are asked with which bodies by how many clients.

A system is `stock` (TorchServe's own image_classifier), `stock-defaults` (the same as it is installed), NAME[-FORM] (a peer, or
`torchserve` with a handler as short as a peer's; FORM as classifier.py has it), `slotwise-ENGINE-PRECISION`, the same as a
loop without a server (`raw-`), DEFAULT, or one of SPECIAL. `NAME, batch N` has another batch size than the part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.measuring.rounds import Cell
from slotwise.worker.engines.processor import has_bf16

BF16 = ("openvino-bf16",) if has_bf16() else ()
PRECISIONS = ("torch-fp32", "onnxruntime-fp32", "openvino-fp32", *BF16, "openvino-int8")
OURS = ("slotwise-openvino-fp32", *(f"slotwise-{name}" for name in BF16), "slotwise-openvino-int8")
RAW = tuple(name.replace("slotwise", "raw") for name in OURS)
ON_TRITON = {precision: f"slotwise-triton-openvino-{precision}" for precision in ("fp32", "int8")}
DEFAULT = "slotwise-default"  # the model with the profile cpu and nothing else set
PEERS = ("litserve", "fastapi", "mosec", "ray", "triton", "bentoml", "mlserver")
FEW = ("stock", "litserve", "fastapi", "mosec", DEFAULT, *OURS, *RAW)
QUICK = ("stock", "litserve", DEFAULT, f"raw-{(*BF16, 'openvino-fp32')[0]}")  # of vision and lite0
INFERENCE = ("torchserve-inference", *(f"{name}-inference" for name in PEERS), "slotwise-openvino-fp32")
SAME = {
    precision: (
        *(f"{name}-engine" for name in ("torchserve", *PEERS)),
        *(f"slotwise-openvino-{precision}", on_triton, f"raw-openvino-{precision}"),
    )
    for precision, on_triton in ON_TRITON.items()
}
STEPS = tuple(f"{server}-{form}" for server in ("torchserve", "litserve", "mosec") for form in ("natural", "decoder", "engine"))
BY_BATCH = tuple(f"{system}, batch {size}" for system in ("stock", "slotwise-openvino-fp32") for size in (1, 8, 16))
TUNED = {8: "slotwise-tuned-8", 64: "slotwise-tuned-64"}  # clients: as the tuner found it for them
OURS_SMALL = ("slotwise-onnxruntime-fp32", *TUNED.values(), "slotwise-triton")
TENSORS = ("torchserve-natural", "litserve", "fastapi", "mosec", *OURS_SMALL)

# batch size and workers of ants and bees: `ei` as published, and one request a batch, as a front without batches has it
PUBLISHED_LAYOUTS = (("64", "1"), ("32", "1"), ("32", "2"), ("32", "3"))
LAYOUTS_OF = {"ei": (*PUBLISHED_LAYOUTS, ("1", "1")), "cpu": (("32", "2"), ("64", "1"))}

# What cannot be read from a system's name: keys of a profile, and `profile` and `kind`.
SPECIAL: Mapping[str, Mapping[str, str]] = {
    **{name: {"kind": "triton", "engine": "openvino", "precision": precision} for precision, name in ON_TRITON.items()},
    "slotwise-triton": {"kind": "triton", "batch_size": "13", "max_batch_delay_ms": "0.15", "engine": "onnxruntime"},
    "slotwise-tuned-8": {"batch_size": "4", "max_batch_delay_ms": "1", "engine": "onnxruntime", "precision": "fp32"},
    "slotwise-tuned-64": {"batch_size": "16", "max_batch_delay_ms": "1", "engine": "onnxruntime", "precision": "fp32"},
    **{
        f"slotwise-{profile}-{size}x{workers}": {"profile": profile, "batch_size": size, "initial_workers": workers}
        for profile, layouts in LAYOUTS_OF.items()
        for size, workers in layouts
    },
}
LAYOUTS = tuple(name for name, keys in SPECIAL.items() if "profile" in keys)


@dataclass(frozen=True)
class Part:
    """One part.

    precision: of a peer with our engine. seconds: of a measurement; requests: so many instead, with our own client.
    """

    title: str
    model: str
    cells: Mapping[Cell, tuple[str, ...]]
    weights: str = "none"
    batch_size: int = 4
    delay_ms: float = 10
    precision: str = "fp32"
    seconds: int = 6
    requests: int | None = None

    def tool(self, wanted: str) -> str:
        """What measures: our own client, which can leave out the ramp, but where it would be too slow."""
        return wanted if self.kind == "tensor" else "slotwise"

    @property
    def systems(self) -> list[str]:
        """Every system of any cell."""
        return list(dict.fromkeys(name for names in self.cells.values() for name in names))

    @property
    def kind(self) -> str:
        """What a body is: picture or tensor."""
        return "tensor" if self.model == "mnist" else "picture"


def both(systems: tuple[str, ...]) -> dict[Cell, tuple[str, ...]]:
    """The 720x720 picture at 8 and at 32 clients."""
    return {("720", 8): systems, ("720", 32): systems}


VISION = ("stock", "stock-defaults", *PEERS, DEFAULT, *OURS, *RAW)
PARTS = {
    "vision": Part("ResNet-18: every server with natural code", "resnet18", {**both(VISION), ("12M", 8): FEW}),
    "engines": Part("ResNet-18 in fp32: every server with our decoder and engine", "resnet18", both(SAME["fp32"])),
    "engines-int8": Part(
        "EfficientNet-Lite0 in int8: every server with our decoder and engine",
        "efficientnet",
        both(SAME["int8"]),
        "imagenet",
        precision="int8",
    ),
    "inference": Part("ResNet-18 in fp32: every server with our engine, its own decoder", "resnet18", both(INFERENCE)),
    "ablation": Part("ResNet-18 in fp32: what each step gives", "resnet18", both((*STEPS, "slotwise-openvino-fp32"))),
    "tensors": Part(
        "MNIST as tensors", "mnist", {("tensor", n): TENSORS for n in (1, 2, 4, 8, 64)}, "", 16, delay_ms=0, seconds=4
    ),
    "precision": Part(
        "ResNet-18 by engine and precision",
        "resnet18",
        both(tuple(f"{kind}-{name}" for name in PRECISIONS for kind in ("slotwise", "raw"))),
    ),
    "lite0": Part("EfficientNet-Lite0", "efficientnet", {**both(FEW), ("12M", 8): FEW}, "imagenet", seconds=4),
    "resnet152": Part("ResNet-152 by batch size", "resnet152", {("720", n): BY_BATCH for n in (10, 100)}, seconds=15),
    "ants": Part("Two labels: 1,000 requests of 50 clients", "ants_bees", {("720", 50): LAYOUTS}, requests=1000),
}
