"""GIT through transformers: b pictures to b captions in one `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.engines import samples
from slotwise.worker.engines.pretrained import FOLDER, about, load_pretrained, precision_of, release
from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.worker.settings import Settings


class GitEngine:
    """mean, std: one number a channel, for values 0..1. max_output_tokens: the same for every row of every batch."""

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
        # GIT has no other attention than the eager one
        self.model = load_pretrained("GitForCausalLM", folder, device, precision, attn_implementation="eager")
        self.mean = torch.tensor(mean, device=device).reshape(1, 3, 1, 1) * 255
        self.std = torch.tensor(std, device=device).reshape(1, 3, 1, 1) * 255
        self.options: dict[str, Any] = {"max_new_tokens": max_output_tokens, "do_sample": False, "num_beams": 1}

    def __call__(self, pictures: Any) -> list[list[int]]:
        """uint8 [b, h, w, 3] to [b] token ids, the end cut off."""
        import torch  # noqa: PLC0415  heavy

        config = self.model.config
        pixels = torch.from_numpy(pictures).to(self.device).permute(0, 3, 1, 2).float()  # [b, 3, h, w]
        pixels = ((pixels - self.mean) / self.std).to(self.model.dtype)
        start = torch.full((len(pictures), 1), config.bos_token_id, device=self.device)  # [b, 1]
        with torch.inference_mode():
            made = self.model.generate(
                pixel_values=pixels, input_ids=start, attention_mask=torch.ones_like(start), **self.options
            )
        rows: list[list[int]] = made[:, 1:].tolist()
        end = config.eos_token_id
        return [row[: row.index(end)] if end in row else row for row in rows]

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)


def load(model_dir: Path, settings: Settings, handler: samples.ItemSource, *, max_output_tokens: int) -> GitEngine:
    """The archive's GIT as the profile wants it; bf16 on a CPU only where it keeps the captions of the archive's examples."""
    facts, precision = about(model_dir), precision_of(settings)
    if settings.engine not in ("auto", "transformers"):
        raise ValueError(f"engine is {settings.engine!r}, but captions take auto or transformers")

    def engine(computed: str) -> GitEngine:
        return GitEngine(
            model_dir / FOLDER,
            device=settings.device,
            precision=computed,
            threads=settings.threads,
            mean=facts["image"]["mean"],
            std=facts["image"]["std"],
            max_output_tokens=max_output_tokens,
        )

    made = engine(precision)
    if settings.device == "cpu" and precision != "fp32" and (items := list(samples.examples(model_dir, handler))):
        rows = handler.collate(items)
        if made(rows) != engine("fp32")(rows):
            raise ValueError(f"{precision} is refused here: it changes captions of the archive's examples, use precision auto")
    return made


def load_words(folder: Path) -> Any:
    """The tokenizer that turns ids into a caption."""
    ensure_importable()
    from transformers import BertTokenizer  # noqa: PLC0415  heavy, optional

    return BertTokenizer.from_pretrained(folder, local_files_only=True)
