"""migrate: from a deployment of TorchServe or SageMaker to one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slotwise.console import Json, emit, table


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(migrate)


def migrate(
    path: Annotated[
        Path,
        typer.Argument(help="TorchServe: the folder with its files. SageMaker: model.tar.gz."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="A new folder for what Slotwise serves.")] = None,
    image: Annotated[str, typer.Option(help="What your registry calls Dockerfile.torchserve's.")] = "slotwise-torchserve",
    name: Annotated[str | None, typer.Option(help="SageMaker: the model's name (default: that of --out).")] = None,
    as_json: Json = False,
) -> None:
    """Say what becomes of a TorchServe deployment or a SageMaker model here, and write it; exit with 1 where a part cannot."""
    from dataclasses import asdict

    from slotwise.errors import SlotwiseError
    from slotwise.migrate.deployment import migrate as migrate_deployment
    from slotwise.migrate.findings import worst
    from slotwise.migrate.sagemaker import is_sagemaker, migrate_sagemaker

    if not path.exists():
        raise SlotwiseError(f"there is no {path}", "name a deployment's folder, or a model.tar.gz")
    if is_sagemaker(path):
        findings = migrate_sagemaker(path, out, name or (out.name if out else "model"))
        command = f"slotwise serve {out or 'FOLDER'} --server slotwise"
    else:
        findings, command = migrate_deployment(path, out, image)
    verdict = worst(findings)
    data = {"verdict": verdict, "findings": [asdict(one) for one in findings], "written": str(out) if out else None}

    def render() -> Any:
        counts = {one: sum(finding.verdict == one for finding in findings) for one in ("works", "note", "cannot")}
        summary = ", ".join(f"{count} {one}" for one, count in counts.items() if count)
        typer.echo(f"{path}: {summary}")
        if out and out.exists():
            typer.echo(f"wrote {out}\nstart it: {command}")
        elif not out:
            typer.echo("nothing was written: name a folder with --out")
        return table("", ["what", "", "about"], [[one.what, one.verdict, one.about] for one in findings])

    emit(data | ({"start": command} if out else {}), as_json, render)
    if verdict == "cannot":
        raise typer.Exit(1)
