"""A claim of a paper, and what all of them share.

Where a paper gives a range, the rule says whether it is a bound from below (more of it is no contradiction) or the
claim itself. Margins are ours, and said in the rule: the papers have none. Figures in `printed` are the papers' own.
"""

from dataclasses import dataclass

from analysis.claims.rules import Rule

NO_PLACE = "no table or figure noted"
LEVEL = 5.0  # %: a time that is longer or shorter by less is level
HARDLY = 10.0  # %: a time that grows by less hardly grows


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that runs can test.

    name: short, as `--only` takes it.
    place: table or figure, as far as it is known.
    printed: the paper's own figures; empty where the sentence has them all.
    test: the rule in words.
    experiment: of conf/experiment, whose cells test it.
    reached: it holds if one comparison does (an "up to"), not if all do.
    whole: it holds only if all of the papers' cells that it needs were measured.
    note: what must be said beside it.
    """

    name: str
    says: str
    paper: str
    place: str
    printed: str
    test: str
    experiment: str
    rule: Rule
    reached: bool = False
    whole: bool = False
    note: str = ""

    @property
    def source(self) -> str:
        return f"arXiv {self.paper}, {self.place}"
