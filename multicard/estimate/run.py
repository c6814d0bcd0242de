"""Old names, until their callers ask `estimates.estimate`."""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.config.base import RunConfig
from multicard.estimate import target as machines
from multicard.estimate.estimates import Predictor
from multicard.estimate.target import Target, targets
from multicard.machine import environment

UNKNOWN = "unknown"
__all__ = ["UNKNOWN", "Predictor", "Target", "target", "targets", "this_machine"]


def target(config: RunConfig, found: Sequence[Mapping[str, Any]] | None = None) -> Target:
    return machines._target(config, environment.gpus() if found is None else found, False, False)


def this_machine(config: RunConfig, *_: Any) -> Target:
    return targets([config], here=True)[0]
