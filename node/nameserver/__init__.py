"""The name server: which broker serves which topic, and where.

Brokers register with each name server every 30 s. Name servers keep the registrations in memory and do not communicate
with each other. `routes` has the tables, `registration` parses the body of a registration, both without I/O; `kv` is
the only table on disk; `server` serves them.
"""
