"""Codecs with the libraries that they are for."""

import dataclasses
from typing import Any

import pytest

from tallystick.client import Client, Codec, ConfigurationError, Start, msgspec_codec, pydantic_codec
from tallystick.testing import Broker

pydantic = pytest.importorskip("pydantic")
msgspec = pytest.importorskip("msgspec")


class Order(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    id: int
    lines: list[str]


class Payment(msgspec.Struct):  # type: ignore[misc,name-defined]
    order: int
    cents: int


@dataclasses.dataclass
class Parcel:
    order: int


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (pydantic_codec(Order), Order(id=1, lines=["ä"])),
        (pydantic_codec(Parcel), Parcel(2)),
        (pydantic_codec(Order | Parcel), Parcel(3)),  # type: ignore[arg-type]
        (msgspec_codec(Payment), Payment(4, 250)),
    ],
)
async def test_a_value_arrives_as_it_was(codec: Codec[Any], value: Any) -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg", codec=codec).send("T", value)
        async with client.consumer("g", "T", start=Start.FIRST, codec=codec) as consumer:
            message = await anext(consumer)
            assert message.value == value and type(message.value) is type(value)
            await message.ack()


@pytest.mark.parametrize(
    ("codec", "error"), [(pydantic_codec(Order), ValueError), (msgspec_codec(Payment), ValueError)]
)
async def test_a_body_of_another_type_raises_what_the_library_raises_and_becomes_a_dead_letter(
    codec: Codec[Any], error: type[Exception]
) -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b'{"id": "no number"}')
        async with client.consumer("g", "T", start=Start.FIRST, codec=codec, max_retries=0) as consumer:
            with pytest.raises((pydantic.ValidationError, msgspec.ValidationError)):
                async with (message := await anext(consumer)).process(reraise=True):
                    message.value  # noqa: B018
        queues = await client.pull("%DLQ%g").queues()
        (dead,) = (await client.pull("%DLQ%g").fetch(queues[0], 0)).messages
        assert dead.body == b'{"id": "no number"}'


async def test_bytes_are_demanded_without_a_codec() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        with pytest.raises(ConfigurationError, match="a codec encodes other values"):
            await client.producer("pg").send("T", Order(id=1, lines=[]))
