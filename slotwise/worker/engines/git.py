"""Caption pictures with GIT and transformers: b pictures become b captions in one `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.engines import samples
from slotwise.worker.engines.choice import apart_from_fp32, choose, installed
from slotwise.worker.engines.pretrained import FOLDER, about, load_pretrained, precision_of, release
from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.worker.environment.settings import Settings

ORDER = {"cpu": ("transformers",), "cuda": ("transformers",)}
WEIGHTS = {"transformers": f"{FOLDER}/model.safetensors"}


class GitEngine:
    """Captions b pictures.

    mean, std: one number for each channel, for values 0..1. max_output_tokens: the same for every row of every batch.
    """

    name = "transformers"

    def __init__(
        self,
        folder: Path,
        *,
        device: str,
        precision: str,
        threads: int,
        mean: Sequence[float],
        std: Sequence[float],
        max_output_tokens: int,
    ):
        import torch  # noqa: PLC0415  heavy

        torch.set_num_threads(threads)
        self.device, self.precision = device, precision
        # transformers has only the eager attention for GIT
        self.model = load_pretrained("GitForCausalLM", folder, device, precision, attn_implementation="eager")
        self.mean, self.std = by_channel(mean, device), by_channel(std, device)
        self.options: dict[str, Any] = {"max_new_tokens": max_output_tokens, "do_sample": False, "num_beams": 1}

    def __call__(self, pictures: Any) -> list[list[int]]:
        """uint8 [b, h, w, 3] to [b] lists of token ids, without the end token."""
        import torch  # noqa: PLC0415  heavy

        config = self.model.config
        pixels = normalised(pictures, self.mean, self.std).to(self.model.dtype)  # [b, 3, h, w]
        start = torch.full((len(pictures), 1), config.bos_token_id, device=self.device)  # [b, 1]
        with torch.inference_mode():
            ids = self.model.generate(
                pixel_values=pixels, input_ids=start, attention_mask=torch.ones_like(start), **self.options
            )
        rows: list[list[int]] = ids[:, 1:].tolist()
        end = config.eos_token_id
        return [row[: row.index(end)] if end in row else row for row in rows]

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)


def by_channel(numbers: Sequence[float], device: str) -> Any:
    """One number for each channel, for values 0..1, as [1, 3, 1, 1] for values 0..255."""
    import torch  # noqa: PLC0415  heavy

    return torch.tensor(numbers, device=device).reshape(1, 3, 1, 1) * 255


def normalised(pictures: Any, mean: Any, std: Any) -> Any:
    """uint8 [b, h, w, 3] to [b, 3, h, w] around 0. mean, std: as `by_channel` gives them."""
    import torch  # noqa: PLC0415  heavy

    return (torch.from_numpy(pictures).to(mean.device).permute(0, 3, 1, 2).float() - mean) / std


def load(model_dir: Path, settings: Settings, handler: samples.ItemSource, *, max_output_tokens: int) -> GitEngine:
    """The archive's GIT as the profile wants it; bf16 on a CPU only where it keeps the captions of the archive's examples.

    Raises ValueError, one sentence, where the profile wants what cannot be served.
    """
    facts, precision = about(model_dir), precision_of(settings)

    def engine(computed_in: str) -> GitEngine:
        return GitEngine(
            model_dir / FOLDER,
            device=settings.device,
            precision=computed_in,
            threads=settings.threads,
            mean=facts["image"]["mean"],
            std=facts["image"]["std"],
            max_output_tokens=max_output_tokens,
        )

    def start(name: str) -> Any:
        loaded = engine(precision)
        if settings.device == "cpu" and precision != "fp32" and _changes_captions(model_dir, handler, loaded, engine):
            raise ValueError(f"{precision} is refused here: it changes captions of the archive's examples, use precision auto")
        return loaded

    chosen: GitEngine = choose(settings, ORDER, lambda name: None if installed(name) else f"{name} is not installed", start)
    return chosen


def _changes_captions(
    model_dir: Path, handler: samples.ItemSource, reduced: GitEngine, engine: Callable[[str], GitEngine]
) -> bool:
    """Whether a reduced precision captions one of the archive's examples otherwise than fp32."""

    def measure() -> float:
        items = list(samples.examples(model_dir, handler))
        if not items:
            return 0.0  # nothing to compare on
        rows = handler.collate(items)
        pairs = list(zip(reduced(rows), engine("fp32")(rows), strict=True))
        return sum(ours != exact for ours, exact in pairs) / len(pairs)

    return apart_from_fp32(model_dir, GitEngine.name, reduced.precision, WEIGHTS, measure) > 0


def load_words(folder: Path) -> Any:
    """The tokenizer that turns ids into a caption."""
    ensure_importable()
    from transformers import BertTokenizer  # noqa: PLC0415  heavy, optional

    return BertTokenizer.from_pretrained(folder, local_files_only=True)
