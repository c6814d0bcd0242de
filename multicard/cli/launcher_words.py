"""How commands name Hydra's launchers, and SLURM's among them."""

from functools import cache

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from multicard.config import CONF
from multicard.messages import Refusal

LAUNCHER_GROUP = "hydra/launcher"
LAUNCHER_PREFIX = "hydra.launcher."  # Begins the keys of the chosen launcher.
SLURM_LAUNCHER = "submitit_slurm"
SLURM_WORD = f"{LAUNCHER_GROUP}={SLURM_LAUNCHER}"
# Each launcher of multicard, with what it does, for `--help`.
LAUNCHERS = {
    "local": "one run after another on this machine",
    "submitit_local": "runs side by side on this machine, each with GPUs or cores of its own",
    SLURM_LAUNCHER: "each run is a job of SLURM",
}
HELP = "; ".join(f"{name}: {what}" for name, what in LAUNCHERS.items())
# Entries of a launcher's file that no user sets.
INTERNAL_KEYS = ("_target_", "mode", "packs", "on_slurm")


@cache
def launcher_keys() -> tuple[str, ...]:
    """Return the keys of all launchers, as they are typed."""
    keys = dict[str, None]()
    for launcher in LAUNCHERS:
        content = OmegaConf.load(CONF / LAUNCHER_GROUP / f"{launcher}.yaml")
        names = [name for name in map(str, content) if name not in INTERNAL_KEYS]
        keys |= dict.fromkeys(f"{LAUNCHER_PREFIX}{name}" for name in names)
    return tuple(keys)


def check_launcher(override: Override) -> None:
    """Refuse a launcher of Hydra or its plugins.

    They would end at the first bad cell, and do not know the resources of this machine.
    """
    if override.is_sweep_override():
        raise Refusal(
            "words.launchers",
            f"{override.input_line}: a sweep has one launcher; choose one of"
            f" {', '.join(LAUNCHERS)}",
            key=LAUNCHER_GROUP,
            choices=[*LAUNCHERS],
        )
    launcher = str(override.value())
    if launcher not in LAUNCHERS:
        raise Refusal(
            "words.launcher",
            f"{override.input_line}: multicard measures the cells of a sweep by launchers of its"
            f" own; choose one of {', '.join(LAUNCHERS)}",
            key=LAUNCHER_GROUP,
            value=launcher,
            choices=[*LAUNCHERS],
        )
