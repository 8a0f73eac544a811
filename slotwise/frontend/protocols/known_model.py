"""Find the model that a request of these protocols names, and what it takes."""

from __future__ import annotations

from slotwise.backends.catalog import ModelCard
from slotwise.backends.exchange import ReadFor
from slotwise.backends.interface import BackendRequest, Refused
from slotwise.client.live_model import LiveModel
from slotwise.frontend.admission.key_rates import AccessKey
from slotwise.frontend.frontend import FRESH_S, Gateway
from slotwise.frontend.protocols.records import ModelInput


def found_model(gateway: Gateway, model: str, version: str) -> LiveModel | None:
    """The model, where it is known to be there in that version. version: "": its default."""
    known = gateway.models.get(model)
    if known is not None and version not in ("", known.version):
        known = gateway.backend.others.get((model, version))
    if known is None:
        gateway.look_soon()
    return known


def versions(gateway: Gateway, model: str) -> list[str]:
    """The versions of a model that is there, the default one first."""
    return [gateway.models[model].version, *(version for name, version in gateway.backend.others if name == model)]


def model_input(gateway: Gateway, model: str, version: str = "") -> ModelInput:
    """What the model takes, as far as it is known. version: "": its default."""
    return _input_of(gateway.card(model, version))


def _input_of(card: ModelCard) -> ModelInput:
    return ModelInput(
        card.takes,
        card.shape,
        card.classes,
        card.scores,
        card.own_output,
        card.columns,
        card.inputs,
        card.outputs,
        card.dtype,
    )


async def known_version(gateway: Gateway, request: BackendRequest) -> None:
    """Have it be known what the version takes that the request names.

    Raises Refused, for what another version takes may mean something else here: 404 where there is no such version, 503 where
    nobody can be asked.
    """
    if not gateway.knows(request.model, request.version):
        await gateway.refresh(FRESH_S)
    if not gateway.knows(request.model, request.version):
        if not gateway.backend.reachable:
            raise Refused(503, "what this version takes is not known", retry_after_s=1)
        raise Refused(404, f"there is no model {request.model} {request.version}", logged="there is no such version")


def answering(gateway: Gateway, request: BackendRequest) -> tuple[str, ModelInput]:
    """Which version a request is read for now, and what that takes and gives; none that takes something else answers it."""
    name, live = request.model, gateway.models.get(request.model)
    version, model = request.version or (live.version if live else ""), model_input(gateway, name, request.version)
    if live is not None:
        request.read_for = ReadFor(version, lambda card: _input_of(card) == model)
    return version, model


def by_one_version(gateway: Gateway, request: BackendRequest) -> None:
    """Have the version that is the default now answer it, whatever that takes, as long as it is there."""
    if live := gateway.models.get(request.model):
        request.read_for = ReadFor(request.version or live.version, lambda card: True)


def open_models(gateway: Gateway, key: AccessKey | None) -> list[LiveModel]:
    """The models that the key opens, by name. key: None, where there are no keys or none is needed."""
    return [live for name, live in sorted(gateway.models.items()) if key is None or key.opens(name)]


async def permitted_model(gateway: Gateway, key: AccessKey | None, model: str, version: str) -> LiveModel:
    """The model. Raises Refused: 403 where the key may not use it, whether or not it is there, and 404 where it is not."""
    if key and not key.opens(model):
        raise Refused(403, "this key may not use this model")
    await gateway.refresh(FRESH_S)
    live = found_model(gateway, model, version)
    if live is None:
        raise Refused(404, f"there is no model {model} {version}".strip(), logged="there is no such model")
    return live
