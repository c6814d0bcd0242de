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
