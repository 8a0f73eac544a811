"""Render the profiles into k8s/: the ConfigMaps that a pod reads its settings from, and the load at which a pod is full."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from slotwise.files import project
from slotwise.model_spec import load_spec
from slotwise.profiles.profile import load_profile

HEADER = "# profiles/{name}.toml, put here by `slotwise profile render`: change it there.\n"
BASE = "cpu"  # the overlay whose profile and target stand in the base
TARGET = re.compile(r'(averageValue(?:, value)?: )"\d+"')  # in hpa.yaml, and in an overlay's patch of it


def rendered(root: Path) -> dict[str, str]:
    """What stands below `root`/k8s as the profiles want it, by path below `root`.

    These are each overlay's profile and its autoscaler's target. An overlay without a profile of its name changes the base.
    """
    files = {}
    for overlay in sorted((root / "k8s" / "overlays").glob("*/kustomization.yaml")):
        name = overlay.parent.name
        folder = "k8s/base" if name == BASE else f"k8s/overlays/{name}"
        if name in project.profiles():
            files[f"{folder}/{name}.toml"] = HEADER.format(name=name) + project.profile_file(name).read_text("utf-8")
        patched = f"{folder}/{'hpa' if name == BASE else 'kustomization'}.yaml"
        target = full_pod(root, name, name if name in project.profiles() else BASE)
        files[patched] = TARGET.sub(rf'\g<1>"{target}"', (root / patched).read_text("utf-8"))
    return files


def full_pod(root: Path, overlay: str, profile: str) -> int:
    """Requests in flight of a full pod: batch_size x workers, of that model of the overlay where it is least."""
    own = root / "k8s" / "overlays" / overlay / "models.toml"
    listed = tomllib.loads((own if own.is_file() else root / "k8s" / "base" / "models.toml").read_text("utf-8"))["archive"]
    names = [entry.get("model") or Path(entry.get("file") or entry["url"]).stem for entry in listed]
    shared = load_profile(profile, environ={}, cores=0)
    specs = [load_spec(project.models()[name]) for name in names if name in project.models()]
    settings = [shared.for_model(spec.profiles.get(profile, {})) for spec in specs] or [shared]
    return min(each.batch_size * each.initial_workers for each in settings)
