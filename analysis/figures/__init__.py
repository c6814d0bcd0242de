"""The papers' figures and tables, and general ones, drawn from one's own runs, as files.

NAME is one of `conf/experiment/`, `all` of them, or of any runs: `losses` over epochs or steps,
`phases` of a step, `efficiency` by GPUs, `effects` of each setting alone, `trade_off` of time
against accuracy, memory and energy, `timelines` of the GPUs. Further settings, machines and commits
that were measured are files of their own: NAME-2, NAME-3 and so on.
"""

from pathlib import Path

ALL = "all"
OUT = Path("outputs") / "figures"
