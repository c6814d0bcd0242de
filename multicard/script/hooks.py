"""Hooks that report to the recorder what a script does.

They replace functions that torch calls: the iterators of DataLoaders, backward, the steps of
optimizers, and the modes of modules. The script is not changed, and no hook waits for a device.
"""

import functools
import os
from collections.abc import Iterator, Sized
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from multicard.script import marks
from multicard.script.optimizers import Steps
from multicard.script.recorder import Recorder
from multicard.script.sizes import counted_by, samples_collated

# What stands in place of an attribute meanwhile, by the object and the attribute's name.
Replacements = dict[tuple[Any, str], Any]


@contextmanager
def installed(recorder: Recorder) -> Iterator[None]:
    """Report this process's training to the recorder. Processes that it forks report nothing."""
    steps = Steps(recorder)
    handles = [
        register_optimizer_step_pre_hook(steps.begin_step),
        register_optimizer_step_post_hook(steps.end_step),
    ]
    marks.listen(recorder)
    os.register_at_fork(after_in_child=recorder.leave)
    replaced = (
        _passes(recorder)
        | _batches(recorder)
        | _backward(recorder)
        | _modes(recorder)
        | _scaler(steps)
    )
    replaced |= _clearing(recorder, steps) | _contexts(recorder) | _left_files(recorder)
    try:
        with ExitStack() as patches:
            for (owner, name), measured in replaced.items():
                patches.enter_context(mock.patch.object(owner, name, measured))
            yield
    finally:
        marks.listen(None)
        for handle in handles:
            handle.remove()


def _passes(recorder: Recorder) -> Replacements:
    """Report the start of a pass, with a new iterator or one that keeps its workers."""
    begin = _BaseDataLoaderIter.__init__
    begin_again = _BaseDataLoaderIter._reset

    def measured_begin(batches: Any, loader: Any) -> None:
        recorder.begin_pass(loader)
        begin(batches, loader)

    def measured_begin_again(batches: Any, loader: Any, first_iter: bool = False) -> None:
        batches.__dict__.pop("multicard_pass", None)
        if not first_iter:
            recorder.begin_pass(loader)
        begin_again(batches, loader, first_iter)

    return {
        (_BaseDataLoaderIter, "__init__"): measured_begin,
        (_BaseDataLoaderIter, "_reset"): measured_begin_again,
    }


def _batches(recorder: Recorder) -> Replacements:
    """Report the batches that iterators hand out, and note how many indices they draw for each."""
    next_batch = _BaseDataLoaderIter.__next__
    next_indices = _BaseDataLoaderIter._next_index

    def measured_indices(batches: Any) -> Any:
        number = getattr(batches, "_send_idx", batches._num_yielded)  # Of the batch in this pass.
        indices = next_indices(batches)
        if (
            batches._auto_collation
            and batches._dataset_kind == _DatasetKind.Map
            and isinstance(indices, Sized)
        ):
            batches.__dict__.setdefault("multicard_drawn", {})[number] = len(indices)
        return indices

    def measured_batch(batches: Any) -> Any:
        if recorder.is_over:
            return next_batch(batches)
        data_pass = getattr(batches, "multicard_pass", None)
        if data_pass is None:
            data_pass = batches.multicard_pass = recorder.draws.begin_pass(
                batches._dataset, batches._index_sampler
            )
            batches.multicard_collated = counted_by(batches)
            if (
                batches._dataset_kind == _DatasetKind.Iterable
                and batches.multicard_collated is None
            ):
                data_pass.workers = batches._num_workers
        if recorder.threads.is_elsewhere():
            recorder.threads.note_read(data_pass, recorder.progress.steps)
        trains = recorder.ask_batch(data_pass)
        try:
            batch = next_batch(batches)
        except StopIteration:
            recorder.end_pass(data_pass, trains, batches._num_yielded)
            raise
        size = getattr(batches, "multicard_drawn", {}).pop(batches._num_yielded - 1, None)
        if size is None:
            collated = batches.multicard_collated
            count = None if collated is None else collated.count
            size = samples_collated(batch, data_pass.source.batch_size, count)
        recorder.receive_batch(data_pass, trains, batch, size)
        return batch

    return {
        (_BaseDataLoaderIter, "__next__"): measured_batch,
        (_BaseDataLoaderIter, "_next_index"): measured_indices,
    }


def _backward(recorder: Recorder) -> Replacements:
    """Report where gradients are computed: that shows which batch is trained on."""
    backward = torch.autograd.backward
    compute_gradients = torch.autograd.grad
    is_within = [False]

    def computing(compute: Any, losses: Any, arguments: Any, keywords: Any) -> Any:
        if not recorder.draws.backwards:
            recorder.train_in_this_thread()
        recorder.contributions.begin_backward(losses, recorder.draws.backwards + 1)
        recorder.draws.backwards += 1
        is_within[0] = True
        try:
            return compute(*arguments, **keywords)
        finally:
            is_within[0] = False
            recorder.contributions.end_backward()

    def measured_backward(*arguments: Any, **keywords: Any) -> Any:
        if is_within[0]:  # A checkpoint computes its part within another call.
            return backward(*arguments, **keywords)
        recorder.draws.calls_backward = True
        return computing(
            backward, arguments[0] if arguments else keywords.get("tensors"), arguments, keywords
        )

    def measured_gradients(*arguments: Any, **keywords: Any) -> Any:
        # In a script that calls backward, this is only a part of a pass, as for a penalty.
        if is_within[0] or recorder.draws.calls_backward:
            return compute_gradients(*arguments, **keywords)
        return computing(
            compute_gradients,
            arguments[0] if arguments else keywords.get("outputs"),
            arguments,
            keywords,
        )

    return {
        (torch.autograd, "backward"): measured_backward,
        (torch.autograd, "grad"): measured_gradients,
    }


def _clearing(recorder: Recorder, steps: Steps) -> Replacements:
    """Report where gradients are cleared, of the counted optimizer or a module that it trains."""
    clear = Optimizer.zero_grad
    clear_module = torch.nn.Module.zero_grad

    def measured_clear(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> Any:
        if steps.counts(optimizer):
            recorder.draws.clear_gradients()
        return clear(optimizer, *arguments, **keywords)

    def measured_clear_module(module: torch.nn.Module, *arguments: Any, **keywords: Any) -> Any:
        if steps.trains(module):
            recorder.draws.clear_gradients()
        return clear_module(module, *arguments, **keywords)

    return {
        (Optimizer, "zero_grad"): measured_clear,
        (torch.nn.Module, "zero_grad"): measured_clear_module,
    }


def _left_files(recorder: Recorder) -> Replacements:
    """Report reads of files that an earlier run may have left, and the making of an optimizer."""
    read = torch.load
    make_optimizer = Optimizer.__init__
    load_state = Optimizer.load_state_dict

    @functools.wraps(read)
    def measured_read(*arguments: Any, **keywords: Any) -> Any:
        recorder.left_files.note_read(arguments[0] if arguments else keywords.get("f"))
        return read(*arguments, **keywords)

    @functools.wraps(make_optimizer)
    def measured_make(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> None:
        recorder.left_files.makes_optimizer = True
        make_optimizer(optimizer, *arguments, **keywords)

    @functools.wraps(load_state)
    def measured_load_state(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> Any:
        if not recorder.progress.steps:
            recorder.left_files.note_loaded_state()
        return load_state(optimizer, *arguments, **keywords)

    return {
        (torch, "load"): measured_read,
        (Optimizer, "__init__"): measured_make,
        (Optimizer, "load_state_dict"): measured_load_state,
    }


def _contexts(recorder: Recorder) -> Replacements:
    """Take the mode that watches operations off while the script enters or leaves a context.

    Such a context saves torch's state when it begins, and restores it when it ends.
    """
    crossed = recorder.contributions.operations.crossed

    def entering(enter: Any) -> Any:
        @functools.wraps(enter)
        def measured_enter(context: Any) -> Any:
            with crossed(context):
                return enter(context)

        return measured_enter

    def leaving(leave: Any) -> Any:
        @functools.wraps(leave)
        def measured_leave(context: Any, *raised: Any) -> Any:
            with crossed(context):
                return leave(context, *raised)

        return measured_leave

    kinds = (torch.inference_mode, TorchDispatchMode)
    return {(kind, "__enter__"): entering(kind.__enter__) for kind in kinds} | {
        (kind, "__exit__"): leaving(kind.__exit__) for kind in kinds
    }


def _modes(recorder: Recorder) -> Replacements:
    """Report where modules are set to training or to evaluation."""
    set_mode = torch.nn.Module.train
    is_within = [False]

    def measured_mode(module: Any, mode: bool = True) -> Any:
        if is_within[0] or recorder.is_over:  # A module sets its children.
            return set_mode(module, mode)
        is_within[0] = True
        try:
            recorder.set_mode(module, mode)
            return set_mode(module, mode)
        finally:
            is_within[0] = False

    return {(torch.nn.Module, "train"): measured_mode}


def _scaler(steps: Steps) -> Replacements:
    """Report where a GradScaler skips a step."""
    scaled_step = GradScaler.step

    def measured_step(
        scaler: GradScaler, optimizer: Optimizer, *arguments: Any, **keywords: Any
    ) -> Any:
        before = steps.calls
        result = scaled_step(scaler, optimizer, *arguments, **keywords)
        if steps.calls == before:
            steps.skip_step(optimizer)
        return result

    return {(GradScaler, "step"): measured_step}
