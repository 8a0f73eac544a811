"""predict: send files to a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.commands.options import Name
from slotwise.console import Json, emit
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.client.inference import InferenceClient

AT_ONCE = 32


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(predict)


def predict(
    model: Annotated[str, typer.Argument(help="A registered model's name.")],
    files: Annotated[list[Path], typer.Argument(help="Files to send, each as one request.")],
    name: Name = "default",
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Print the answer piece by piece as it comes; of one file. With --json a piece a line."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Send files to a model, all at once, and print each one's answer or error; exit with 1 if one failed."""
    if stream and len(files) > 1:
        raise typer.BadParameter("it takes one file", param_hint="--stream")
    from concurrent.futures import ThreadPoolExecutor

    from slotwise.client.inference import InferenceClient
    from slotwise.server.lifecycle import need

    try:
        bodies = [file.read_bytes() for file in files]
    except OSError as error:
        raise SlotwiseError(f"{error.filename} cannot be read: {error.strerror}", "name a file to send") from error
    if stream:
        with InferenceClient(need(name)) as client, client.stream(model, bodies[0]) as pieces:
            _print_pieces(pieces, as_json)
        return
    with InferenceClient(need(name)) as client, ThreadPoolExecutor(min(AT_ONCE, len(files))) as pool:
        results = list(pool.map(lambda file, body: _result(file, client, model, body), files, bodies))

    def render() -> None:
        for result in results:
            answer = result["answer"]
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            status = {200: "", None: "error: "}.get(result["status"], f"HTTP {result['status']} ")
            typer.echo(f"{result['file']}: {status}{text}")

    emit(results, as_json, render)
    if any(result["status"] != 200 for result in results):
        raise typer.Exit(1)


def _print_pieces(pieces: Iterator[dict[str, Any]], as_json: bool) -> None:
    """Print each piece when it is there: a text as it is, any other object, and with --json every piece, as a line of JSON."""
    within_line = False
    try:
        for piece in pieces:
            is_text = piece.keys() == {"text"} and not as_json
            text = str(piece["text"]) if is_text else json.dumps(piece, ensure_ascii=as_json) + "\n"
            if within_line and not is_text:
                text = f"\n{text}"
            within_line = not text.endswith("\n") if text else within_line
            sys.stdout.write(text)
            sys.stdout.flush()
    finally:
        if within_line:
            sys.stdout.write("\n")


def _result(file: Path, client: InferenceClient, model: str, body: bytes) -> dict[str, Any]:
    """One file's answer, or why there is none: that is no other file's trouble."""
    try:
        response = client.predict(model, body)
    except SlotwiseError as error:
        return {"file": str(file), "status": None, "answer": error.message, "headers": {}}
    try:
        answer = response.json()
    except ValueError:
        answer = response.text
    headers = {key: value for key, value in response.headers.items() if key.startswith("x-")}
    return {"file": str(file), "status": response.status_code, "answer": answer, "headers": headers}
