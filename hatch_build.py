"""How a wheel and an sdist are made: which files go into them, and what a package index shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)")
WHERE = "\nThe pages and pictures behind these words lie in the source distribution: README.md and docs/.\n"


class IndexReadme(MetadataHookInterface):
    """Makes a README whose links are not broken where it stands alone, as on a package index.

    A file of the checkout has no address there: its link becomes plain words, a picture goes.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        alone = LINK.sub(r"\1", PICTURE.sub("", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": alone if alone == text else alone + WHERE}


class TrackedFiles(BuildHookInterface[Any]):
    """Leaves out what git does not track: somebody's weights, data and drafts lie in a checkout, too.

    Hatchling itself leaves out what .gitignore names. Where there is no checkout (an sdist, an image's build context), all else
    is taken.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the files are gathered, with the configuration that says which."""
        if (Path(self.root) / ".git").exists():
            target = self.build_config.target_config
            target["exclude"] = [*target.get("exclude", ()), *self._untracked()]

    def _untracked(self) -> list[str]:
        """Patterns as in .gitignore, each of one file or folder."""
        command = ["git", "ls-files", "-z", "--others", "--directory"]
        try:
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"git does not say what it tracks ({error}): only .gitignore decides what is left out")
            return []
        return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name) for name in done.stdout.split("\0") if name]
