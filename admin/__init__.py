"""The admin core: questions about a cluster and changes of it, for tallystick and RocketMQ."""

from tallystick.admin.admin import Admin as Admin
from tallystick.admin.errors import ChangedError as ChangedError
from tallystick.admin.models import OffsetTarget as OffsetTarget
