"""The name server: which broker serves which topic, and where.

Brokers register every half minute with each name server; name servers keep what they hear in memory and never talk to
each other. `routes` are the tables and `registration` the body that fills them, both without I/O; `kv` is the one thing
kept on disk; `server` is the process around them.
"""
