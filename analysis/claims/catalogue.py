"""All claims of the two papers, those of training first."""

import difflib
from collections.abc import Sequence

from analysis.claims import claims_llm, claims_vision
from analysis.claims.claim import Claim

CLAIMS = (*claims_vision.CLAIMS, *claims_llm.CLAIMS)


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, in this order.

    Raises:
        ValueError: a name that there is not, with the nearest and all that there are.
    """
    known = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"--only: no claim {name}{meant}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]
