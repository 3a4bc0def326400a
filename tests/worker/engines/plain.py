"""An engine that speaks vLLM's wire and nothing else: what our engines add is taken out of what passes."""

from __future__ import annotations

import json
from typing import Any

from inference.remote.protocol import DONE, Events
from inference.remote.transport import Answer, Exchange, Receiver, Transport

OURS = "firsttoken"


class PlainTransport:
    """Requests lose our object on their way there, models and events on their way back: an engine behind it is not
    known to be ours, and understands no more than vLLM does."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        answer = await self._transport.get(url, path, timeout_s)
        if not answer.body.startswith(b"{"):
            return answer
        told: dict[str, Any] = json.loads(answer.body)
        for model in told.get("data", ()):
            model.pop(OURS, None)
        return answer._replace(body=json.dumps(told).encode())

    def close(self) -> None:
        self._transport.close()

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Exchange:
        asked: dict[str, Any] = json.loads(body)
        asked.pop(OURS, None)
        asked["sampling_params"].pop("stop_token_ids", None)  # our engine knows all of its model's
        return self._transport.post(url, path, json.dumps(asked).encode(), PlainReceiver(receiver), traceparent)


class PlainReceiver:
    def __init__(self, receiver: Receiver) -> None:
        self.begun, self.refused, self.lost = receiver.begun, receiver.refused, receiver.lost
        self.generated = receiver.generated
        self._receiver = receiver
        self._events = Events()

    def received(self, data: bytes) -> None:
        for event in self._events.feed(data):
            if event:
                self._receiver.received(b"data: %b\n\n" % _plain(event))


def _plain(event: bytes) -> bytes:
    if event == DONE:
        return event
    told: dict[str, Any] = json.loads(event)
    if told.pop(OURS, None) is not None and told.get("choices"):
        told.pop("usage", None)  # vLLM tells it behind the last token
    return json.dumps(told).encode()
