"""Scripts that enter and leave contexts of torch's state, while their operations are watched."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _len_torch_dispatch_stack
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from multicard.script.operations import Operations
from tests.script.patterns import Loop, none
from tests.script.test_recorder import column, recorded

Context = Callable[[], AbstractContextManager[Any]]
STEPS = 24


class Counting(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def nested() -> Iterator[None]:
    with torch.inference_mode(), torch.inference_mode():
        yield


def saved_on_cpu() -> AbstractContextManager[Any]:
    return torch.autograd.graph.save_on_cpu()


KEEPING: dict[str, Context] = {  # what is computed within can be trained on
    "none": nullcontext,
    "inference-mode-off": lambda: torch.inference_mode(False),
    "own-mode": Counting,
    "flops": lambda: FlopCounterMode(display=False),
    "saved-tensors": saved_on_cpu,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("cpu"),
}
EVALUATING: dict[str, Context] = {
    "inference-mode": torch.inference_mode,
    "nested": nested,
    "no-grad": torch.no_grad,
    "raw": lambda: torch._C._InferenceMode(True),  # which nobody tells of
}
PREDICTING: dict[str, Context] = {"fake": lambda: FakeTensorMode(allow_non_fake_inputs=True)}
CONTEXTS = KEEPING | EVALUATING | PREDICTING


def train(loop: Loop, around: dict[str, Context], batches: int = 2) -> None:
    """Each step adds the losses of some batches, so that it is watched.

    Args:
        around: contexts of "draw" (of the batches), "compute" (of the losses), "both", "evaluate",
            and "predict" (of each batch).
    """

    def of(part: str) -> AbstractContextManager[Any]:
        return around.get(part, nullcontext)()

    def endless() -> Iterator[Any]:
        while True:
            yield from DataLoader(loop.data, 7)

    drawn, held_out = endless(), DataLoader(loop.held_out, 5)
    for number in range(STEPS):
        with of("both"):
            with of("draw"):
                group = [next(drawn) for _ in range(batches)]
            with of("compute"):
                total: Any = sum(loss(loop, [each.clone() for each in batch]) for batch in group)
        total.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.steps.append(sum(len(batch[1]) for batch in group))
        if number % 3 == 0:
            with of("evaluate"), torch.no_grad():
                for inputs, _ in held_out:
                    with of("predict"):
                        loop.model(inputs)


def loss(loop: Loop, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(loop.model(batch[0]), batch[1])


def is_as_before() -> bool:
    """True where torch computes, and no mode was left behind."""
    return torch.empty(2).add(1).shape == (2,) and _len_torch_dispatch_stack() == 0


PLACES = [(place, name) for place in ("draw", "compute", "both") for name in KEEPING]
PLACES += [("evaluate", name) for name in KEEPING | EVALUATING]
PLACES += [("predict", name) for name in CONTEXTS]


@pytest.mark.parametrize(("place", "name"), PLACES)
def test_contexts_of_a_script_do_not_matter_to_what_is_watched(
    tmp_path: Path, place: str, name: str
):
    loop = Loop(none)
    with recorded(tmp_path) as reports:
        train(loop, {place: CONTEXTS[name]})
        assert is_as_before()
    assert reports[0].left_out  # steps were watched
    assert column(tmp_path, "samples") == loop.steps


@pytest.mark.parametrize("name", [*KEEPING, "inference-mode", "nested"])
def test_a_script_may_end_within_a_context(tmp_path: Path, name: str):
    loop = Loop(none)
    with recorded(tmp_path), CONTEXTS[name](), torch.inference_mode(False), torch.enable_grad():
        train(loop, {"evaluate": torch.inference_mode})
    assert is_as_before()
    assert column(tmp_path, "samples") in (loop.steps, [0] * STEPS)


def test_what_is_drawn_within_a_transform_of_functions_is_watched(tmp_path: Path):
    loop = Loop(none)
    with recorded(tmp_path):
        drawn = iter(DataLoader(loop.data, 2))
        for _ in range(10):
            torch.func.grad(lambda weight: loop.model(next(drawn)[0] * weight).sum())(torch.ones(4))
            loss(loop, next(drawn)).backward()
            loop.optimizer.step()
        assert is_as_before()
    assert set(column(tmp_path, "samples")) <= {0, 4}  # batches that share a step, or not known


def test_a_thread_that_computes_gradients_leaves_the_mode_to_its_own(tmp_path: Path):
    loop = Loop(none)
    with recorded(tmp_path):
        for first, second in zip(*[iter(DataLoader(loop.data, 4))] * 2, strict=False):
            total = loss(loop, first) + loss(loop, second)
            thread = threading.Thread(target=total.backward)
            thread.start()
            thread.join()
            loop.optimizer.step()
        assert is_as_before()


def test_a_mode_that_cannot_be_taken_off_waits_and_watches_nothing():
    operations, batch = Operations(), torch.ones(3)
    operations.mark([batch], 0)
    with ExitStack() as stack:
        operations.watch()
        stack.enter_context(torch._C._InferenceMode(True))
        operations.pause()
        assert _len_torch_dispatch_stack() == 1
        assert not operations.batches_of([batch * 2])
    operations.pause()
    assert is_as_before()
    operations.watch()
    assert operations.batches_of([batch * 2]) == {0}
    operations.pause()
    assert is_as_before()


def test_a_mode_is_not_taken_off_within_a_backward_pass():
    operations, value = Operations(), torch.ones(3, requires_grad=True)
    lengths = list[int]()

    def hook(_: torch.Tensor) -> None:
        operations.pause()
        lengths.append(_len_torch_dispatch_stack())

    value.register_hook(hook)
    operations.watch()
    torch.autograd.grad(value.square().sum(), value)
    assert lengths == [1] and _len_torch_dispatch_stack() == 1
    operations.pause()
    assert is_as_before()
