"""The configuration: typed, checked and refused before anything starts. Imports no torch."""

from multicard.repository import ROOT

CONF = ROOT / "conf"  # the files that Hydra composes
