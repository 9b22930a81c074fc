"""A real broker for tests of applications: `async with Broker() as broker`.

It is the broker of `tallystick.client.testing`. This name comes with the wheel `tallystick`, which the broker needs.
The wheel `tallystick-client` has fixtures for pytest: `tallystick_broker` and `tallystick_client`.
"""

from tallystick.client.testing import Broker as Broker

__all__ = ["Broker"]
