"""A rank that draws the batches of all ranks, as Accelerate does with streams."""

from collections.abc import Callable

import pytest

from multicard.records.schema import ScriptRecord
from tests.script.test_script_runs import measured

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("processes")]

DISPATCHED = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
how = DataLoaderConfiguration(dispatch_batches=True, split_batches=SPLIT)
accelerator = Accelerator(cpu=True, dataloader_config=how)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 8))
for epoch in range(2):
    for number, batch in enumerate(loader, 1):
        accelerator.backward(loss_of(batch))
        if number % EACH == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("split", "each"), [(False, 1), (True, 1), (False, 3), (True, 2)])
def test_batches_of_a_step_are_those_that_each_rank_trains_on(
    script: Callable[[str], str], split: bool, each: int
):
    body = DISPATCHED.replace("SPLIT", str(split)).replace("EACH", str(each))
    record = measured(script(body), "gpus=2", "warmup_steps=1").record
    assert isinstance(record, ScriptRecord) and (record.status, record.cause) == ("ok", None)
    assert record.batches_per_step == each
    assert ("script.accumulated" in record.seen_codes) == (each > 1)
    assert record.epochs[0].samples == 2 * 96


@pytest.mark.parametrize(("rows", "known"), [(96, True), (88, False)])
def test_samples_that_the_drawing_rank_does_not_know_are_said(
    script: Callable[[str], str], rows: int, known: bool
):
    """11 batches are an odd number, so the last are not drawn in pairs."""
    body = DISPATCHED.replace("SPLIT", "False").replace("EACH", "1")
    body = body.replace("DataLoader(data, 8)", f"DataLoader([*data][:{rows}], 8)")
    record = measured(script(body), "gpus=2", "warmup_steps=1").record
    assert isinstance(record, ScriptRecord) and (record.status, record.cause) == ("ok", None)
    assert (record.samples_per_s is not None) == known
    assert ("script.samples-unknown" in record.seen_codes) == (not known)
