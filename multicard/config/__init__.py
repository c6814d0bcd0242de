"""The configuration: typed, and checked before anything starts. Does not import torch."""

from multicard.repository import ROOT

CONF = ROOT / "conf"  # The files from which Hydra composes a configuration.
