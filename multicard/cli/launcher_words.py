"""How commands name Hydra's launchers, and SLURM's among them."""

LAUNCHER_GROUP = "hydra/launcher"
LAUNCHER_PREFIX = "hydra.launcher."  # Begins the keys of the chosen launcher.
SLURM_LAUNCHER = "submitit_slurm"
SLURM_WORD = f"{LAUNCHER_GROUP}={SLURM_LAUNCHER}"
