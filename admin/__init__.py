"""The admin core: questions about a cluster and changes of it, for tallystick and RocketMQ.

Names are imported when they are first used: commands load the models alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin as Admin
    from tallystick.admin.errors import ChangedError as ChangedError
    from tallystick.admin.models import OffsetTarget as OffsetTarget

_PLACES = {"Admin": "admin", "ChangedError": "errors", "OffsetTarget": "models"}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
