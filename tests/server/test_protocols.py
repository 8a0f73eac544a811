"""Real clients of other servers, unmodified, through the gateway to TorchServe and to MMS."""

from tests.server.contract.protocols import *  # noqa: F403
