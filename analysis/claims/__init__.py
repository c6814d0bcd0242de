"""`claims`: test the two papers' claims on the runs at hand.

`vision_claims.yaml` and `tuning_claims.yaml` have the claims. Each claim has the `rules` that test
it: which cells of an experiment to compare, by which of the `measures`, and within which bounds.
`judging` judges the comparisons, and `render` writes the verdicts.
"""

from .claim_files import CLAIMS, Claim, named
from .judging import judge
from .verdicts import ClaimFigure, ClaimVerdict

__all__ = ["CLAIMS", "Claim", "ClaimFigure", "ClaimVerdict", "judge", "named"]
