"""Spans of OpenTelemetry for messages that are sent and processed: `pip install tallystick-client[otel]`.

    async with Client("127.0.0.1:9876", observers=[OpenTelemetry()]) as client:
        ...

Names and attributes follow OpenTelemetry's semantic conventions for messaging systems and for RocketMQ. The context
travels in properties of the message, so it also reaches clients in other languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from tallystick.client.core.message import Message, Stored
from tallystick.client.core.result import SendResult
from tallystick.client.observing.observer import Consuming, Observer, Processed, ProcessEnd, SendEnd, Sending

_SYSTEM = {"messaging.system": "rocketmq"}


class OpenTelemetry(Observer):
    """Makes spans. Without arguments it uses the application's global provider and propagator.

    `send TOPIC` is the span of a message, from the call to the broker's answer. Of a batch, each message has a span
    `create TOPIC`, and the request has a span `send TOPIC` with links to them. `process TOPIC` is the span of the block
    of `process`: a child of the message's span; of several messages, it has links to theirs.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        self._tracer = trace.get_tracer("tallystick.client", tracer_provider=tracer_provider)
        self._propagator = propagator

    def sending(self, what: Sending) -> SendEnd | None:
        if len(what.messages) == 1:
            span = self._created(what, what.messages[0], "send")
        else:
            parts = [self._created(what, message, "create") for message in what.messages]
            for part in parts:
                part.end()
            span = self._tracer.start_span(
                f"send {what.messages[0].topic}",
                kind=SpanKind.CLIENT,
                attributes=_of_sending(what, "send") | {"messaging.batch.message_count": len(parts)},
                links=[Link(part.get_span_context()) for part in parts],
            )

        def end(results: Sequence[SendResult], error: BaseException | None) -> None:
            if results and span.is_recording():
                span.set_attributes(_of_results(results))
            _end(span, error)

        return end

    def _created(self, what: Sending, message: Message, operation: str) -> Span:
        """Returns the span of a message, whose properties get its context."""
        span = self._tracer.start_span(
            f"{operation} {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes=_of_sending(what, operation) | _of_message(message, half=what.half),
        )
        carrier: dict[str, str] = {}
        self._inject(carrier, trace.set_span_in_context(span))
        if carrier:
            message.properties = {**message.properties, **carrier}
        return span

    def processing(self, what: Consuming) -> ProcessEnd | None:
        origins = [self._extract(message.properties) for message in what.messages]
        spans = [trace.get_current_span(origin).get_span_context() for origin in origins]
        alone = len(origins) == 1 and spans[0].is_valid
        span = self._tracer.start_span(
            f"process {what.messages[0].topic}",
            context=origins[0] if alone else None,
            kind=SpanKind.CONSUMER,
            attributes=_of_consuming(what),
            links=[Link(each) for each in spans if each.is_valid],
        )
        token = contexts.attach(trace.set_span_in_context(span))

        def end(how: Processed, error: BaseException | None) -> None:
            contexts.detach(token)
            if how is Processed.FAILED:
                span.set_status(Status(StatusCode.ERROR, "the application sent the message back"))
            _end(span, error)

        return end

    def _inject(self, carrier: dict[str, str], context: contexts.Context) -> None:
        if self._propagator is None:
            propagate.inject(carrier, context)
        else:
            self._propagator.inject(carrier, context)

    def _extract(self, properties: dict[str, str]) -> contexts.Context:
        empty = contexts.Context()  # not the current one: a message without a context has none
        if self._propagator is None:
            return propagate.extract(properties, empty)
        return self._propagator.extract(properties, empty)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.record_exception(error)
    span.end()


def _of_sending(what: Sending, operation: str) -> dict[str, Any]:
    return _SYSTEM | {
        "messaging.client.id": what.client_id,
        "messaging.destination.name": what.messages[0].topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _of_message(message: Message, *, half: bool) -> dict[str, Any]:
    keys = [message.keys] if isinstance(message.keys, str) else list(message.keys)
    kind = "transaction" if half else "delay" if message.has_delay else "fifo" if message.order_key else "normal"
    found: dict[str, Any] = {"messaging.message.body.size": len(message.body), "messaging.rocketmq.message.type": kind}
    if message.tag:
        found["messaging.rocketmq.message.tag"] = message.tag
    if keys:
        found["messaging.rocketmq.message.keys"] = keys
    if message.order_key is not None:
        found["messaging.rocketmq.message.group"] = message.order_key
    if message.delay_level is not None:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.deliver_at is not None:
        found["messaging.rocketmq.message.delivery_timestamp"] = int(message.deliver_at.timestamp() * 1000)
    return found


def _of_results(results: Sequence[SendResult]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.destination.partition.id": _partition(results[0].queue.broker, results[0].queue.id)
    }
    if len(results) == 1:
        found["messaging.message.id"] = results[0].unique_key
    return found


def _of_consuming(what: Consuming) -> dict[str, Any]:
    first = what.messages[0]
    found: dict[str, Any] = _SYSTEM | {
        "messaging.client.id": what.client_id,
        "messaging.consumer.group.name": what.group,
        "messaging.destination.name": first.topic,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.rocketmq.consumption_model": "broadcasting" if what.broadcast else "clustering",
    }
    if len(what.messages) > 1:
        return found | {"messaging.batch.message_count": len(what.messages)}
    return found | _of_stored(first)


def _of_stored(message: Stored) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.destination.partition.id": _partition(message.broker, message.queue_id),
        "messaging.message.envelope.size": message.size,
        "messaging.message.id": message.unique_key or message.message_id,
    }
    if message.tag:
        found["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys
    return found


def _partition(broker: str, queue: int) -> str:
    return f"{broker}/{queue}"
