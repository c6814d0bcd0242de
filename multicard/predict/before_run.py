"""The prediction that a run's record holds, made just before the run starts."""

import os
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.controller.session import say
from multicard.machine import devices


def prediction(config: RunConfig, folder: Path, git: dict[str, Any] | None) -> dict[str, Any] | None:
    """The record's `prediction` of a run in `folder`, on the code that `environment.git` describes; None where nothing
    is known of it.

    An error of the prediction is no reason to lose a run: it is printed, and raised with MULTICARD_STRICT alone.
    """
    try:
        return _prediction(config, folder, git)
    except Exception as error:
        if os.environ.get("MULTICARD_STRICT"):
            raise
        say(f"no prediction ({type(error).__name__}: {error}); please report this error of multicard", error=True)
        return None


def _prediction(config: RunConfig, folder: Path, git: dict[str, Any] | None) -> dict[str, Any] | None:
    from multicard.predict import history  # what starts without a history does without

    past = history.read(history.history_folders(folder))
    if not past.runs and not devices.visible_gpus():
        return None
    import msgspec

    from multicard.predict.run import UNKNOWN, Predictor, this_machine

    predictor = Predictor(this_machine(config), past, history.commit_of(git))
    (predicted,) = predictor.predict_all([config], memory=False)
    known = predicted.basis != UNKNOWN or predicted.memory_bytes is not None
    return msgspec.to_builtins(predicted) if known else None
