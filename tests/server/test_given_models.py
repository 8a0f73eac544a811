"""Every given model on TorchServe and on MMS: digits in `make test`, the others in `make test-full`."""

from tests.server.contract.given_models import *  # noqa: F403
