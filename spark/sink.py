"""`df.write.format("tallystick")` and `df.writeStream.format("tallystick")`: rows become messages.

    writer = orders.selectExpr("to_json(struct(*)) as body", "customer as order_key").write.format("tallystick")
    writer.option("nameserver", "127.0.0.1:9876").option("topic", "orders").mode("append").save()

`outgoing.py` has the columns, `producer.py` sends. Each task sends the rows of its partition; nothing is undone if a
task or the query fails. Messages can be stored twice: if a request without an answer is repeated, if Spark repeats a
task, and if a streaming query that was killed repeats its last batch. The same rows have the same unique keys then, so
that readers can drop the second one, if a repeated partition has the same rows in the same order. The driver reports
after each batch how many messages were sent, and how many may be doubled.

Options: see `SinkOptions`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tallystick.spark.outgoing import KeyMaker, check_columns, messages_of
from tallystick.spark.producer import Producer, Sent, Target
from tallystick.spark.protocol_access import ProtocolAccess

_ROWS = 4096
# Spark 4.0 gives the rows of a stream one by one.
StreamWriterBase: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
_SPARKS = frozenset(("checkpointlocation", "queryname"))
"""Options of Spark's own, which it passes on."""
_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write.

    nameserver      host:port of the name servers, separated by semicolons; or
    broker          host:port of one broker
    topic           of rows that do not name one
    group           the producer group
    batchBytes      of the messages of one request
    timeoutSeconds  to wait for an answer
    retrySeconds    to repeat a request, before the task fails
    writeId         identifies the write in the unique keys; the same rows with the same identity have the same keys
    summaryPath     folder for a JSON file about each batch
    credentials     file of the driver with accessKey and secretKey, which sign the requests ($TALLY_CREDENTIALS)
    tls             true: connections use TLS
    ca              file of the driver with certificates in PEM format that verify servers; it implies tls ($TALLY_CA)
    """

    target: Target
    topic: str | None = None
    write_id: str | None = None
    summary_path: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """ValueError: an option is unknown, missing or wrong."""
        names = ("nameserver", "broker", "topic", "group", "batchBytes", "timeoutSeconds", "retrySeconds", "writeId")
        known = {name.lower(): name for name in (*names, "summaryPath", "credentials", "tls", "ca")}
        given: dict[str, str] = {}
        for name, text in options.items():
            if name.lower() in _SPARKS:
                continue
            if name.lower() not in known:
                raise ValueError(f"option {name} is unknown; the options of a write are {', '.join(known.values())}")
            given[known[name.lower()]] = text
        if ("nameserver" in given) == ("broker" in given):
            raise ValueError("one of the options nameserver and broker is required")
        target = Target(
            nameserver=given.get("nameserver"),
            broker=given.get("broker"),
            group=given.get("group", "tally-spark"),
            batch_bytes=int(_number(given, "batchBytes", 512 << 10, 1, 4 << 20)),
            timeout_s=_number(given, "timeoutSeconds", 10, 0.1, 3600),
            retry_s=_number(given, "retrySeconds", 60, 0, 86_400),
            access=ProtocolAccess.of(given.get("credentials"), _switch(given, "tls"), given.get("ca")),
        )
        return cls(target, given.get("topic"), given.get("writeId"), given.get("summaryPath"))


def _switch(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name} must be true or false, not {given[name]!r}")
    return text == "true"


def _number(given: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        raise ValueError(f"option {name} must be a number, not {given[name]!r}") from None
    if not least <= value <= most:
        raise ValueError(f"option {name} must be {least:g} to {most:g}, not {value:g}")
    return value


@dataclass
class Told(WriterCommitMessage):
    """What a task sent. `attempt`: of the task, 0 is the first."""

    sent: Sent
    attempt: int


class _Sink:
    """The driver's and the tasks' part of a write. It is pickled to the workers, so it has only plain values."""

    def __init__(self, options: SinkOptions, schema: pa.Schema) -> None:
        check_columns(schema)
        self.options = options
        self.schema = schema
        self.write_id = options.write_id or str(uuid.uuid4())

    def send(self, batches: Iterable[pa.RecordBatch]) -> Told:
        """Sends the rows of a task. RowError, SendError."""
        context = TaskContext.get()
        assert context is not None, "it is called by a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        write = self.options.write_id or query or self.write_id
        sent = asyncio.run(self._send(batches, KeyMaker(write, batch or "", context.partitionId())))
        if context.attemptNumber() > 0:
            sent.doubled = sent.messages  # an earlier attempt may have sent all of them
        return Told(sent, context.attemptNumber())

    async def _send(self, batches: Iterable[pa.RecordBatch], keys: KeyMaker) -> Sent:
        row = 0
        async with Producer(self.options.target, keys.partition) as producer:
            for batch in batches:
                await producer.send(messages_of(batch, keys, row, self.options.topic))
                row += batch.num_rows
            await producer.flush()
            return producer.sent

    def committed(self, messages: Iterable[Any], batch: int | None) -> None:
        """Reports a batch. OSError."""
        told = [message for message in messages if isinstance(message, Told)]
        total = Sent()
        for each in told:
            total.add(each.sent)
        repeated = sum(each.attempt > 0 for each in told)
        _logger.warning(
            "%s messages were sent in %s requests%s; %s of them may be stored twice (%s of %s tasks were repeated); "
            "the broker did not confirm %s as synced",
            *(total.messages, total.requests, "" if batch is None else f" for batch {batch}", total.doubled),
            *(repeated, len(told), total.unsynced),
        )
        if self.options.summary_path is not None:
            name = self.write_id if batch is None else f"batch-{batch:012d}"
            summary = asdict(total) | {"batch": batch, "tasks": len(told), "repeated_tasks": repeated}
            write_summary(Path(self.options.summary_path) / f"{name}.json", summary)

    def aborted(self, messages: Iterable[Any], batch: int | None) -> None:
        sent = sum(message.sent.messages for message in messages if isinstance(message, Told))
        _logger.warning(
            "the write%s failed: %s messages of its completed tasks, and some of the others, remain in the brokers",
            *("" if batch is None else f" of batch {batch}", sent),
        )


class MessageWriter(_Sink, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Told:
        return self.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.committed(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.aborted(messages, None)


class MessageStreamWriter(_Sink, StreamWriterBase):  # type: ignore[misc]
    def write(self, iterator: Iterator[Any]) -> Told:
        if StreamWriterBase is DataSourceStreamWriter:
            return self.send(batched(iterator, self.schema))
        return self.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.committed(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.aborted(messages, batchId)


def batched(rows: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Returns Spark's rows as batches."""
    taken: list[Any] = []
    for row in rows:
        taken.append(tuple(row))
        if len(taken) == _ROWS:
            yield _batch(taken, schema)
            taken = []
    if taken:
        yield _batch(taken, schema)


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the schema of the batches. ValueError: a column has no meaning, or a wrong type."""
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([pa.field(field.name, to_arrow_type(field.dataType)) for field in schema.fields])


def writer_of(kind: type[Any], options: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    """Returns a writer. ValueError: an option or the schema is wrong, or the mode is overwrite."""
    if overwrite:
        raise ValueError("messages cannot be overwritten: use the mode append")
    return kind(SinkOptions.parse(options), arrow_schema(schema))


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(summary) + "\n")
    temporary.replace(path)
