"""RocketMQ's remoting protocol: commands, their bytes, and the two ends of a connection.

`command` and `codes` are the words; `codec` and `frames` their bytes, without I/O; `connection` is one link with its
limits, `server` accepts links, `client` opens them. Requests go in both directions over a link.
"""
