"""Draw the papers' figures, and general ones, from your runs, as files.

NAME is an experiment of `conf/experiment/`, `all` experiments, or a general figure. General figures
are `losses` over epochs or steps, `phases` of a step, `efficiency` by GPUs and `effects` of each
setting alone. Two more are `trade_off`, time against accuracy, memory and energy, and `timelines`
of the GPUs.
If several settings, machines or commits were measured, further files are NAME-2, NAME-3 and so on.
"""

from pathlib import Path

ALL = "all"
OUT = Path("outputs") / "figures"
