"""Spans of OpenTelemetry, with the SDK's exporter in memory."""

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tallystick.client import Client, ConfigurationError, Message, Start
from tallystick.client.otel import OpenTelemetry
from tallystick.client.testing import Broker

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
PATIENCE_S = 60.0


def observer() -> OpenTelemetry:
    return OpenTelemetry(PROVIDER, TraceContextTextMapPropagator())


@pytest.fixture(autouse=True)
def _no_spans_of_others() -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_the_span_of_a_message_is_the_parent_of_the_span_of_its_processing() -> None:
    async with Broker() as broker, Client(broker.nameserver, observers=[observer()], client_id="me") as client:
        with PROVIDER.get_tracer("test").start_as_current_span("order") as order:
            sent = await client.producer("pg").send("T", b"hello", tag="A", keys=["k"], order_key="o")
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            message = await anext(consumer)
            async with message.process():
                inside = trace.get_current_span().get_span_context().span_id
            outside = trace.get_current_span().get_span_context().span_id
    (send,), (process,) = spans("send T"), spans("process T")
    assert send.context and send.parent and process.parent and process.context
    assert send.parent.span_id == order.get_span_context().span_id
    assert (process.parent.span_id, process.context.trace_id) == (send.context.span_id, send.context.trace_id)
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert inside == process.context.span_id and not outside
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(send) == {
        "messaging.system": "rocketmq",
        "messaging.client.id": "me",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"broker-a/{sent.queue.id}",
        "messaging.message.body.size": 5,
        "messaging.message.id": sent.unique_key,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.message.group": "o",
        "messaging.rocketmq.message.keys": ("k",),
        "messaging.rocketmq.message.tag": "A",
        "messaging.rocketmq.message.type": "fifo",
    }
    assert attributes(process) == {
        "messaging.system": "rocketmq",
        "messaging.client.id": "me",
        "messaging.consumer.group.name": "g",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"broker-a/{sent.queue.id}",
        "messaging.message.envelope.size": message.size,
        "messaging.message.id": sent.unique_key,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.rocketmq.consumption_model": "clustering",
        "messaging.rocketmq.message.keys": ("k",),
        "messaging.rocketmq.message.tag": "A",
    }


async def test_a_batch_has_a_span_for_each_message_and_links_to_them() -> None:
    async with Broker() as broker, Client(broker.nameserver, observers=[observer()]) as client:
        await client.producer("pg").send_batch([Message("T", b"1"), Message("T", b"2")])
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            async with asyncio.timeout(PATIENCE_S):
                batch = await anext(consumer.batches(2))
            async with batch.process():
                pass
    created, (send,), (process,) = spans("create T"), spans("send T"), spans("process T")
    ids = [span.context.span_id for span in created if span.context]
    assert len(set(ids)) == 2 and {span.kind for span in created} == {SpanKind.PRODUCER}
    assert [link.context.span_id for link in send.links] == ids and send.kind == SpanKind.CLIENT
    assert [link.context.span_id for link in process.links] == ids and process.parent is None
    assert attributes(send)["messaging.batch.message_count"] == 2
    assert attributes(process)["messaging.batch.message_count"] == 2


async def test_failures_are_errors_of_spans() -> None:
    async with Broker() as broker, Client(broker.nameserver, observers=[observer()]) as client:
        producer = client.producer("pg")
        with pytest.raises(ConfigurationError):
            await producer.send("T", b"")
        await producer.send_nowait("T", b"x")
        async with client.consumer("g", "T", start=Start.FIRST) as consumer, (await anext(consumer)).process():
            raise ZeroDivisionError("by hand")
    refused, sent = spans("send T")
    (process,) = spans("process T")
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(refused)["error.type"] == "ConfigurationError"
    assert sent.status.status_code is StatusCode.UNSET
    assert (process.status.status_code, process.status.description) == (StatusCode.ERROR, "by hand")
    assert [event.name for event in process.events] == ["exception"]


async def test_a_message_without_a_context_begins_a_trace() -> None:
    async with Broker() as broker, Client(broker.nameserver) as other:
        await other.producer("pg").send("T", b"x")
        client = Client(broker.nameserver, observers=[observer()])
        async with client, client.consumer("g", "T", start=Start.FIRST) as consumer:
            with PROVIDER.get_tracer("test").start_as_current_span("poll") as poll:
                message = await anext(consumer)
                async with message.process():
                    await message.retry()
    (process,) = spans("process T")
    assert process.parent and process.parent.span_id == poll.get_span_context().span_id and not process.links
    assert process.status.description == "the application sent the message back"
