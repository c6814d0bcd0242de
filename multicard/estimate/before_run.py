"""The prediction that a run's record holds, made just before the run starts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.machine import devices
from multicard.messages import say
from multicard.records.schema_parts import Prediction


def prediction(config: RunConfig, folder: Path, git: dict[str, Any] | None) -> Prediction | None:
    """The record's `prediction` of a run in `folder`, on the code that `environment.git` describes; None where nothing
    is known of it."""
    with no_reason_to_stop():
        return _prediction(config, folder, git)


@contextmanager
def no_reason_to_stop() -> Iterator[None]:
    """Print an error of a prediction instead of losing a run; with MULTICARD_STRICT raise it."""
    try:
        yield
    except Exception as error:
        if os.environ.get("MULTICARD_STRICT"):
            raise
        say(f"no prediction ({type(error).__name__}: {error}); please report this error of multicard", error=True)


def _prediction(config: RunConfig, folder: Path, git: dict[str, Any] | None) -> Prediction | None:
    from multicard.estimate import history  # a run without a history does not need the others

    if not history.read(history.history_folders(folder)) and not devices.visible_gpus():
        return None
    from multicard.estimate.estimates import Basis, estimate

    (estimated,) = estimate([config], folder, git=git)
    known = estimated.basis is not Basis.unknown or estimated.needed_memory_bytes is not None
    return estimated.prediction if known else None
