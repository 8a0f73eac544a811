"""Import paths that pages or manifests of an earlier release name."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_rays_applications_are_found_where_0_2_0_had_them() -> None:
    pytest.importorskip("ray")
    sys.modules.pop("slotwise.server.ray_app", None)
    with pytest.warns(FutureWarning, match=r"slotwise\.server\.ray\.app"):
        earlier = importlib.import_module("slotwise.server.ray_app")
    now = importlib.import_module("slotwise.server.ray.app")
    assert (earlier.front, earlier.model) == (now.front, now.model)
