"""Loops that people write, each of which trains on small data: `patterns.py NAME [EVALUATION]`.

The names are those of `PATTERNS` and `EVALUATIONS`. Under torchrun, ranks train together on CPU.
"""

import collections
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

BATCH = 8
Batch = list[torch.Tensor]


def rows(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 4), torch.randint(0, 2, (count,)))


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __init__(self, count: int) -> None:
        self.rows = rows(count)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.rows[number] for number in range(len(self.rows)))


class Loop:
    """A model and its data, of six batches and a smaller one."""

    def __init__(self, evaluate: "Evaluation") -> None:
        torch.manual_seed(int(os.environ.get("RANK", "0")))
        self.data, self.held_out = rows(6 * BATCH + 3), rows(2 * BATCH + 1)
        self.model: Any = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        )
        if dist.is_initialized():
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.evaluate = lambda: evaluate(self)
        self.steps: list[int] = []  # samples of each, where a loop counts them

    def loader(self, **how: Any) -> DataLoader[Any]:
        return DataLoader(self.data, BATCH, shuffle=True, **how)

    def backward(self, batch: Batch) -> None:
        torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]).backward()

    def step(self, batch: Batch) -> None:
        self.backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()


Evaluation = Callable[[Loop], None]
Read = Callable[[Iterable[Any]], Iterator[Any]]

# ---- ways to read batches


def one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """As Accelerate reads, to know the last batch."""
    source = iter(batches)
    try:
        current = next(source)
    except StopIteration:
        return
    for following in source:
        yield current
        current = following
    yield current


def copied_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """As a prefetcher reads that copies the next batch to the GPU: what is handed on is a copy."""
    source = iter(batches)

    def load() -> Any:
        batch = next(source, None)
        return None if batch is None else [tensor.clone() for tensor in batch]

    ahead = load()
    while (batch := ahead) is not None:
        ahead = load()
        yield batch


def three_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    waiting = collections.deque[Any]()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > 3:
            yield waiting.popleft()
    yield from waiting


def in_thread(batches: Iterable[Any]) -> Iterator[Any]:
    """As a background generator reads, two ahead."""
    waiting, end = queue.Queue[Any](2), object()

    def load() -> None:
        for batch in batches:
            waiting.put(batch)
        waiting.put(end)

    threading.Thread(target=load, daemon=True).start()
    yield from iter(waiting.get, end)


def in_groups(batches: Iterable[Any], of: int) -> Iterator[list[Any]]:
    """As Hugging Face's Trainer draws the batches of a step at once."""
    source = iter(batches)
    while group := list(itertools.islice(source, of)):
        yield group


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


# ---- loops


def read_by(read: Callable[[Iterable[Any]], Iterator[Any]], **how: Any) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        for _ in range(3):
            for batch in read(loop.loader(**how)):
                loop.step(batch)
            loop.evaluate()

    return train


def accumulated_by(
    read: Callable[[Iterable[Any]], Iterator[Any]], at_once: bool
) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        for _ in range(3):
            groups = in_groups(read(loop.loader()), 3)
            for group in groups if at_once else map(iter, in_groups(read(loop.loader()), 3)):
                for batch in group:
                    loop.backward(batch)
                loop.optimizer.step()
            loop.evaluate()

    return train


def accumulated(loop: Loop) -> None:
    for _ in range(3):
        for number, batch in enumerate(one_ahead(loop.loader()), 1):
            loop.backward(batch)
            if number % 3 == 0 or number == len(loop.loader()):
                loop.optimizer.step()
        loop.evaluate()


def left_early(loop: Loop) -> None:
    for _ in range(3):
        for _, batch in zip(range(5), one_ahead(loop.loader()), strict=False):
            loop.step(batch)
        loop.evaluate()


def looked_at(
    count: int, epochs: int, between: bool, read: Read = iter, keep: bool = False
) -> Callable[[Loop], None]:
    """So many batches are read and not trained on: before each epoch, as PyTorch's tutorials do for
    the batch size or a picture, or in each epoch between two steps. Their iterator may be kept.
    """

    def train(loop: Loop) -> None:
        kept = []
        loader = loop.loader()
        for _ in range(epochs):
            for number, batch in enumerate(read(loader)) if between else [(0, None)]:
                if batch is not None:
                    loop.step(batch)
                if number in (0, 3):
                    looks = iter(loader)
                    for _ in range(count):
                        next(looks)
                    kept += [looks] if keep else []
                    del looks
            if not between:
                for batch in read(loader):
                    loop.step(batch)
            loop.evaluate()

    return train


def looked_at_before_a_step(loop: Loop) -> None:
    """A picture is drawn of others, between a batch and its step."""
    for _ in range(3):
        loader = loop.loader()
        for number, batch in enumerate(loader):
            if number in (0, 4):
                next(iter(loader))
            loop.step(batch)
        loop.evaluate()


def two_of_an_iteration(loop: Loop) -> None:
    """Each batch is trained on with one of a new iterator."""
    for _ in range(2):
        loader = loop.loader()
        for batch in loader:
            other = next(iter(loader))
            loop.backward(batch)
            loop.step(other)
        loop.evaluate()


def broken_off(read: Read) -> Callable[[Loop], None]:
    """The batch at which the loop ends is drawn, and not trained on."""

    def train(loop: Loop) -> None:
        for _ in range(3):
            for number, batch in enumerate(read(loop.loader())):
                if number == 4:
                    break
                loop.step(batch)
            loop.evaluate()

    return train


def broken_off_of_several(read: Read, is_anew: bool = False) -> Callable[[Loop], None]:
    """Tasks or clients, in any order, each with data of its own,
    of which a few batches are trained on.

    Args:
        is_anew: each visit draws from data that are built for it.
    """

    def train(loop: Loop) -> None:
        several = [DataLoader(rows(6 * BATCH), BATCH - number) for number in range(3)]
        for task in (0, 1, 2, 1, 2, 0, 2, 0, 1):
            loader = DataLoader(rows(6 * BATCH), BATCH - task) if is_anew else several[task]
            for number, batch in enumerate(read(loader)):
                if number == 2:
                    break
                loop.step(batch)
                loop.steps.append(len(batch[1]))
            loop.evaluate()

    return train


def averaged(loop: Loop) -> None:
    """As Reptile: a step without a batch or a call of backward,
    between tasks that are broken off.
    """
    several = [DataLoader(rows(6 * BATCH), BATCH - number) for number in range(3)]
    of_tasks = torch.optim.SGD(loop.model.parameters(), 0.5)
    for task in (0, 1, 2, 1, 2, 0, 2, 0, 1):
        before = [one.detach().clone() for one in loop.model.parameters()]
        for number, batch in enumerate(several[task]):
            if number == 2:
                break
            loop.step(batch)
            loop.steps.append(len(batch[1]))
        for one, value in zip(loop.model.parameters(), before, strict=True):
            one.grad = value - one.detach()
        of_tasks.step()
        of_tasks.zero_grad()
        loop.steps.append(0)


def sliced(loop: Loop) -> None:
    for _ in range(3):
        list(itertools.islice(loop.loader(), 2))  # for a picture
        for batch in itertools.islice(loop.loader(), 4):
            loop.step(batch)
        loop.evaluate()


def anew_for_each_step(loop: Loop) -> None:
    """Each step draws a batch of a new iterator, which is trained on."""
    for number in range(12):
        loop.step(next(iter(loop.loader())))
        if number % 5 == 4:
            loop.evaluate()


def sliced_for_each_step(loop: Loop) -> None:
    """The batches of a step are all drawn, of an iterator that is then gone."""
    for _ in range(4):
        for batch in list(itertools.islice(loop.loader(), 3)):
            loop.backward(batch)
        loop.optimizer.step()
        loop.evaluate()


def two_in_turn(loop: Loop) -> None:
    """Two iterators of a loader are read in turn, and left."""
    for _ in range(2):
        pairs = zip(loop.loader(), loop.loader(), strict=True)
        for pair in itertools.islice(pairs, 4):
            for batch in pair:
                loop.backward(batch)
            loop.optimizer.step()
        loop.evaluate()


def evaluated_within(loop: Loop) -> None:
    for _ in range(2):
        for number, batch in enumerate(one_ahead(loop.loader())):
            if number == 4:
                loop.evaluate()
            loop.step(batch)


def iter_next(loop: Loop) -> None:
    batches = iter(loop.loader())
    for number in range(15):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loop.loader())
            batch = next(batches)
        loop.step(batch)
        if number == 7:
            loop.evaluate()


def infinite(loop: Loop) -> None:
    batches = endless(loop.loader())
    for number in range(16):
        loop.step(next(batches))
        if number % 5 == 4:
            loop.evaluate()


def two_of_a_step(loop: Loop) -> None:
    """The losses of two batches are added."""
    for _ in range(2):
        for pair in in_groups(loop.loader(), 2):
            losses = [
                torch.nn.functional.cross_entropy(loop.model(inputs), labels)
                for inputs, labels in pair
            ]
            sum(losses[1:], losses[0]).backward()
            loop.optimizer.step()
        loop.evaluate()


def mixed(loop: Loop) -> None:
    """The inputs of two batches are mixed, and their losses weighed."""
    for _ in range(3):
        batches = iter(loop.loader(drop_last=True))
        for first, second in zip(batches, batches, strict=False):
            outputs = loop.model(0.3 * first[0] + 0.7 * second[0])
            losses = [
                torch.nn.functional.cross_entropy(outputs, labels) for _, labels in (first, second)
            ]
            (0.3 * losses[0] + 0.7 * losses[1]).backward()
            loop.optimizer.step()
            loop.steps.append(len(first[1]) + len(second[1]))
        loop.evaluate()


def skipping(read: Read, keeps: Callable[[int], bool], at: int = 1) -> Callable[[Loop], None]:
    """Some batches are not trained on: they are skipped at once, or after their loss is known."""

    def train(loop: Loop) -> None:
        for epoch in range(5):
            for number, batch in enumerate(read(loop.loader())):
                loss = None
                if at == 2:
                    loss = torch.nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
                if not keeps(7 * epoch + number):
                    continue
                if loss is None:
                    loss = torch.nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
                loss.backward()
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                loop.steps.append(len(batch[1]))
            loop.evaluate()

    return train


def skipping_adversarial(loop: Loop) -> None:
    """Two calls of backward for every second batch."""
    generator = torch.nn.Linear(4, 4)
    of_generator = torch.optim.Adam(generator.parameters())
    for _ in range(4):
        for number, batch in enumerate(loop.loader()):
            if number % 2:
                continue
            loop.step(batch)
            loop.model(generator(torch.randn(BATCH, 4))).square().sum().backward()
            of_generator.step()
            loop.steps.append(len(batch[1]))
        loop.evaluate()


def beside(loop: Loop, weight: Callable[[int], float | None]) -> None:
    """A second loader, whose loss is added with a weight: from or up to some step,
    or never (None: it is not drawn).
    """
    further, batches = endless(DataLoader(rows(40), 5)), endless(loop.loader())
    for number in range(40):
        batch = next(batches)
        loss = torch.nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
        factor, samples = weight(number), len(batch[1])
        if factor is not None:
            inputs, labels = next(further)
            with torch.set_grad_enabled(factor != 0):
                other = torch.nn.functional.cross_entropy(loop.model(inputs), labels)
            loss = loss + factor * other if factor else loss * other.clamp(0, 1)
            samples += len(labels) if factor else 0
        loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.steps.append(samples)


def whole_pass(loop: Loop) -> None:
    """The losses of a whole pass are added, for one step."""
    for _ in range(12):
        batches = list(loop.loader())
        losses = [
            torch.nn.functional.cross_entropy(loop.model(inputs), labels)
            for inputs, labels in batches
        ]
        sum(losses[1:], losses[0]).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.steps.append(sum(len(labels) for _, labels in batches))


def cleared(loop: Loop, clear: Callable[[Loop], None], every: int) -> None:
    """Gradients are cleared before an epoch, and those of a rest are in no step."""
    for _ in range(6):
        clear(loop)
        samples = 0
        for number, batch in enumerate(loop.loader(), 1):
            loop.backward(batch)
            samples += len(batch[1])
            if number % every == 0:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                loop.steps.append(samples)
                samples = 0


def left_over(loop: Loop) -> None:
    """The rest of an epoch makes no step of its own: the next step has its gradients too."""
    samples = 0
    for _ in range(6):
        for number, batch in enumerate(one_ahead(loop.loader()), 1):
            loop.backward(batch)
            samples += len(batch[1])
            if number % 2 == 0:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                loop.steps.append(samples)
                samples = 0
        loop.evaluate()


def not_finite(loop: Loop) -> None:
    """Every second batch's gradients are thrown away."""
    for _ in range(6):
        for number, batch in enumerate(loop.loader()):
            loop.optimizer.zero_grad()
            loop.backward(batch)
            if number % 2:
                loop.optimizer.step()
                loop.steps.append(len(batch[1]))


def gradients_alone(loop: Loop, keeps: int) -> None:
    """`torch.autograd.grad` in the place of backward, of one in so many batches."""
    parameters = list(loop.model.parameters())
    for _ in range(6):
        for number, batch in enumerate(loop.loader()):
            if number % keeps:
                continue
            loss = torch.nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss, parameters), strict=True
            ):
                parameter.grad = gradient
            loop.optimizer.step()
            loop.steps.append(len(batch[1]))


def streamed(loop: Loop) -> None:
    for _ in range(3):
        for batch in one_ahead(DataLoader(Stream(5 * BATCH + 2), BATCH)):
            loop.step(batch)
        loop.evaluate()


def adversarial_by(
    read: Callable[[Iterable[Any]], Iterator[Any]], every: int
) -> Callable[[Loop], None]:
    """A discriminator is trained on real and on made samples,
    and every so many batches the generator.
    """

    def train(loop: Loop) -> None:
        generator = torch.nn.Linear(4, 4)
        of_generator = torch.optim.Adam(generator.parameters())
        for _ in range(2):
            for number, batch in enumerate(read(loop.loader())):
                made = generator(torch.randn(BATCH, 4))
                loop.backward(batch)
                loop.step([made.detach(), torch.zeros(BATCH, dtype=torch.long)])
                if number % every == 0:
                    loop.model(made).square().sum().backward()
                    of_generator.step()
            loop.evaluate()

    return train


def alternating(loop: Loop) -> None:
    """Two optimisers in turn, each with a batch of its own."""
    optimizers = [loop.optimizer, torch.optim.Adam(loop.model.parameters())]
    for epoch in range(2):
        for number, batch in enumerate(loop.loader()):
            loop.backward(batch)
            optimizers[(epoch + number) % 2].step()
        loop.evaluate()


def in_phases(loop: Loop) -> None:
    """An optimiser after the other, on few batches."""
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer = kind(loop.model.parameters(), 0.01)
        for batch in loop.loader():
            loop.backward(batch)
            optimizer.step()
        loop.evaluate()


def by_parameter(loop: Loop) -> None:
    """Each parameter has an optimiser."""
    optimizers = [torch.optim.SGD([one], 0.1) for one in loop.model.parameters()]
    for batch in one_ahead(loop.loader()):
        loop.backward(batch)
        for optimizer in optimizers:
            optimizer.step()


def with_closure(loop: Loop) -> None:
    optimizer = torch.optim.LBFGS(loop.model.parameters(), max_iter=3)
    for batch in loop.loader():

        def closure(batch: Batch = batch) -> torch.Tensor:
            loss = torch.nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
            loss.backward()
            return loss

        optimizer.step(closure)


def no_loader(loop: Loop) -> None:
    for number in range(12):
        loop.step([part[number : number + BATCH] for part in loop.data.tensors])
        if number % 5 == 4:
            loop.evaluate()


def layer_by_layer(loop: Loop) -> None:
    """Each layer has an optimiser, which takes all of its steps before the next one does."""
    inputs, _ = loop.data.tensors
    for layer in (torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)):
        optimizer = torch.optim.Adam(layer.parameters())
        for _ in range(12):
            layer(inputs).square().mean().backward()
            optimizer.step()
        inputs = layer(inputs).detach()


PATTERNS: dict[str, Callable[[Loop], None]] = {
    "plain": read_by(iter),
    "workers": read_by(one_ahead, num_workers=1, persistent_workers=True),
    "one-ahead": read_by(one_ahead),
    "copied-ahead": read_by(copied_ahead),
    "three-ahead": read_by(three_ahead),
    "in-thread": read_by(in_thread),
    "accumulated": accumulated,
    "accumulated-at-once": accumulated_by(one_ahead, at_once=True),
    "accumulated-plainly": accumulated_by(iter, at_once=True),
    "left-early": left_early,
    "looked-at": looked_at(1, epochs=3, between=False),
    "looked-at-once": looked_at(1, epochs=1, between=False),
    "looked-at-several": looked_at(3, epochs=3, between=False),
    "looked-at-and-kept": looked_at(1, epochs=3, between=False, keep=True),
    "looked-at-ahead": looked_at(1, epochs=3, between=False, read=one_ahead),
    "looked-at-three-ahead": looked_at(2, epochs=3, between=False, read=three_ahead),
    "looked-at-between": looked_at(2, epochs=3, between=True),
    "looked-at-before-a-step": looked_at_before_a_step,
    "two-of-an-iteration": two_of_an_iteration,
    "broken-off": broken_off(iter),
    "broken-off-ahead": broken_off(one_ahead),
    "broken-off-of-several": broken_off_of_several(iter),
    "broken-off-of-several-ahead": broken_off_of_several(one_ahead),
    "sliced": sliced,
    "anew-for-each-step": anew_for_each_step,
    "sliced-for-each-step": sliced_for_each_step,
    "two-in-turn": two_in_turn,
    "evaluated-within": evaluated_within,
    "iter-next": iter_next,
    "infinite": infinite,
    "two-of-a-step": two_of_a_step,
    "streamed": streamed,
    "adversarial": adversarial_by(iter, 1),
    "adversarial-ahead": adversarial_by(one_ahead, 1),
    "adversarial-every-third": adversarial_by(one_ahead, 3),
    "alternating": alternating,
    "in-phases": in_phases,
    "by-parameter": by_parameter,
    "with-closure": with_closure,
    "no-loader": no_loader,
    "layer-by-layer": layer_by_layer,
}

COUNTING: dict[str, Callable[[Loop], None]] = {
    "mixed": mixed,
    "every-second": skipping(iter, lambda number: number % 2 == 0),
    "first-of-two": skipping(iter, lambda number: number % 2 == 1),
    "every-third": skipping(iter, lambda number: number % 3 == 2),
    "two-of-three": skipping(iter, lambda number: number % 3 != 1),
    "by-chance": skipping(iter, lambda number: number * 7919 % 13 < 6),
    "by-loss": skipping(iter, lambda number: number % 2 == 0, at=2),
    "later": skipping(iter, lambda number: number < 12 or number % 2 == 0),
    "ahead-skipping": skipping(one_ahead, lambda number: number % 2 == 0),
    "three-ahead-skipping": skipping(three_ahead, lambda number: number % 2 == 0),
    "adversarial-skipping": skipping_adversarial,
    "joining-late": lambda loop: beside(loop, lambda number: 1.0 if number >= 10 else None),
    "ending": lambda loop: beside(loop, lambda number: 1.0 if number < 20 else 0.0),
    "beginning": lambda loop: beside(loop, lambda number: 1.0 if number >= 20 else 0.0),
    "constant": lambda loop: beside(loop, lambda number: 0.0),
    "whole-pass": whole_pass,
    "cleared": lambda loop: cleared(loop, lambda loop: loop.optimizer.zero_grad(), 4),
    "cleared-by-module": lambda loop: cleared(loop, lambda loop: loop.model.zero_grad(), 4),
    "cleared-by-turns": not_finite,
    "left-over": left_over,
    "averaged": averaged,
    "broken-off-of-several-anew": broken_off_of_several(iter, is_anew=True),
    "gradients-alone": lambda loop: gradients_alone(loop, 1),
    "gradients-alone-skipping": lambda loop: gradients_alone(loop, 2),
}

# ---- evaluations


def none(loop: Loop) -> None:
    pass


def without_gradients(loop: Loop) -> None:
    with torch.no_grad():
        for batch in DataLoader(loop.held_out, BATCH):
            loop.model(batch[0])


def in_trainers_way(loop: Loop) -> None:
    """As Hugging Face's Trainer does: batches are drawn with gradients, one ahead."""
    loop.model.eval()
    for batch in one_ahead(DataLoader(loop.held_out, BATCH)):
        with torch.no_grad():
            loop.model(batch[0])
    loop.model.train()


def without_loader(loop: Loop) -> None:
    loop.model.eval()
    with torch.no_grad():
        loop.model(loop.held_out.tensors[0])
    loop.model.train()


EVALUATIONS: dict[str, Evaluation] = {
    "none": none,
    "no-grad": without_gradients,
    "trainer": in_trainers_way,
    "no-loader": without_loader,
}


def main(name: str, evaluation: str = "none", first: bool = False) -> list[int]:
    """Train as that loop does, and return what `Loop.steps` has."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    loop = Loop(EVALUATIONS[evaluation])
    if first:
        loop.evaluate()
    (PATTERNS | COUNTING)[name](loop)
    if dist.is_initialized():
        dist.destroy_process_group()
    return loop.steps


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
