"""A contract for import-linter: no module imports itself by way of others, also not for its types (pyproject.toml)."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """Holds where the modules can be put in an order in which each imports earlier ones only."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Whether it holds; else metadata["circle"] is one of the circles."""
        try:
            TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Say who imports whom."""
        output.print_error(" <- ".join(check.metadata["circle"]))
