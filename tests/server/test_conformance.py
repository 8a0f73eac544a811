"""Every request keeps its slot, on TorchServe and on MMS, from the same archive bytes."""

from tests.server.contract.conformance import *  # noqa: F403
