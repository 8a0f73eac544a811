"""Every given model on every server: digits in `make test`, the others in `make test-full` and, on MMS, in `make long`."""

from tests.server.contract.given_models import *  # noqa: F403
