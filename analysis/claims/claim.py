"""The papers' claims, from `vision_claims.yaml` and `tuning_claims.yaml`."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from analysis.claims.rules import Rule

FILES = [Path(__file__).with_name(f"{kind}_claims.yaml") for kind in ("vision", "tuning")]
PAPERS = {2503: "2503.15252", 2505: "2505.22905"}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a paper that runs can test.

    name: as `--only` takes it. section: the heading in the file.
    says: the sentence.
    places: its table, figure or section by key of PAPERS; empty where neither paper has it.
    printed: the papers' own figures; empty where the sentence has them all.
    test: the rules in words.
    experiment: of conf/experiment, whose cells test the claim.
    needs: which comparisons must hold: `all` that were measured, `one` of them (an "up to"), or all of `every_cell`.
    counted: True if it follows from what a program does and not from a machine, so that CPU ranks and shrunk runs
        decide it as GPUs do.
    note: a caveat that is printed with the claim.
    """

    says: str
    experiment: str
    test: str
    rules: list[Rule]
    places: dict[Literal[2503, 2505], str] = {}
    printed: str = ""
    needs: Literal["all", "one", "every_cell"] = "all"
    note: str = ""
    counted: bool = False
    name: str = ""
    section: str = ""

    @property
    def cited(self) -> dict[str, str]:
        """Its table, figure or section by the paper's number on arXiv."""
        return {PAPERS[paper]: place for paper, place in self.places.items()}

    @property
    def source(self) -> str:
        return "; ".join(f"arXiv {paper}, {place}" for paper, place in self.cited.items()) or "in neither paper"


def load(content: bytes) -> tuple[Claim, ...]:
    """Claims of a YAML file, by section and name.

    Raises:
        msgspec.ValidationError: an unknown key or rule, or a value of the wrong type, with its place in the file.
    """
    written: dict[str, dict[str, Any]] = msgspec.yaml.decode(content)
    for claim in (claim for section in written.values() for claim in section.values()):
        rules = claim["rules"] if isinstance(claim["rules"], list) else [claim["rules"]]
        claim["rules"] = [{"rule": "contrast"} | rule for rule in rules]
    return tuple(
        msgspec.structs.replace(claim, name=name, section=section)
        for section, claims in msgspec.convert(written, dict[str, dict[str, Claim]]).items()
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
