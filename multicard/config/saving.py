"""The values of the key `save`, and refusals for runs that do not train to their end."""

from enum import StrEnum

from multicard.config.base import TrainingConfig
from multicard.messages import Refusal

Save = StrEnum("Save", ["none", "model"])
TuningSave = StrEnum("TuningSave", ["none", "adapter", "model", "int4"])


def require_whole_training(config: TrainingConfig, save: Save | TuningSave) -> None:
    """Refuse (ValueError) to save a model from a run that does not train it to the end."""
    if save == "none":
        return
    if config.probe.enabled:
        raise Refusal(
            "config.save-probe",
            f"save={save}: probe=true stops before the model is trained; use `save=none`",
            key="save",
        )
    if config.race.figure is not None:
        raise Refusal(
            "config.save-race",
            f"save={save}: race={config.race.figure} trains most cells only in part; use"
            " `save=none`, and `multicard best FOLDER --train` after the race",
            key="save",
        )
