"""Whether ranks trained one model: by the digests that each of them makes of what it holds."""

import copy
import sys
from types import ModuleType

import pytest
import torch

from multicard.records.trained_weights import Relation, Weights, compared
from multicard.script import weights


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )


def trained(network: torch.nn.Module, data_seed: int, steps: int = 2) -> Weights:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(data_seed)
    for _ in range(steps):
        network(torch.randn(4, 8, generator=random)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights.digests_of(weights.trained_parameters(optimizer))


def test_copies_that_took_the_same_steps_are_together():
    network = model()
    assert compared([trained(copy.deepcopy(network), 1), trained(network, 1)]) is Relation.together


def test_copies_that_took_steps_of_their_own_are_apart():
    network = model()
    assert compared([trained(copy.deepcopy(network), 1), trained(network, 2)]) is Relation.apart
    assert compared([trained(model(1), 1), trained(model(2), 1)]) is Relation.apart


def test_other_shapes_are_parts_of_a_model():
    assert compared([trained(model(), 1), trained(torch.nn.Linear(8, 3), 1)]) is Relation.divided


def test_some_parameters_alike_and_others_not_are_parts_of_a_model():
    first, second = trained(model(), 1), trained(model(), 2)
    second.digests[0] = first.digests[0]  # as of a router beside experts
    assert compared([first, second]) is Relation.divided


@pytest.mark.parametrize("mark", ["ds_id", "_fsdp_flattened"])
def test_parts_of_sharded_tensors_are_no_copies(mark: str):
    found = []
    for seed in (1, 2):
        tensor = torch.nn.Parameter(torch.randn(5, generator=torch.Generator().manual_seed(seed)))
        setattr(tensor, mark, True)
        found.append(weights.digests_of([tensor]))
    assert compared(found) is Relation.divided


def test_stages_of_equal_shapes_are_parts_of_a_model(monkeypatch):
    monkeypatch.setitem(sys.modules, weights.DIVIDING[0], ModuleType("pipelining"))
    assert compared([trained(model(1), 1), trained(model(2), 1)]) is Relation.divided


def test_a_rank_that_tells_nothing_leaves_it_unknown():
    assert compared([trained(model(), 1), None]) is Relation.unknown
    constant = weights.digests_of([torch.nn.Parameter(torch.zeros(4))])
    assert compared([constant, constant]) is Relation.unknown


def test_copies_that_diverged_do_not_show_whether_they_trained_together():
    """Models that trained apart are equal if nothing but NaN is left of them."""
    found = []
    for seed in (1, 2):
        network = model(seed)
        for parameter in network.parameters():
            parameter.data.mul_(torch.nan)
        found.append(trained(network, seed))
    assert compared(found) is Relation.unknown


def test_digests_change_neither_values_nor_random_numbers():
    network, state = model(), torch.get_rng_state()
    before = [tensor.clone() for tensor in network.parameters()]
    weights.digests_of(network.parameters())
    assert all(
        torch.equal(own, tensor) for own, tensor in zip(before, network.parameters(), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_parameters_are_left_out():
    network = model()
    network[0].requires_grad_(False)  # pyright: ignore[reportCallIssue]
    assert len(weights.trained_parameters(torch.optim.SGD(network.parameters(), lr=0.1))) == 4


def test_ranks_whose_models_are_averaged_now_and_then_are_not_known_to_train_apart():
    averagers = pytest.importorskip("torch.distributed.algorithms.model_averaging.averagers")
    assert not weights.averages_models()
    averager = averagers.PeriodicModelAverager(4, process_group=object())
    assert weights.averages_models()
    ranks = [digests_at_the_end(model(), data_seed) for data_seed in (1, 2)]
    assert compared(ranks) is Relation.unknown
    del averager
    ranks = [digests_at_the_end(model(), data_seed) for data_seed in (1, 2)]
    assert compared(ranks) is Relation.apart


def digests_at_the_end(network: torch.nn.Module, data_seed: int) -> Weights | None:
    """As a rank makes them that trained some steps of its own."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    held = weights.TrainedParameters()
    network(
        torch.randn(4, 8, generator=torch.Generator().manual_seed(data_seed))
    ).square().sum().backward()
    optimizer.step()
    held.hold(optimizer)
    return held.digests()
