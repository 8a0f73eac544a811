"""Render the profiles as the ConfigMaps of k8s/, so that a pod reads its settings from there, without a new image."""

from __future__ import annotations

from pathlib import Path

from slotwise import project

HEADER = "# profiles/{name}.toml, put here by `slotwise profile render`: change it there.\n"


def settings(root: Path) -> dict[str, str]:
    """The profile of each overlay below `root`/k8s, by path below `root`; the base carries the first overlay's, cpu.

    An overlay without a profile of its name changes another one.
    """
    files = {}
    for overlay in sorted((root / "k8s" / "overlays").glob("*/kustomization.yaml")):
        name = overlay.parent.name
        if name not in project.profiles():
            continue
        folder = "k8s/base" if name == "cpu" else f"k8s/overlays/{name}"
        files[f"{folder}/{name}.toml"] = HEADER.format(name=name) + project.profile_file(name).read_text("utf-8")
    return files
