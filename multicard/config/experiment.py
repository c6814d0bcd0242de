"""`hydra.experiment`: properties of an experiment beside its axes, which are in `hydra.sweeper.params`.

It is no part of `hydra.sweeper`, as other sweepers (Hydra's own, Optuna's, Ax's) refuse keys that are not theirs.
"""

from dataclasses import dataclass, field
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from hydra.conf import HydraConf


@dataclass
class ExperimentConfig:
    """
    Args:
        entry: the command that the experiment belongs to.
        view: how the analysis lays out what it measured.
        smoke: with scale=smoke, values that take the place of the axes', key by key; null leaves a key out.
        exclude: values of cells that are left out.
    """

    entry: Optional[str] = None
    view: Any = None
    smoke: dict[str, Any] = field(default_factory=dict)
    exclude: list[Any] = field(default_factory=list)


@dataclass
class HydraWithExperiment(HydraConf):
    """Hydra's own configuration, and `experiment`."""

    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)


def moved(sweeper: Any) -> str | None:
    """The reason to refuse an experiment of an earlier version, with its keys in `hydra.sweeper`; None for others."""
    keys = [key for key in ("entry", "view", "smoke", "exclude") if key in sweeper]
    remedy = "move it there in your experiment's file, and leave hydra.sweeper.params"
    return f"hydra.sweeper.{keys[0]}: is hydra.experiment.{keys[0]} now; {remedy}" if keys else None
