"""The configuration: typed, checked and refused before anything starts. Imports no torch."""

from pathlib import Path

CONF = Path(__file__).parents[2] / "conf"  # the files that Hydra composes, beside the packages
