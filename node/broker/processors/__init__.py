"""The processors of requests: one module for each kind, with the codes that it serves.

The broker answers a code that no processor serves with code 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.processors.accounts import AccountProcessor
from tallystick.node.broker.processors.admin import AdminProcessor
from tallystick.node.broker.processors.audit import AuditProcessor
from tallystick.node.broker.processors.broker_to_client import RelayProcessor
from tallystick.node.broker.processors.clients import ClientProcessor
from tallystick.node.broker.processors.consumption import ConsumptionProcessor
from tallystick.node.broker.processors.describing import DescribingProcessor
from tallystick.node.broker.processors.inspection import InspectionProcessor
from tallystick.node.broker.processors.locks import LockProcessor
from tallystick.node.broker.processors.newer_admin import NewerAdminProcessor
from tallystick.node.broker.processors.offsets import OffsetProcessor
from tallystick.node.broker.processors.pull import PullProcessor
from tallystick.node.broker.processors.query import QueryProcessor
from tallystick.node.broker.processors.recall import RecallProcessor
from tallystick.node.broker.processors.reply import ReplyProcessor
from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.processors.send_back import SendBackProcessor
from tallystick.node.broker.processors.transaction import TransactionProcessor
from tallystick.node.broker.processors.users import UserProcessor

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.endpoint import Handler

_PROCESSORS = (
    SendProcessor,
    SendBackProcessor,
    RecallProcessor,
    TransactionProcessor,
    ReplyProcessor,
    PullProcessor,
    QueryProcessor,
    OffsetProcessor,
    ClientProcessor,
    LockProcessor,
    AdminProcessor,
    NewerAdminProcessor,
    ConsumptionProcessor,
    InspectionProcessor,
    RelayProcessor,
    AccountProcessor,
    UserProcessor,
    AuditProcessor,
    DescribingProcessor,
)


def all_routes(broker: BrokerContext) -> dict[int, Handler]:
    """Returns the handler of each code. Processors that need events of tables register with them here."""
    routes: dict[int, Handler] = {}
    for kind in _PROCESSORS:
        for code, handler in kind(broker).routes().items():
            assert code not in routes, f"two processors handle {code}"
            routes[code] = handler
    return routes
