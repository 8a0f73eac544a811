"""The same archive with other worker settings, for one trial.

A running server's environment is fixed, so engine, precision and threads travel in the archive: in the model's own wishes
for the server's profile, which only a `--set` of the server beats.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.archive.packaging import DIGESTS

SETTINGS = "slotwise.json"


def write_variant(archive: Path, target: Path, profile: str, wishes: Mapping[str, Any]) -> None:
    """Write `target`: `archive`, with `wishes` in its [profiles.PROFILE]. Every variant differs from every other in a byte.

    (MMS unpacks an archive into a folder named by its content, and two models would share it.)
    """
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as made:
        names = source.namelist()
        carried: dict[str, Any] = json.loads(source.read(SETTINGS)) if SETTINGS in names else {"model": {}, "profiles": {}}
        profiles = carried["model"].setdefault("profiles", {})
        profiles[profile] = {**profiles.get(profile, {}), **wishes}
        settings = json.dumps({**carried, "trial": target.name}, indent=2, sort_keys=True).encode()
        for item in source.infolist():
            if item.filename not in (SETTINGS, DIGESTS):
                with source.open(item) as original, made.open(item.filename, "w", force_zip64=True) as copy:
                    shutil.copyfileobj(original, copy, 1 << 20)
        made.writestr(SETTINGS, settings)
        if DIGESTS in names:
            digests = json.loads(source.read(DIGESTS))
            digests["files"][SETTINGS] = hashlib.sha256(settings).hexdigest()
            made.writestr(DIGESTS, json.dumps(digests, indent=2, sort_keys=True))
