"""Triton's generate extension: a text in, a text out, whole or piece by piece.

    POST /v2/models/M[/versions/V]/generate          {"text_input": T}  ->  {"model_name", "model_version", "text_output"}
    POST /v2/models/M[/versions/V]/generate_stream   the same a piece, as server-sent events

A request that has `text_input` alone sends the model that text. Any other object, above all one with `parameters`, reaches it
as JSON, as its client wrote it: so no handler drops a parameter that it does not know. An error is a text under `error`; until
the first piece it has its own status, and after it it is the last event. Source: Triton's "extension_generate".
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

from slotwise.backends.interface import Refused
from slotwise.frontend import replies
from slotwise.frontend.events.event_stream import EventClient, EventStream
from slotwise.frontend.events.piece_stream import Opened, text_of
from slotwise.frontend.forward import Forward
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.records import JSON, NO_TEXT, NOT_AS_ASKED, ProtocolFault, RecordAnswer, parsed
from slotwise.frontend.protocols.unpacking import unpack
from slotwise.frontend.replies import ClientReply

TEXT = "text/plain; charset=utf-8"
NUMBER_BYTES = 32  # of one that is read, with its place
REPLY_COPIES = 8  # of an answer, while its reply is made
WHOLE_ONLY = "this model gives no stream here: ask for its whole answer, at /generate"


class Generate(Forward):
    """The endpoint `generate`."""

    def opens(self, client: EventClient | None) -> Opened:
        """No stream, whatever is accepted."""
        return lambda request, headers: None

    async def prepare(self, request: InferenceRequest) -> None:
        """Make the handler's body of the request's object. Raises Refused (400, 413, 415, 429)."""
        await unpack(request)
        work, size = self.gateway.large_work, len(request.body)
        try:
            async with asyncio.timeout(max(request.left_s, 0)), work.turn(size):
                with request.borrowed(await work.run(size, json_pieces.reading_bytes, request.body, NUMBER_BYTES)):
                    content_type, body = await work.run(size, body_of, request.body)
        except TimeoutError:
            raise Refused(504, "the deadline passed before the body could be read") from None
        except ProtocolFault as fault:
            raise Refused(fault.status, fault.message, logged=NOT_AS_ASKED) from None
        request.hold_bytes(len(body))
        request.body = body
        request.headers |= {"content-type": content_type, "accept": JSON}

    async def worded(self, request: InferenceRequest, reply: ClientReply) -> ClientReply:
        """The reply as Triton gives it."""
        work, size = self.gateway.large_work, len(reply.body)
        try:
            async with work.turn(size):
                with request.borrowed(REPLY_COPIES * size):
                    status, body = await work.run(size, _reply, request, reply)
        except Refused as refused:
            reply = replies.refusal(refused, request.identity)
            status, body = _reply(request, reply)
        kept = [header for header in reply.headers if header[0] not in (*replies.OF_A_BODY, b"content-length")]
        return ClientReply(status, [*kept, replies.JSON_TYPE, (b"content-length", b"%d" % len(body))], body)


class GenerateStream(Generate):
    """The endpoint `generate_stream`."""

    def opens(self, client: EventClient | None) -> Opened:
        """A stream always. Raises Refused (406) where there can be none."""
        return partial(_GenerateEvents.opened, client=client)

    async def worded(self, request: InferenceRequest, reply: ClientReply) -> ClientReply:
        """An error as Triton gives it."""
        if reply.status == 406 and request.refusal is not None:
            reply = reply._replace(body=replies.error_body(406, WHOLE_ONLY, request.identity))
        return await super().worded(request, reply)


class _GenerateEvents(EventStream):
    """Events as Triton writes them: all of one kind, and none that says that the answer is whole."""

    def piece_event(self, piece: bytes) -> bytes:
        return b"data: %b\n\n" % _object(self.request, text_of(piece))

    def end_event(self) -> bytes:
        return b""

    def error_event(self, status: int, body: bytes) -> bytes:
        return b"data: %b\n\n" % _error(status, body)


def body_of(body: bytes) -> tuple[str, bytes]:
    """The content type and the body that a handler gets. Raises ProtocolFault where the request is no object of JSON."""
    content = parsed(body)
    text, more = content.get("text_input"), content.keys() - {"text_input"}
    if not isinstance(text, str) or more - {"parameters"} or content.get("parameters"):
        return JSON, body
    try:
        return TEXT, text.encode()
    except UnicodeEncodeError:
        raise ProtocolFault("the text_input has half of a surrogate pair") from None


def _reply(request: InferenceRequest, reply: ClientReply) -> tuple[int, bytes]:
    """Its status and its body. An answer that is JSON, but no text, is a text of JSON."""
    if reply.status >= 400:
        return reply.status, _error(reply.status, reply.body)
    try:
        text = reply.body.decode()
    except UnicodeDecodeError:
        return 500, json.dumps({"error": NO_TEXT}).encode()
    if any(name == b"content-type" and value.startswith(JSON.encode()) for name, value in reply.headers):
        value = RecordAnswer(reply.status, reply.body).value
        text = value if isinstance(value, str) else text
    return reply.status, _object(request, text)


def _object(request: InferenceRequest, text: str) -> bytes:
    """One answer, or a piece of one, by the version that has the request; where nobody says which that is, by the default."""
    live = request.gateway.models.get(request.model)
    version = request.answered_by.version or request.version or (live.version if live else "")
    return json.dumps({"model_name": request.model, "model_version": version, "text_output": text}).encode()


def _error(status: int, body: bytes) -> bytes:
    return json.dumps({"error": RecordAnswer(status, body).message}).encode()
