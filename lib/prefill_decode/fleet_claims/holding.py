"""Holding: which settings' accelerators have room for the model, and links to move its cache."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from prefill_decode.simulator import Workers


class HasWorkers(Protocol):
    @property
    def workers(self) -> Workers: ...


Setting = TypeVar("Setting", bound=HasWorkers)


def that_hold_the_model(settings: Sequence[Setting]) -> list[Setting]:
    """Those whose workers can be made at all."""
    return [setting for setting in settings if _has_workers(setting)]


def _has_workers(setting: HasWorkers) -> bool:
    try:
        _ = setting.workers
    except ValueError:  # no room for a cache, or no link in print
        return False
    return True
