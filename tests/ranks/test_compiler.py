"""The record says whether torch.compile compiled anew or took its code from Inductor's cache."""

import random

import pytest
import torch

from multicard.ranks import compiler
from multicard.records.schema_parts import CompileCache


@pytest.mark.slow
def test_the_first_compilation_is_cold_and_the_second_warm():
    states, unknown = [], random.SystemRandom().random()  # in a cache of its own, torch's headers would be compiled too
    for turn in range(2):
        before = compiler.lookups()
        torch._dynamo.reset()
        weight = torch.ones(8, requires_grad=True)
        torch.compile(lambda x: torch.sin(x) * unknown)(weight).sum().backward()
        used = compiler.since(before)
        states.append(used.state)
        assert used.hits == (2 if turn else 0) and used.bypasses == 0  # forward and backward
    assert states == ["cold", "warm"]


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], None),
        ([None, None], None),
        ([(2, 0, 0), (2, 0, 0)], "warm"),
        ([(0, 2, 0), (2, 0, 0)], "mixed"),  # one rank took what another had compiled
        ([(0, 0, 2), None], "cold"),
        ([(0, 0, 0)], None),
    ],
)
def test_ranks_together(records: list[tuple[int, ...] | None], state: str | None):
    parts = [None if counts is None else CompileCache(None, *counts) for counts in records]
    together = compiler.over_ranks(parts)
    assert (together and together.state) == state
    assert (together is None) == all(part is None for part in parts)
