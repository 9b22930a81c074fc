"""The synchronous client, with a broker in another process."""

from pathlib import Path

import pytest
from tally_process import TallyProcess

from tallystick.client import ClosedError, Message, Start, Timeout
from tallystick.client.sync import Client

pytestmark = pytest.mark.process


def test_a_program_without_an_event_loop_sends_and_receives(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as process:
        nameserver = process.nameserver
        with pytest.raises(ClosedError):
            Client(nameserver).producer("g").send("T", b"x")
        with Client(nameserver) as client:
            with client.producer("writers") as producer:
                assert producer.send("T", b"0", queue=0).offset == 0
                results = producer.send_batch([Message("T", b"1"), Message("T", b"2")], queue=0)
                assert [each.offset for each in results] == [1, 2]
                with pytest.raises(Timeout):
                    producer.request("Other", b"x", timeout=0.2)
            with client.consumer("readers", "T", start=Start.FIRST, ordered=True) as consumer:
                first = next(consumer)
                with consumer.process(first):
                    assert first.body == b"0"
                second = next(consumer)
                with pytest.raises(ValueError, match="mine"), consumer.process(second, reraise=True):
                    raise ValueError("mine")
                again = next(consumer)
                assert (again.body, again.attempts) == (b"1", 1)
                with consumer.process(again):
                    pass
                third = next(consumer)
                consumer.ack(third)
                consumer.commit()
                assert consumer.receive(0.1) is None
                client.wait(0.01)
            with client.consumer("readers", "T") as consumer:
                assert consumer.receive(0.1) is None, "all of them are consumed"
        client.close()
