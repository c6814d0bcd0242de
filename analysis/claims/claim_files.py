"""Read the papers' claims, and the rules that test them, from the files of claims.

`vision_claims.yaml` and `tuning_claims.yaml` have the claims by section. Keys under `all` hold for
each claim of a section.
"""

import difflib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from multicard.messages import Refusal
from multicard.papers import printed

from .rules import AnyRule

FILES = [Path(__file__).with_name(f"{kind}_claims.yaml") for kind in ("vision", "tuning")]
# The words with which the papers judge a difference, with the bounds that each word stands for.
WORDS = {row["word"]: row for row in printed.rows("words", Path(__file__).parent)}
PAPERS = {2503: "2503.15252", 2505: "2505.22905"}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a paper that runs can test.

    name: the name that `--only` takes.
    section: the heading in the file of claims.
    says: the sentence.
    places: the table, figure or section, by key of PAPERS. It is empty if neither paper has it.
    printed: the papers' own figures. It is empty if the sentence has them all.
    experiment: the experiment of conf/experiment whose cells test the claim.
    needs: which comparisons of the paper's cells must hold: `all`, or `one` of them (an "up to").
    counted: True if the claim follows from what a program does, not from a machine or a setting. In
        that case, CPU ranks and shrunk runs decide it as GPUs do. Another loader does not, because
        it copies data to the device differently.
    note: a caveat that is printed with the claim.
    """

    name: str
    section: str
    says: str
    experiment: str
    rules: list[AnyRule]
    places: dict[Literal[2503, 2505], str] = {}
    printed: str = ""
    needs: Literal["all", "one"] = "all"
    note: str = ""
    counted: bool = False

    @property
    def test(self) -> str:
        """How the claim is tested, in words."""
        rules = "; ".join(rule.text for rule in self.rules)
        return f"{rules} (in one cell)" if self.needs == "one" else rules

    @property
    def cited(self) -> dict[str, str]:
        """The place of the claim in each paper, by the paper's arXiv number."""
        return {PAPERS[paper]: place for paper, place in self.places.items()}

    @property
    def source(self) -> str:
        return (
            "; ".join(f"arXiv {paper}, {place}" for paper, place in self.cited.items())
            or "in neither paper"
        )


def load_claims(content: bytes) -> tuple[Claim, ...]:
    """Read the claims of a YAML file.

    Each claim gets the keys under `all` of its section. A rule without a kind is a contrast, and a
    rule with a word gets the word's bounds.

    Raises:
        msgspec.ValidationError: a key or rule is unknown, or a value has the wrong type. The
            message has the place in the file.
    """
    claims = []
    for section, section_claims in msgspec.yaml.decode(content).items():
        shared_keys = section_claims.pop("all", {})
        for name, claim in section_claims.items():
            rules = claim["rules"] if isinstance(claim["rules"], list) else [claim["rules"]]
            bounded_rules = [{"rule": "contrast"} | _bounds(rule) | rule for rule in rules]
            claims.append(
                shared_keys | claim | {"name": name, "section": section, "rules": bounded_rules}
            )
    return msgspec.convert(claims, tuple[Claim, ...])


def _bounds(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds and the unit of the word that a rule names."""
    word = WORDS[rule["bounds"]] if "bounds" in rule else {}
    bounds = {
        side: float(word[side]) * rule.get("times", 1)
        for side in ("over", "under")
        if word.get(side)
    }
    return bounds | ({"unit": word["unit"]} if word.get("unit") else {})


CLAIMS = tuple(chain.from_iterable(load_claims(file.read_bytes()) for file in FILES))


def named(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names, in this order.

    Raises:
        ValueError: a claim is unknown. The message suggests the nearest name.
    """
    claims = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in claims:
            nearest = next(iter(difflib.get_close_matches(name, claims, n=1)), None)
            suggestion = "" if nearest is None else f" (did you mean {nearest}?)"
            text = f"--only: no claim {name}{suggestion}; there are {', '.join(claims)}"
            raise Refusal(
                "claim.unknown", text, key="--only", name=name, near=nearest, known=[*claims]
            )
    return [claims[name] for name in dict.fromkeys(names)]
