"""The command that brings what is missing."""

from __future__ import annotations

import sys

import pytest

from slotwise.errors import first_line, missing_package, what_brings

PIP = f"{sys.executable} -m pip install"


@pytest.mark.parametrize(
    ("failure", "brought"),
    [
        ("ValueError: no engine can serve this archive here: openvino is not installed", '"slotwise[openvino]"'),
        ("ModuleNotFoundError: No module named 'ts.torch_handler'", '"slotwise[torchserve]"'),
        ("ModuleNotFoundError: No module named 'onnxruntime'", "slotwise"),
    ],
)
def test_a_worker_that_lacks_a_package_of_ours_is_helped(failure: str, brought: str) -> None:
    assert what_brings(failure) == f"{PIP} {brought}"


@pytest.mark.parametrize("failure", ["No module named 'theirs'", "FileNotFoundError: weights.bin", "weights is not installed"])
def test_of_others_nothing_is_said(failure: str) -> None:
    assert what_brings(failure) == ""


def test_an_error_is_told_by_its_first_line_or_its_kind() -> None:
    assert first_line(ValueError("\n  what happened\nand where")) == "what happened"
    assert first_line(AssertionError()) == "AssertionError"


def test_the_package_that_is_missing_names_its_extra() -> None:
    assert missing_package("sklearn.datasets", "digits").hint == f'{PIP} "slotwise[digits]"'
    assert missing_package("aiohttp.web", "serve").hint == f"{PIP} slotwise"
    assert missing_package("theirs", "serve").hint == f"{PIP} theirs"
