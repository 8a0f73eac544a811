"""Write an archive again with other worker settings, for one trial.

The environment of a running server cannot be changed, so engine, precision and threads travel in the archive: in the
model's own wishes for the server's profile. Only a `--set` of the server is stronger.
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
    """Write `archive` to `target` with `wishes` in its [profiles.PROFILE]. No two variants have the same bytes.

    MMS unpacks an archive into a folder named by its content, and two models would share it.
    """
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as variant:
        names = source.namelist()
        carried: dict[str, Any] = json.loads(source.read(SETTINGS)) if SETTINGS in names else {"model": {}, "profiles": {}}
        profiles = carried["model"].setdefault("profiles", {})
        profiles[profile] = {**profiles.get(profile, {}), **wishes}
        settings = json.dumps({**carried, "trial": target.name}, indent=2, sort_keys=True).encode()
        for item in source.infolist():
            if item.filename not in (SETTINGS, DIGESTS):
                with source.open(item) as original, variant.open(item.filename, "w", force_zip64=True) as copy:
                    shutil.copyfileobj(original, copy, 1 << 20)
        variant.writestr(SETTINGS, settings)
        if DIGESTS in names:
            digests = json.loads(source.read(DIGESTS))
            digests["files"][SETTINGS] = hashlib.sha256(settings).hexdigest()
            variant.writestr(DIGESTS, json.dumps(digests, indent=2, sort_keys=True))
