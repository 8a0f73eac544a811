"""Render the profiles into k8s/: the settings that a pod reads, the load at which it is full, and how many pods Ray has."""

from __future__ import annotations

import re
import tomllib
from math import ceil
from pathlib import Path

from slotwise.files import project
from slotwise.model_spec import load_spec
from slotwise.profiles.profile import Profile, load_profile

HEADER = "# profiles/{name}.toml, put here by `slotwise profile render`: change it there.\n"
BASE = "cpu"  # the overlay whose profile and target stand in the base
RAY_SERVICE = "k8s/ray/rayservice.yaml"  # of the same profile
BUILT_ON = re.compile(r"(?m)^ +- \.\./([\w-]+)$")  # the overlay that another one changes
TARGET = re.compile(r'(averageValue(?:, value)?: )"\d+"')  # in hpa.yaml, and in an overlay's patch of it


def rendered(root: Path) -> dict[str, str]:
    """What stands below `root`/k8s as the profiles want it, by path below `root`.

    These are each overlay's profile and its autoscaler's target, and the RayService's numbers. An overlay without a profile
    of its name has that of the overlay which it changes.
    """
    files = {}
    if (root / RAY_SERVICE).is_file():
        files[RAY_SERVICE] = ray_service((root / RAY_SERVICE).read_text("utf-8"), load_profile(BASE, environ={}, cores=0))
    for overlay in sorted((root / "k8s" / "overlays").glob("*/kustomization.yaml")):
        name = overlay.parent.name
        folder = "k8s/base" if name == BASE else f"k8s/overlays/{name}"
        if name in project.profiles():
            files[f"{folder}/{name}.toml"] = HEADER.format(name=name) + project.profile_file(name).read_text("utf-8")
        patched = f"{folder}/{'hpa' if name == BASE else 'kustomization'}.yaml"
        target = full_pod(root, name, profile_of(overlay))
        files[patched] = TARGET.sub(rf'\g<1>"{target}"', (root / patched).read_text("utf-8"))
    return files


def profile_of(kustomization: Path) -> str:
    """The profile of an overlay's pods."""
    name = kustomization.parent.name
    changed = BUILT_ON.search(kustomization.read_text("utf-8"))
    return name if name in project.profiles() else changed[1] if changed else BASE


def full_pod(root: Path, overlay: str, profile: str) -> int:
    """Requests in flight of a full pod: batch_size x workers, of that model of the overlay where it is least."""
    own = root / "k8s" / "overlays" / overlay / "models.toml"
    listed = tomllib.loads((own if own.is_file() else root / "k8s" / "base" / "models.toml").read_text("utf-8"))["archive"]
    names = [entry.get("model") or Path(entry.get("file") or entry["url"]).stem for entry in listed]
    shared = load_profile(profile, environ={}, cores=0)
    specs = [load_spec(project.models()[name]) for name in names if name in project.models()]
    settings = [shared.for_model(spec.profiles.get(profile, {})) for spec in specs] or [shared]
    return min(each.batch_size * each.initial_workers for each in settings)


def ray_service(text: str, profile: Profile) -> str:
    """A RayService's text with a profile's numbers: as many pods as replicas fit on, each of max(num_cpus, 2) cores."""
    replicas = profile.on("ray").initial_workers
    cores = max(2, ceil(profile.num_cpus))
    each = max(1, int(cores // profile.num_cpus)) if profile.num_cpus else 1
    gpus = f', nvidia.com/gpu: "{ceil(profile.num_gpus)}"' if profile.num_gpus else ""
    scaled = str(bool(profile.max_replicas)).lower()  # by the operator, in the head's pod
    values = {
        "enableInTreeAutoscaling": scaled,
        "automountServiceAccountToken": scaled,
        "replicas": ceil(replicas / each),
        "minReplicas": ceil(replicas / each),
        "maxReplicas": ceil(max(replicas, profile.max_replicas) / each),
    }
    for key, value in values.items():
        text = re.sub(rf"(?m)^( +{key}: ).*$", rf"\g<1>{value}", text, count=1)
    head, mark, workers = text.partition("workerGroupSpecs:")
    workers = re.sub(r'cpu: "\d+"', f'cpu: "{cores}"', workers)
    return head + mark + re.sub(r"(limits: .*memory: \w+).*", rf"\g<1>{gpus}}}", workers)
