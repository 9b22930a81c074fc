"""A group of members in one process, under a virtual clock, with everything going wrong that may: from one seed.

    make simulate FIRST=0 SEEDS=10000              all cores; the last line says what was run and what was found
    make simulate FIRST=4711 SEEDS=1 VERBOSE=1     one run, every step of it
    PROFILE=storm                                  one kind of run (`profiles`)

A replicated log is right if it is right when three things happen at once that never happen: the old leader wakes up,
a vote is in flight since yesterday, and a machine loses power between a write and its sync. No test waits for that in
a test that runs on a real clock. So here the cores are the product's (`tallystick.replication.raft`), which do no I/O
and read no clock, and everything around them is made of one random number generator: when a packet arrives, how long
a sync takes, which effect is the last one before a crash, how fast a clock runs. The same seed is the same run, step
for step. After each effect that any member carries out, an oracle that sees everything looks whether a promise of the
protocol is broken (`oracle`). In the end all is repaired, and the group has to agree within a stated time.

    simulation   one run: chaos, then calm
    process      inbox, effects in order; where crashes, pauses and stalls strike
    member       the driver round a core: what each effect does, group commit
    disk         what survives a crash, and what recovery makes of it
    network      loss, duplicates, delay, overtaking; directed links
    clock        the queue of events; the members' own clocks
    clients      who proposes and reads
    faults       what can go wrong
    profiles     how often, in which kind of run
    oracle       the invariants
    mutations    mistakes planted in the core, each of which has to be found

What is modelled
- Packets: lost, doubled, late, overtaking each other, arriving after their sender's death or at its successor.
- Partitions: full, one-way, bridges, single links in one direction.
- Processes: killed just before or just after any effect, in the middle of a durable one, all at once; stalled; slow.
- Clocks: of different rates; jumping ahead.
- Disks: slow; full; failing for good; losing what was not synced, with a torn end; bits flipped in what was synced;
  emptied under a known member; the end of what was synced lost in silence, in the runs whose leader stays. Old segments
  deleted, so that others need a snapshot.
- People: membership changes and transfers, at the same time, also requested from former leaders.

What is not
- Bytes. An entry is (term, kind, number); all are of one size. What files hold is tested where they are written.
- A volume that knows its synced point, see `disk`.
- Bits flipped in the record of term and vote (it has two copies with a CRC: it is lost in whole or not at all), and
  damage to a majority. Nothing can be promised then.
- Clocks that break the bound that leases trust, in the runs that use leases.
"""
