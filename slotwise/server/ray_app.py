"""Where slotwise.server.ray.app was in 0.2.0: RayService manifests written then name it. It goes with the next release."""

import warnings

from slotwise.server.ray.app import front, model

__all__ = ["front", "model"]

warnings.warn("slotwise.server.ray_app is slotwise.server.ray.app now: change import_path", FutureWarning, stacklevel=1)
