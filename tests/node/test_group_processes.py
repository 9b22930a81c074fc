"""A group of three real processes under `kill -9`: what was acknowledged is there, in its place, on every member."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from group_lab import NAME, PATIENCE_S, GroupLab, until
from tally_process import tally

from tallystick.node.broker.group.forwarding import HOLD_S
from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.codes import RequestCode
from tallystick.store import fastjson
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.segment_files import SegmentFiles, segment_name

pytestmark = pytest.mark.process

QUEUES = 4
BEGUN = b"an entry that is just being written"


async def test_nothing_acknowledged_is_lost_when_the_leader_is_killed(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            first, ledger = await lab.with_topic(client, "orders", QUEUES)
            await ledger.produce(300, 16, b"before")
            load = asyncio.create_task(ledger.produce(600, 16, b"during"))

            async def under_way() -> bool | None:
                return len(ledger.acknowledged) > 400 or None

            await until("the load is in progress", under_way)
            lab.kill(first)
            second = await lab.leader()
            await load
            assert second != first
            await lab.master(client, second)
            ledger.check(await ledger.read(lab.address(second)))

            lab.start(first)
            await lab.ready()
            await ledger.produce(50, 4, b"after")
            expected = await ledger.read(lab.address(await lab.leader()))
            ledger.check(expected)
            for number in lab.members:

                async def same(address: str = lab.address(number)) -> bool | None:
                    return await ledger.read(address) == expected or None

                await until(f"n{number} has the same messages at the same offsets", same)
            route = fastjson.loads((await client.ask_nameserver(106, {})).body)["brokerAddrTable"][NAME]
            followers = {number + 1: lab.address(number) for number in lab.members if number != second}
            assert route["brokerAddrs"] == {0: lab.address(second), **followers}


async def test_a_second_process_on_a_members_folder_touches_nothing(tmp_path: Path) -> None:
    """Its recovery would cut off what the first one is just writing: entries that a majority is about to have."""
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, ledger = await lab.with_topic(client, "orders", QUEUES)
            await ledger.produce(50, 4, b"before")
            await lab.ready()
            (path,) = (tmp_path / f"n{leader}").glob(f"store/dledger-*/data/{segment_name(0)}")
            with SegmentFiles(path.parent) as log:
                *_, end = walk(log, entry_header_bytes=ENTRY_HEADER_BYTES)
            assert end.kind is StepKind.END
            with path.open("r+b") as file:
                file.seek(end.pos)
                file.write(BEGUN)
            second = await asyncio.to_thread(lab.start_beside, leader)
            assert second.returncode == 2 and "is already open" in second.stderr, second.stderr
            with path.open("rb") as file:
                file.seek(end.pos)
                assert file.read(len(BEGUN)) == BEGUN, "it is the first one's to write there"
            await ledger.produce(50, 4, b"after")
            ledger.check(await ledger.read(lab.address(leader)))


async def test_topics_groups_offsets_and_delayed_messages_survive_the_leader(tmp_path: Path) -> None:
    with GroupLab(tmp_path, "messageDelayLevel=2s") as lab:
        async with ClusterClient(lab.nameserver) as client:
            first = await lab.leader()
            await lab.master(client, first)
            await client.create_topic(lab.address(first), "orders", QUEUES)
            group = {"groupName": "readers", "retryMaxTimes": 3}
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await client.call(lab.address(first), code, {}, fastjson.dumps(group))
            queue = QueueAddress("orders", NAME, lab.address(first), 1)
            await client.send(queue, b"one")
            await client.commit(queue, "readers", 1)
            others = [number for number in lab.members if number != first]
            for number in others:

                async def known(address: str = lab.address(number)) -> bool | None:
                    answer = await client.call(address, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
                    return fastjson.loads(answer.body)["offsetTable"].get("orders@readers") == {1: 1} or None

                await until(f"n{number} has the offset", known)
            ext = {
                "a": "tally",
                "b": "orders",
                "c": "TBW102",
                "d": "4",
                "e": "2",
                "f": "0",
                "g": "0",
                "h": "0",
                "i": "DELAY\x011\x02UNIQ_KEY\x01delayed\x02",
                "j": "0",
                "k": "false",
                "m": "false",
            }
            await client.call(lab.address(first), RequestCode.SEND_MESSAGE_V2, ext, b"delayed")
            lab.kill(first)
            second = await lab.leader()
            await lab.master(client, second)

            async def delivered() -> bytes | None:
                there = QueueAddress("orders", NAME, lab.address(second), 2)
                found = await client.pull(there, 0, group="readers")
                return found.records[0].body if found.records else None

            assert await until("the new leader delivers it", delivered) == b"delayed"
            answer = await client.call(lab.address(second), RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
            assert fastjson.loads(answer.body)["subscriptionGroupTable"]["readers"]["retryMaxTimes"] == 3
            there = QueueAddress("orders", NAME, lab.address(second), 1)
            assert await client.committed(there, "readers") == 1


async def test_a_follower_serves_reads_and_forwards_changes(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader = await lab.leader()
            await lab.ready()
            await lab.master(client, leader)
            await client.send(QueueAddress("made-by-sending", NAME, lab.address(leader), 0), b"one")
            follower = next(number for number in lab.members if number != leader)
            there = QueueAddress("made-by-sending", NAME, lab.address(follower), 0)

            async def readable() -> bytes | None:
                found = await client.pull(there, 0, group="readers")
                return found.records[0].body if found.records else None

            assert await until("the follower has it", readable) == b"one"
            _, offset = await client.send(there, b"two")
            assert offset == 1
            pulled = await client.pull(
                QueueAddress("made-by-sending", NAME, lab.address(leader), 0), 1, group="readers"
            )
            assert [record.body for record in pulled.records] == [b"two"]
            assert (await client.offset_range(there))[1] == 2, "what was acknowledged is there for who asks"
            await client.commit(there, "readers", 2)
            assert await client.committed(there, "readers") == 2, "though it goes into the log a second later"
            await client.create_topic(there.address, "made-there", QUEUES)
            info = fastjson.loads((await client.call(there.address, 28, {})).body)["table"]
            assert (info["groupRole"], info["groupLeader"]) == ("follower", f"n{leader}")
            for number in {0, 1, 2} - {follower}:
                lab.kill(number)
            with pytest.raises(RequestRefusedError) as refused:
                await client.send(there, b"three")
            assert refused.value.code == 14
            assert (await client.pull(there, 0, group="readers")).records, "reads go on"


async def test_no_send_fails_during_a_transfer_of_leadership(tmp_path: Path) -> None:
    """Nor does any go to the new leader by itself: each goes to a member that leads no more.

    On a machine with too much to do a group may be without a leader for longer than requests are held. Then they are
    refused, and not before.
    """
    clock = asyncio.get_running_loop().time
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver, timeout_s=PATIENCE_S) as client:
            old = await lab.leader()
            await lab.ready()
            await lab.master(client, old)
            await client.create_topic(lab.address(old), "orders", QUEUES)
            ended = asyncio.Event()
            places: dict[int, set[int]] = {queue_id: set() for queue_id in range(QUEUES)}

            async def produce(queue_id: int) -> None:
                queue = QueueAddress("orders", NAME, lab.address(old), queue_id)
                while not ended.is_set():
                    begin = clock()
                    try:
                        _, offset = await client.send(queue, b"x")
                    except RequestRefusedError as refused:
                        assert (refused.code, clock() - begin >= HOLD_S) == (14, True), refused
                        continue
                    places[queue_id].add(offset)

            load = [asyncio.create_task(produce(queue_id)) for queue_id in range(QUEUES)]
            for _ in range(5):
                leader = await lab.leader()
                target = (leader + 1) % 3
                await lab.hand_over(target)
                sent = {queue_id: len(found) for queue_id, found in places.items()}

                async def going_on(sent: dict[int, int] = sent) -> bool | None:
                    for each in load:
                        if each.done():
                            each.result()  # the send that failed
                    return all(len(places[queue_id]) > count + 1 for queue_id, count in sent.items()) or None

                await until("sends go on", going_on)
            ended.set()
            await asyncio.gather(*load)
            for queue_id, found in places.items():
                assert found == set(range(len(found))), f"queue {queue_id} has something twice"


async def test_an_operator_sees_the_group_and_moves_its_leader(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader = await lab.leader()
            await lab.ready()
            http = lab.members[leader].places["http"]
            shown = await asyncio.to_thread(tally, "group", "status", "--http", http, "--json")
            status = json.loads(shown.stdout)
            assert (status["leader"], status["voters"]) == (leader, [0, 1, 2])
            _, metrics = await asyncio.to_thread(lab.members[leader].get, "/metrics")
            labels = f'cluster="DefaultCluster",node_id="{NAME}",node_type="broker"'
            assert f"tally_group_leads{{{labels}}} 1.0" in metrics
            assert metrics.count("\ntally_group_lag_bytes{") == 2
            assert {peer["member"]: peer["lag_bytes"] for peer in status["peers"]}.keys() == {0, 1, 2} - {leader}
            target = (leader + 1) % 3
            follower = lab.members[target].places["http"]
            refused = await asyncio.to_thread(tally, "group", "transfer", f"n{target}", "--http", follower)
            assert refused.returncode == 1
            assert f"n{leader} leads" in refused.stderr
            await lab.hand_over(target)
            await lab.master(client, target)
            assert (await client.masters())[NAME] == lab.address(target)
            removed = await asyncio.to_thread(tally, "group", "remove", f"n{leader}", "--http", follower)
            assert removed.returncode == 0, removed.stderr

            async def gone() -> bool | None:
                return (await lab.status(target))["voters"] == sorted({0, 1, 2} - {leader}) or None

            await until("it is removed", gone)

            async def left() -> bool | None:
                answer = await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, {})
                known = fastjson.loads(answer.body)["brokerAddrTable"][NAME]["brokerAddrs"]
                return lab.address(leader) not in known.values() or None

            await until("clients no longer find it", left)
            added = await asyncio.to_thread(tally, "group", "add", f"n{leader}", "--http", follower)
            assert added.returncode == 0, added.stderr
            assert (await lab.status(target))["voters"] == [0, 1, 2]
            await lab.ready()
            await client.send(QueueAddress("t", NAME, lab.address(target), 0), b"still there")


async def test_a_stopping_leader_hands_over_first(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            await lab.ready()
            leader, ledger = await lab.with_topic(client, "orders", QUEUES)
            load = asyncio.create_task(ledger.produce(400, 8, b"load"))

            async def under_way() -> bool | None:
                return len(ledger.acknowledged) > 100 or None

            await until("the load is in progress", under_way)
            term = (await lab.status(leader))["term"]
            process = lab.members.pop(leader)
            assert await asyncio.to_thread(process.end, signal.SIGTERM) == 0
            process.__exit__(None, None, None)
            second = await lab.leader()
            await load
            status = await lab.status(second)
            assert status["term"] == term + 1, "one election, by the leader's own wish"
            ledger.check(await ledger.read(lab.address(second)))


async def test_a_leader_that_stops_serves_its_clients_until_they_have_moved(tmp_path: Path) -> None:
    with GroupLab(tmp_path, "groupLingerMills=60000") as lab:
        async with ClusterClient(lab.nameserver) as client:
            old = await lab.leader()
            await lab.ready()
            await lab.master(client, old)
            queue = QueueAddress("orders", NAME, lab.address(old), 0)
            async with ClusterClient(lab.nameserver) as unaware:
                await unaware.send(queue, b"before")
                process = lab.members.pop(old)
                ended = asyncio.create_task(asyncio.to_thread(process.end, signal.SIGTERM))
                new = await lab.leader()
                await lab.master(client, new)
                for _ in range(5):
                    await unaware.send(queue, b"after")
                cluster = await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, {})
                known = fastjson.loads(cluster.body)["brokerAddrTable"][NAME]["brokerAddrs"]
                assert lab.address(old) not in known.values(), "routes must not name the old leader"
                assert not ended.done()
            assert await ended == 0
            process.__exit__(None, None, None)


async def test_a_member_that_lacks_deleted_entries_installs_a_snapshot_and_has_the_same_offsets(tmp_path: Path) -> None:
    """L11: segments of 1 MiB that expire at once, and a member that was away while the first ones went."""
    hours = "deleteWhen=" + ";".join(f"{hour:02}" for hour in range(24))
    with GroupLab(tmp_path, "fileReservedTime=0", hours, "cleanResourceInterval=200") as lab:
        async with ClusterClient(lab.nameserver) as client:
            await lab.ready()
            leader, ledger = await lab.with_topic(client, "orders", QUEUES)
            await client.create_topic(lab.address(leader), "idle", QUEUES)
            for _ in range(3):
                await client.send(QueueAddress("idle", NAME, lab.address(leader), 2), b"long ago")
            await ledger.produce(40, 8, b"early")
            away = (leader + 1) % 3
            lab.kill(away)
            await ledger.produce(60, 4, b"x" * 60_000)

            async def deleted() -> bool | None:
                return (await lab.status(leader))["first_index"] > 60 or None

            await until("the leader's log begins later", deleted)
            lab.start(away)
            await lab.ready(away)
            await ledger.produce(40, 8, b"late")

            async def ranges(number: int) -> list[tuple[int, int]]:
                places = [QueueAddress("orders", NAME, lab.address(number), queue) for queue in range(QUEUES)]
                return [await client.offset_range(place) for place in places]

            ends = [high for _, high in await ranges(leader)]

            async def caught_up() -> list[tuple[int, int]] | None:
                found = await ranges(away)
                return found if [high for _, high in found] == ends and all(low > 10 for low, _ in found) else None

            found = await until("it has the same ends, and begins where its log does", caught_up)
            for queue_id, (low, high) in enumerate(found):
                place = QueueAddress("orders", NAME, lab.address(away), queue_id)
                pulled = await client.pull(place, low, group="readers", count=high - low)
                assert pulled.records, f"queue {queue_id} has nothing from {low} on"
                for record in pulled.records:
                    assert ledger.acknowledged[record.body] == (queue_id, record.queue_offset)

            await lab.hand_over(away)
            await lab.master(client, away)
            _, offset = await client.send(QueueAddress("idle", NAME, lab.address(away), 2), b"after all")
            assert offset == 3, "also where all that was sent is gone"


async def test_all_members_killed_at_once_come_back_with_everything(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, ledger = await lab.with_topic(client, "orders", QUEUES)
            await ledger.produce(200, 16, b"before")
            for number in range(3):
                lab.kill(number)
            for number in range(3):
                lab.start(number)
            leader = await lab.leader()
            await lab.master(client, leader)
            ledger.check(await ledger.read(lab.address(leader)))
            await ledger.produce(20, 4, b"after")
            ledger.check(await ledger.read(lab.address(await lab.leader())))
