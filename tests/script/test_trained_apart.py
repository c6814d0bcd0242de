"""Whether ranks of a real script trained one model: what the record says,
and what nobody may say of such runs.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import answers
from analysis.commands import best, compared_cells
from analysis.commands.ranking import Limits
from analysis.figures import draw
from analysis.report import build
from analysis.runs import load
from multicard.estimate.history import PastRun
from multicard.records import limits
from multicard.records.schema import ScriptRecord
from tests.conftest import command
from tests.helpers.messages import find, refused, says
from tests.script.test_script_runs import GROUP, TRAIN, measured

pytestmark = pytest.mark.usefixtures("processes")
Script = Callable[[str], str]

JOIN = 'dist.init_process_group("gloo")\n'
OWN_SEED = "torch.manual_seed(int(os.environ['RANK']))\n"
ACCUMULATED = """
from contextlib import nullcontext
for epoch in range(3):
    for number, batch in enumerate(DataLoader(data, 8), 1):
        with nullcontext() if number % 2 == 0 else model.no_sync():
            loss_of(batch).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
OWN_DATA = "data = TensorDataset(torch.randn(96, 4), torch.randint(0, 2, (96,)))\n"
SHARDED_OPTIMIZER = """
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
"""
SHARDED_MODEL = """
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
LOADED_BY_ONE = """
if os.environ["RANK"] == "0":
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(0.5)
"""
IN_FUNCTION = """
def main():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(data, 8):
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
main()
"""
UNEVEN = """
for number in range(5 + int(os.environ["RANK"])):
    loss_of(data[:8]).backward(); optimizer.step()
"""
STEPS = ("steps=12", "warmup_steps=1")


def on_two_ranks(script: str, *words: str) -> ScriptRecord:
    record = measured(script, "gpus=2", *words).record
    assert isinstance(record, ScriptRecord) and (record.status, record.cause) == ("ok", None)
    return record


def own_limits(record: ScriptRecord) -> set[str]:
    kinds = (limits.APART, limits.OTHER_WEIGHTS, limits.OTHER_STEPS)
    return {limit.code for limit in record.limits} & {kind.code for kind in kinds}


@pytest.mark.parametrize(
    ("body", "words", "trained", "limit"),
    [
        (TRAIN, STEPS, "apart", limits.APART),
        # equal copies, gone at the end
        ("torch.manual_seed(0)\n" + IN_FUNCTION, (), "apart", limits.APART),
        (JOIN + OWN_SEED + OWN_DATA + TRAIN, STEPS, "apart", limits.OTHER_WEIGHTS),
        (JOIN + OWN_SEED + IN_FUNCTION, (), "apart", limits.OTHER_WEIGHTS),
        (JOIN + UNEVEN + LOADED_BY_ONE, (), "apart", limits.OTHER_STEPS),
        (GROUP + TRAIN, STEPS, "together", None),
        (GROUP + TRAIN, ("probe.enabled=true", "probe.seconds=0.2"), "together", None),
        (GROUP + ACCUMULATED, (), "together", None),
        (GROUP + TRAIN.replace("20", "2") + LOADED_BY_ONE, (), "unknown", None),
        (SHARDED_OPTIMIZER + TRAIN, STEPS, "together", None),  # whose ranks hold all parameters
        (SHARDED_MODEL + TRAIN, STEPS, "divided", None),
    ],
    ids=[
        "no group",
        "no group, in a function",
        "not wrapped",
        "not wrapped, in a function",
        "not wrapped, other steps",
        "wrapped",
        "probed",
        "accumulated",
        "one rank loads",
        "ZeRO",
        "FSDP",
    ],
)
def test_the_record_says_how_ranks_trained(
    script: Script, body: str, words: tuple[str, ...], trained: str, limit: limits.LimitKind | None
):
    record = on_two_ranks(script(body), *words)
    assert record.trained == trained
    assert own_limits(record) == (set() if limit is None else {limit.code})


def test_nobody_recommends_more_ranks_that_train_copies(script: Script, tmp_path: Path):
    """The shape of pytorch's own example of MNIST: a function that trains, one seed,
    no process group.
    """
    body = "torch.manual_seed(0)\n" + IN_FUNCTION
    words = [
        "-m",
        f"script={tmp_path / script(body)}",
        "device=cpu",
        "tracker.mode=disabled",
        "gpus=1,2",
    ]
    words += ["warmup_steps=1", f"hydra.sweep.dir={tmp_path}/out"]
    ended = command(*words, entry="measure_script.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    code = limits.APART.code
    assert says(ended.stdout, "notes.mark", mark="trained_apart", runs=1)

    runs = sorted(load.read_runs([tmp_path / "out"]).runs, key=lambda run: int(run["gpus"]))
    ranked = "\n".join(best.output(runs, None, Limits(), False, answers.sentences).lines(None))
    assert not says(ranked, "answer.run") and not says(ranked, "answer.impossible")
    (answer,) = answers.answers(runs)
    assert [one.gpus for one in answer.ranking.settings] == [1]
    assert find(answer.sentence, "answer.unranked").facts["runs"] == 1
    compared = compared_cells.compare(runs[:1], runs[1:], ["gpus"], common=False, mix=False)
    assert [find(str(one.verdict), "compare.untold").facts["limit"] for one in compared] == [code]
    alone, apart = (run.record() for run in runs)
    assert (own_limits(alone), own_limits(apart)) == (set(), {code})
    assert PastRun(apart).left_out is not None  # for this, or first for a busy machine
    with refused("figure.nothing-to-show"):
        draw.make("efficiency", runs)
    page = build(load.FoundRuns(runs, []), "a title", mix=False)
    assert limits.APART.sign in page.legend
    assert re.findall(r"\(\d+%\)", ended.stdout) == ["(100%)"]  # of one rank over itself
