"""Codecs with the libraries that they are for."""

import asyncio
import dataclasses
from typing import Any

import pytest

from tallystick.client import Client, Codec, ConfigurationError, Start, msgspec_codec, pydantic_codec
from tallystick.client.wire.codes import RequestCode
from tallystick.testing import Broker

PATIENCE_S = 60.0
pydantic = pytest.importorskip("pydantic")
msgspec = pytest.importorskip("msgspec")


class Order(pydantic.BaseModel):  # type: ignore[name-defined]
    id: int
    lines: list[str]


class Payment(msgspec.Struct):  # type: ignore[name-defined]
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


@pytest.mark.parametrize("codec", [pydantic_codec(Order), msgspec_codec(Payment)])
async def test_a_body_of_another_type_raises_what_the_library_raises_and_becomes_a_dead_letter(
    codec: Codec[Any],
) -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b'{"id": "no number"}')
        async with client.consumer("g", "T", start=Start.FIRST, codec=codec, max_retries=0) as consumer:
            with pytest.raises((pydantic.ValidationError, msgspec.ValidationError)):
                async with (message := await anext(consumer)).process(reraise=True):
                    message.value  # noqa: B018
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await dead_letters(client, broker) == "1":
                    break
                await asyncio.sleep(0.05)


async def dead_letters(client: Client, broker: Broker) -> str | None:
    """How many there are. Nobody may read the topic, so it has to be asked for its end."""
    answer = await client.ask(broker.address, RequestCode.GET_MAX_OFFSET, {"topic": "%DLQ%g", "queueId": "0"})
    return (answer.ext or {}).get("offset")


async def test_bytes_are_demanded_without_a_codec() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        with pytest.raises(ConfigurationError, match="a codec encodes other values"):
            await client.producer("pg").send("T", Order(id=1, lines=[]))
