"""Whole brokers, name servers and clients in one Python process, played from one seed.

    patches      what a process asks of its machine: clocks, randomness, threads, sockets, the disk
    world        hosts and processes; which of them runs now
    loop         the event loop: virtual time, one order of events, threads as events
    network      connections between hosts: latency, loss, cuts, resets, chunks
    nodes        a broker or name server as it is started, stopped, killed, and deprived of its power
    clients      what producers, consumers and administrators do
    oracle       what was promised, and whether it was kept
    ordered      the same for locks of queues
    routes       the same for what name servers tell
    stranger     requests of a process that only knows addresses
    faults       what goes wrong, and when
    profiles     what kinds of runs there are
    simulation   one run
    mutations    mistakes that a run has to find

`patches.install()` replaces functions of the standard library, and must run before the product is imported.
`python -m simulation` does that.
"""
