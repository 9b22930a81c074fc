"""raftos 0.2.6 and our core side by side: the same history for both, and what each makes of it.

raftos is hosted whole: its nodes, its datagram protocol, its roles, its files, as they were published. What lies
below it is replaced, so that a history can be told to it and told again:

    loop      asyncio's event loop on the simulator's event queue: virtual time, one order of events
    files     the disk: knows what a killed process leaves behind, and what a power loss does
    adapted   what had to be done for it to run on a Python of today, complete
    post      datagrams for a script: held back, copied, cut off

Our core runs in the simulator of `tests/replication`, with that simulator's oracle watching every step: a broken
invariant ends the test. Both are `group.Group`s, so that a history is written once:

    raftos_group, our_group    a group of members of either kind
    evidence                   runs a history on both, and keeps the table that is printed at the end
    recording, replay, judge   a run of the simulator under one of its seeds, written down; told to raftos; judged
"""
