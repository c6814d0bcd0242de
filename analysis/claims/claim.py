"""The papers' claims, as `vision_claims.yaml` and `tuning_claims.yaml` have them."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from analysis.claims.rules import Rule

FILES = [Path(__file__).with_name(f"{kind}_claims.yaml") for kind in ("vision", "tuning")]


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a paper that runs can test.

    name: short, as `--only` takes it.
    section: of the papers, as the files have it. says: the sentence.
    in_2503, in_2505: the table, figure or section of arXiv 2503.15252 and of 2505.22905; empty where it is not in it.
    printed: the papers' own figures; empty where the sentence has them all.
    test: the rules in words.
    experiment: of conf/experiment, whose cells test the claim.
    needs: which comparisons must hold: `all` that were measured, `one` of them (an "up to"), or all of `every_cell`.
    counted: whether it follows from what a program does and not from a machine, so that CPU ranks and shrunk runs
        decide it as GPUs do.
    note: a caveat that is printed with the claim.
    """

    says: str
    experiment: str
    test: str
    rules: list[Rule]
    in_2503: str = ""
    in_2505: str = ""
    printed: str = ""
    needs: Literal["all", "one", "every_cell"] = "all"
    note: str = ""
    counted: bool = False
    name: str = ""
    section: str = ""

    @property
    def places(self) -> dict[str, str]:
        """Where it stands, by the paper's number on arXiv."""
        places = {"2503.15252": self.in_2503, "2505.22905": self.in_2505}
        return {paper: place for paper, place in places.items() if place}

    @property
    def source(self) -> str:
        return "; ".join(f"arXiv {paper}, {place}" for paper, place in self.places.items()) or "in neither paper"

    @property
    def cited(self) -> str:
        """The sentence with its source."""
        return f"{self.says} ({self.source})" + f"; {self.note}" * bool(self.note)


def load(content: bytes) -> tuple[Claim, ...]:
    """Claims in the form of these files: by section and name.

    Raises:
        msgspec.ValidationError: an unknown key or rule, or a value of the wrong type, with its place in the file.
    """
    sections = msgspec.yaml.decode(content, type=dict[str, dict[str, Claim]])
    return tuple(
        msgspec.structs.replace(claim, name=name, section=section)
        for section, claims in sections.items()
        for name, claim in claims.items()
    )


CLAIMS = tuple(claim for file in FILES for claim in load(file.read_bytes()))


def named(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, in this order.

    Raises:
        ValueError: an unknown name, with the nearest and all known ones.
    """
    claims = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in claims:
            near = difflib.get_close_matches(name, claims, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"--only: no claim {name}{hint}; there are {', '.join(claims)}")
    return [claims[name] for name in dict.fromkeys(names)]
