"""Every module here can be imported: a part that cannot is found before somebody measures."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

RUN = ("__main__", "_app", "idle_pipeline")  # programs, which do their work when they are imported
MODULES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith(RUN)])
def test_a_module_can_be_imported(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # of a handler: what lies beside it in its archive
        if (error.name or "").partition(".")[0] in ("slotwise", "benchmarks", "tests"):
            raise
