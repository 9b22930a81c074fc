"""Sends one message, and consumes it."""

import asyncio

from tallystick.client import Client, Start


async def main() -> None:
    async with Client("127.0.0.1:9876") as client:
        sent = await client.producer("writers").send("Hello", b"hello, world", tag="greeting", keys=["tour"])
        print("sent", sent.message_id)
        async with client.consumer("readers", "Hello", start=Start.FIRST) as consumer:
            async for message in consumer:
                async with message.process():
                    print("received", message.body.decode())
                break


asyncio.run(main())
