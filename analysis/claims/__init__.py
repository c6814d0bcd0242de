"""`claims`: what the two papers say, tested on the runs at hand.

`vision` and `llm` have the claims, each with the rule that tests it; `rules` finds the cells that a rule compares, in
the panels of `analysis.experiments`; `measures` compares two of them, with the intervals of `intervals`; `judge` puts a
verdict together and `show` writes it down.
"""

from analysis.claims.catalogue import CLAIMS, chosen
from analysis.claims.claim import Claim
from analysis.claims.verdicts import Figure, Verdict, judge

__all__ = ["CLAIMS", "Claim", "Figure", "Verdict", "chosen", "judge"]
