"""RocketMQ's remoting protocol: commands, their encoding, and both ends of a connection.

`command` and `codes` define commands; `codec` and `frames` encode them, without I/O; `connection` is one connection
with its limits, `server` accepts connections, `client` opens them. Both sides can send requests.
"""
