"""Leave out of a wheel or an sdist whatever git does not track: somebody's weights, data and drafts lie in a checkout, too.

Hatchling itself leaves out what .gitignore names. Where there is no checkout (an sdist, an image's build context), all else is
taken.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TrackedFiles(BuildHookInterface[Any]):
    """Excludes files that git knows nothing of."""

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
