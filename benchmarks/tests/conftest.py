"""What all tests share."""

from tests.conftest import *  # noqa: F403
