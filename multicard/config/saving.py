"""What a run keeps of what it trained: the values of `save`,
and refusals of runs that train nothing to its end.
"""

from enum import StrEnum

from multicard.config.base import TrainingConfig
from multicard.messages import Refusal

Save = StrEnum("Save", ["none", "model"])
TuningSave = StrEnum("TuningSave", ["none", "adapter", "model", "int4"])


def require_whole_training(config: TrainingConfig, save: Save | TuningSave) -> None:
    """Refuse (ValueError) to keep a model that is not trained to its end."""
    if save == "none":
        return
    if config.probe.enabled:
        raise Refusal(
            "config.save-probe",
            f"save={save}: probe=true ends before the model is trained; use `save=none`",
            key="save",
        )
    if config.race.figure is not None:
        raise Refusal(
            "config.save-race",
            f"save={save}: race={config.race.figure} trains most cells in part; use `save=none`,"
            " and `multicard best FOLDER --train` once it has ended",
            key="save",
        )
