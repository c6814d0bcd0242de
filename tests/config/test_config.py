"""Every option composes, every closed set is whole, and what cannot work is refused by name."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from analysis.runs import grouping
from analysis.runs.columns import columns
from analysis.runs.load import Run
from multicard import workloads
from multicard.cli import command_line
from multicard.config.base import ACCUMULATED
from multicard.config.llm import PRECISIONS as TUNING_PRECISIONS
from multicard.config.llm_models import MODELS
from multicard.config.llm_texts import DATASETS as TEXT_DATASETS
from multicard.config.placement import Placement, place
from multicard.config.vision import LayoutName, ModelConfig, VisionConfig
from multicard.decide.race import command as race
from multicard.llm import workload as llm
from multicard.measure import memory
from multicard.messages import Refusal
from multicard.records import comparable, run_folder
from multicard.run.workload import Workload
from multicard.vision.data.datasets import DATASETS
from multicard.vision.data.loaders import LOADERS
from multicard.vision.optim import OPTIMIZERS
from multicard.vision.precision import PRECISIONS, choose
from multicard.vision.strategy import STRATEGIES
from multicard.vision.workload import WORKLOAD
from multicard.workloads import WORKLOADS
from tests.conftest import ROOT, SMALL, Called, composed, ok, typed, typed_llm
from tests.helpers import records
from tests.helpers.messages import refused
from tests.helpers.recorded import steps
from tests.llm.test_llm_run import FIXED

GROUPS = {
    "precision": {*PRECISIONS, *TUNING_PRECISIONS},
    "strategy": STRATEGIES,
    "loader": LOADERS,
    "layout": LayoutName,
    "dataset": {*DATASETS, *TEXT_DATASETS},
    "optimizer": OPTIMIZERS,
    "model": {"mobilenet_v2", *MODELS},
    "method": llm.WORKLOAD.options["method"],
    "template": llm.WORKLOAD.options["template"],
    "tokenizer": llm.WORKLOAD.options["tokenizer"],
}


def options(group: str) -> set[str]:
    return {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


@pytest.mark.parametrize("group", GROUPS)
def test_each_option_has_its_function(group: str):
    assert options(group) == set(GROUPS[group])


def test_a_preset_changes_what_was_not_chosen():
    fast = typed("preset=fast")
    assert (fast.loader.name, fast.layout.name, fast.precision.name) == ("device", "nhwc", "half")
    assert (fast.compile, fast.model.depthwise, fast.optimizer.fused) == (None, "triton", True)
    mine = typed("preset=fast", "precision=fp32", "layout=nchw", "compile=false", "optimizer=adam")
    assert (mine.loader.name, mine.layout.name, mine.precision.name) == ("device", "nchw", "fp32")
    assert (mine.compile, mine.optimizer.name, mine.optimizer.fused) == (False, "adam", True)
    assert typed("preset=papers").identity() == typed().identity()
    advised = typed("preset=recommended")
    assert (advised.loader.name, advised.layout.name, advised.precision.name) == (
        "torch",
        "nhwc",
        "fp16",
    )
    assert advised.pin_memory and typed("preset=recommended", "loader=dali").layout.name == "nhwc"


def test_a_preset_of_tuning_changes_what_was_not_chosen():
    fast = typed_llm("preset=fast")
    assert (fast.precision.name, fast.packed, fast.max_seq_len, fast.compile) == (
        "bf16",
        True,
        2048,
        True,
    )
    assert fast.batch_size == 4 and not fast.activation_checkpointing
    mine = typed_llm(
        "preset=fast",
        "precision=fp32",
        "packed=false",
        "method=qlora",
        "engine=trl",
        "compile=false",
    )
    assert (mine.precision.name, mine.packed, mine.compile, mine.batch_size) == (
        "fp32",
        False,
        False,
        4,
    )
    assert typed_llm("preset=papers").identity() == typed_llm().identity()


def test_half_is_bf16_where_there_is_bf16(monkeypatch: pytest.MonkeyPatch):
    assert choose("half", torch.device("cpu")).autocast == "bfloat16"
    for there, expected in ((True, "bfloat16"), (False, "float16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda there=there, **_: there)
        assert choose("half", torch.device("cuda", 0)).autocast == expected


LEAST = """
gpus=0 nodes=0 epochs=0 batch_size=0 seed=-1 num_workers=-1 dataset.train_limit=0 optimizer.weight_decay=-1
"""
ABOVE = """
lr=0 lr=inf model.width=0 price.gpu_hour=0 price.gpu_hour=-2.49 price.gpu_hour=nan price.gpu_hour=inf
"""


def key_of(word: str) -> str:
    return word.partition("=")[0]


RACED = "race.figure=images_per_s"
REFUSED = [
    *(([word], "config.least", {"key": key_of(word)}) for word in LEAST.split()),
    *(([word], "config.above", {"key": key_of(word), "above": 0}) for word in ABOVE.split()),
    (["seed=9223372036854775808"], "config.overflow", {"key": "seed", "bits": 63}),
    (
        ["dataset.image_size=99999999999999999999"],
        "config.overflow",
        {"key": "dataset.image_size", "bits": 31},
    ),
    (["dataset.image_size=31"], "config.image-size", {"key": "dataset.image_size", "least": 32}),
    (["dataset.crop=0"], "config.image-crop", {"key": "dataset.crop", "value": 0.0}),
    (["dataset.mean=[0.1]"], "config.image-channels", {"key": "dataset.mean"}),
    (["dataset.std=[1,1,0]"], "config.image-std", {"key": "dataset.std"}),
    (["dataset=images"], "config.images-root", {"key": "dataset.root"}),
    (
        ["dataset=images", "dataset.root=x", "dataset.split=1"],
        "config.images-split",
        {"key": "dataset.split"},
    ),
    (
        ["dataset=images", "dataset.root=x", "dataset.cache=none", "dataset.skip_broken=true"],
        "config.images-skip-broken",
        {"key": "dataset.skip_broken", "cache": "none"},
    ),
    (["target_accuracy=97"], "config.target-accuracy", {"key": "target_accuracy", "value": 97.0}),
    (["stop_at_target=true"], "config.target-missing", {"key": "stop_at_target"}),
    (
        ["optimizer.momentum=1"],
        "config.optimizer-momentum",
        {"key": "optimizer.momentum", "value": 1.0},
    ),
    (["optimizer.momentum=0"], "config.optimizer-nesterov", {"key": "optimizer.nesterov"}),
    (
        ["optimizer=adam", "optimizer.betas=[1,0]"],
        "config.optimizer-betas",
        {"key": "optimizer.betas"},
    ),
    (["tracker.project=a/b"], "config.wandb-name", {"key": "tracker.project", "value": "a/b"}),
    (["tracker.entity=a/b"], "config.wandb-name", {"key": "tracker.entity", "value": "a/b"}),
    (
        [f"tracker.tags=[short,{'x' * 65}]"],
        "config.wandb-tag",
        {"key": "tracker.tags", "value": "x" * 65},
    ),
    (["name=a/b"], "config.name-no-folder", {"key": "name", "value": "a/b"}),
    (
        [RACED, "race.confidence=0.3"],
        "config.race-confidence",
        {"key": "race.confidence", "value": 0.3},
    ),
    ([RACED, "race.tolerance=2x"], "config.share", {"key": "race.tolerance", "value": "2x"}),
    ([RACED, "race.block=0.0"], "config.above", {"key": "race.block", "above": 0}),
    (["probe.enabled=true", "probe.error=0"], "config.share", {"key": "probe.error"}),
    (["probe.enabled=true", "repeat=auto"], "config.probe-repeat", {"key": "probe"}),
    (
        ["probe.enabled=true", "profile=kineto"],
        "config.probe-profile",
        {"key": "probe", "profile": "kineto"},
    ),
    (["probe.enabled=true", "diagnose=true"], "config.probe-diagnose", {"key": "probe"}),
    (
        ["profile=kineto", "profile.steps=null"],
        "config.profile-unbounded",
        {"key": "profile.steps"},
    ),
    (
        ["device=cpu", "predict.gpu=h100-80gb"],
        "config.predict-cpu",
        {"key": "predict.gpu", "value": "h100-80gb", "cause": "device=cpu"},
    ),
    (
        ["scale=smoke", "predict.memory=80GB"],
        "config.predict-cpu",
        {"key": "predict.memory", "value": "80GB", "cause": "scale=smoke"},
    ),
    (["predict.memory=80"], "config.predict-memory", {"key": "predict.memory", "value": "80"}),
    (["loader=dali", "loader.threads=0"], "config.least", {"key": "loader.threads", "least": 1}),
    (
        ["model.name=resnet18", "model.width=2"],
        "config.model-width",
        {"key": "model.width", "model": "resnet18"},
    ),
    (["model.pointwise=linear"], "config.pointwise-layout", {"key": "model.pointwise"}),
]


@pytest.mark.parametrize(
    ("overrides", "code", "facts"), REFUSED, ids=[" ".join(words) for words, *_ in REFUSED]
)
def test_what_can_never_work_is_refused_by_its_key(
    overrides: list[str], code: str, facts: dict[str, Any]
):
    with refused(code, **facts):
        typed(*overrides)


def test_weights_of_no_file_are_refused():
    with refused("config.model-weights-empty", key="model.weights"):
        ModelConfig(name="mobilenet_v2", weights="")


@pytest.mark.parametrize("overrides", [words for words, *_ in REFUSED], ids=" ".join)
def test_the_overrides_that_a_refusal_offers_are_accepted(overrides: list[str]):
    with pytest.raises(Refusal) as error:
        typed(*overrides)
    for remedy in error.value.message.remedies:
        key, _, value = remedy.partition("=")
        if value.isupper():  # a placeholder, as in `profile.seconds=SECONDS`
            continue
        kept = [word for word in overrides if key_of(word) != key]
        typed(*kept, remedy)


UNPLACED = [
    (["device=cuda"], 0, "placement.no-cuda", "device"),
    (["gpus=5"], 4, "placement.too-few-gpus", "gpus"),
    (["nodes=2"], 0, "placement.nodes", "nodes"),
    (["backend=nccl"], 0, "placement.nccl-without-cuda", "backend"),
    (
        ["gpus=3", "oversubscribe=true", "backend=nccl"],
        2,
        "placement.nccl-oversubscribed",
        "backend",
    ),
    (["price.gpu_hour=2.49"], 0, "placement.price-without-gpu", "price.gpu_hour"),
]
IMPOSSIBLE = [  # refused by training, by key
    (["strategy.sync_batchnorm=true"], 0, "strategy.sync_batchnorm"),
    (["strategy=ddp_rr", "strategy.sync_batchnorm=true", "gpus=2"], 2, "strategy.sync_batchnorm"),
    (["gpus=2", "strategy.bucket_cap_mb=0.5", "compile=true"], 0, "strategy.bucket_cap_mb"),
    (["precision=tf32"], 0, "precision"),
    (["dataset=images", "dataset.root=x", "dataset.cache=none", "loader=device"], 0, "loader"),
    (["strategy.name=fsdp"], 0, "strategy.name"),
    (["precision.name=fp8"], 0, "precision.name"),
]


def placed(config: VisionConfig, cuda_devices: int) -> Placement:
    """As the controller places a run, refusals included."""
    WORKLOAD.refuse(config)
    placement = place(config, cuda_devices)
    WORKLOAD.fits(config, placement)
    WORKLOAD.check(config)
    return placement


@pytest.mark.parametrize(
    ("words", "devices", "least", "most", "value_bytes"),
    [
        (
            ["num_workers=3", "loader.prefetch_factor=5", "precision=fp64", "gpus=2"],
            0,
            2 * 16,
            2 * 17,
            8,
        ),
        (["num_workers=8", "precision=bf16", "gpus=2", "pin_memory=false"], 2, 2 * 17, 2 * 18, 2),
        # page-locked, two of each worker ahead
        (["gpus=4", "num_workers=8"], 4, 1, 4 * (8 * 2 + 2), 4),
        (["num_workers=8", "dataset.train_limit=100"], 0, 2, 2, 4),  # there are no more
    ],
)
def test_batches_of_workers_must_fit_into_shared_memory(
    words: list[str],
    devices: int,
    least: int,
    most: int,
    value_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    config = typed("dataset=mnist", "dataset.image_size=100", "batch_size=64", *words)
    placement = place(config, devices)
    batch_bytes = 64 * (3 * 100 * 100 * value_bytes + 8)

    def said(free_bytes: int | None, limited: VisionConfig = config) -> str:
        monkeypatch.setattr(memory, "free_shared_memory_bytes", lambda: free_bytes)
        WORKLOAD.has_room(limited, placement)
        return capsys.readouterr().err

    assert said(most * batch_bytes) == said(None) == ""
    if least < most:
        assert "num_workers" in said(least * batch_bytes) and "num_workers" in said(
            most * batch_bytes - 1
        )
    with pytest.raises(ValueError) as error:
        said(least * batch_bytes - 1)
    assert "num_workers" in str(error.value)
    assert said(0, replace(config, num_workers=0)) == ""
    assert said(0, typed("loader=device", "num_workers=8")) == ""


@pytest.mark.parametrize(("overrides", "devices", "code", "key"), UNPLACED)
def test_what_the_machine_does_not_have_is_refused_by_its_key(
    overrides: list[str], devices: int, code: str, key: str
):
    with refused(code, key=key):
        placed(typed(*overrides), devices)


@pytest.mark.parametrize(("overrides", "devices", "key"), IMPOSSIBLE)
def test_what_training_cannot_do_there_is_refused_by_its_key(
    overrides: list[str], devices: int, key: str
):
    with pytest.raises(ValueError) as error:
        placed(typed(*overrides), devices)
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "devices", "expected"),
    [
        ([], 0, ("cpu", "gloo", 1, False)),
        (["gpus=16"], 0, ("cpu", "gloo", 16, False)),
        (["gpus=4"], 4, ("cuda", "nccl", 4, False)),
        (["gpus=4", "backend=gloo"], 4, ("cuda", "gloo", 4, False)),
        (["gpus=4", "oversubscribe=true"], 2, ("cuda", "gloo", 4, True)),
        (["gpus=2", "oversubscribe=true"], 2, ("cuda", "nccl", 2, False)),
        (["gpus=3", "device=cpu"], 1, ("cpu", "gloo", 3, False)),
    ],
)
def test_placement(overrides: list[str], devices: int, expected: tuple[str, str, int, bool]):
    placement = placed(typed(*overrides), devices)
    assert (
        placement.device,
        placement.backend,
        placement.processes,
        placement.oversubscribed,
    ) == expected


def test_the_identity_is_what_is_measured():
    one = typed("name=a").identity()
    unmeasured = ("name=b", "rerun=true", "tracker.mode=disabled", "max_jobs=3", "auto=gpus")
    assert one == typed(*unmeasured, "race.figure=images_per_s", "price.gpu_hour=2.49").identity()
    others = [
        typed("precision=fp64"),
        typed("gpus=2"),
        typed("dataset.train_limit=5"),
        typed("lr=0.1"),
    ]
    assert len({one, *(other.identity() for other in others)}) == 5
    assert len(one) == 8


def test_compile_is_a_switch_and_a_mode_in_one():
    values = [
        typed(f"compile={word}").compile for word in ("true", "false", "reduce-overhead", "default")
    ]
    assert values == [True, False, "reduce-overhead", True]
    by_word = {
        word: typed(f"compile={word}").identity() for word in ("true", "default", "max-autotune")
    }
    assert by_word["true"] == by_word["default"] != by_word["max-autotune"]
    with refused("config.compile-mode", key="compile", value="fast") as error:
        typed("compile=fast")
    assert {"true", "false", "default", "reduce-overhead"} <= {*error.value.facts["choices"]}


def folder_name(*words: str) -> str:
    config = typed(*words)
    return run_folder.cell_name(config.identity(), [*words], config.repetition)


def test_the_folder_says_what_was_changed():
    words = [
        "gpus=2",
        "dataset.image_size=96",
        "name=x",
        "tracker.mode=disabled",
        "hydra.verbose=true",
    ]
    assert folder_name(*words) == f"gpus=2,image_size=96-{typed(*words).identity()}"
    assert folder_name() == f"default-{typed().identity()}"
    assert run_folder.cell_name(run_folder.REFUSED, ["gpus=0"], 1) == "gpus=0-00000000"


def test_a_repetition_has_a_folder_of_its_own_and_the_same_identity(tmp_path: Path):
    first, second = (folder_name(f"repetition={n}") for n in (1, 2))
    assert (first, second) == (f"default-{typed().identity()}", f"default-{typed().identity()}-r2")
    assert run_folder.find_cell(tmp_path, second) == tmp_path / second
    typed_out = [tmp_path / name.replace("default", "gpus=1") for name in (first, second)]
    for folder in typed_out:
        folder.mkdir()
    # however it is typed
    assert [run_folder.find_cell(tmp_path, name) for name in (first, second)] == typed_out


def described(schema: type, prefix: str) -> Iterator[tuple[str, str | None]]:
    for field in fields(schema):
        if (
            isinstance(field.type, type)
            and is_dataclass(field.type)
            and field.name not in entry_groups()
        ):
            yield from described(field.type, f"{prefix}{field.name}.")
        # the option's own
        elif not (prefix and field.name == "name" and "help" not in field.metadata):
            yield prefix + field.name, field.metadata.get("help")


def entry_groups() -> set[str]:
    return {group for workload in WORKLOADS for group in workloads.groups(workload)}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.entry)
def test_each_key_has_a_line_of_help(workload: Workload):
    keys = dict(described(workload.schema, ""))
    for group, options in workload.options.items():
        for schema in options.values():
            keys |= dict(described(schema, f"{group}."))
    assert {"gpus", "profile.steps"} <= set(keys)
    assert not [key for key, description in keys.items() if not description]
    assert all(len(description or "") <= 160 for description in keys.values())


ASKED = "batch_size_asked=global"  # what the command line adds where batch_size is not given


@pytest.mark.parametrize(
    ("words", "batch", "summed"),
    [
        ([ASKED, "gpus=2"], 12, 1),
        ([ASKED, "gpus=2", "nodes=3"], 4, 1),
        ([ASKED, "gpus=2", "gradient_accumulation_steps=4"], 3, 4),
        (["batch_size=3", "gpus=2"], 3, 4),
        (["batch_size=3", "gpus=8"], 3, 1),
        (["batch_size=3", "gpus=2", "gradient_accumulation_steps=4"], 3, 4),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_ranks_batch_and_the_accumulation_follow_from_the_ranks(
    words: list[str], batch: int, summed: int
):
    config = typed_llm("global_batch_size=24", *words)
    assert (config.batch_size, config.gradient_accumulation_steps) == (batch, summed)


def test_of_training_the_ranks_batch_alone_follows():
    sizes = [typed("global_batch_size=24", ASKED, f"gpus={gpus}").batch_size for gpus in (1, 2, 3)]
    assert sizes == [24, 12, 8]
    assert typed("global_batch_size=24", "batch_size=12", "gpus=2").batch_size == 12
    without = typed(ASKED)  # global_batch_size=null
    assert without.batch_size == 32 and without.identity() == typed().identity()


@pytest.mark.parametrize(
    ("make", "words", "code", "facts"),
    [
        (typed, [ASKED, "gpus=5"], "config.batch-not-divisible", {"parts": 5, "near": [20, 25]}),
        (typed, [ASKED, "gpus=25"], "config.batch-not-divisible", {"parts": 25, "near": [25]}),
        (typed_llm, ["batch_size=7"], "config.batch-not-divisible", {"parts": 7, "near": [21, 28]}),
        (typed, ["batch_size=12"], "config.batch-product", {"value": 24, "product": 12}),
        (
            typed_llm,
            ["batch_size=4", f"{ACCUMULATED}=5"],
            "config.batch-accumulated",
            {"product": 4, "accumulated": 5},
        ),
        (
            typed,
            ["batch_size_asked=mine"],
            "config.batch-asked",
            {"key": "batch_size_asked", "value": "mine"},
        ),
    ],
)
def test_what_does_not_divide_is_refused(
    make: Callable[..., object], words: list[str], code: str, facts: dict[str, Any]
):
    with refused(code, **{"key": "global_batch_size"} | facts):
        make("global_batch_size=24", *words)


def test_a_strategy_whose_epochs_grow_with_the_ranks_has_no_global_batch():
    for strategy in ("ddp_ds", "ddp_rr"):
        WORKLOAD.refuse(typed("global_batch_size=24", ASKED, "gpus=2", f"strategy={strategy}"))
    with pytest.raises(ValueError) as error:
        WORKLOAD.refuse(typed("global_batch_size=24", ASKED, "gpus=2", "strategy=ddp"))
    assert "strategy" in str(error.value)


def test_the_command_line_tells_whether_the_batch_size_was_given():
    assert command_line.switched(["global_batch_size=8"], llm.WORKLOAD) == [
        "global_batch_size=8",
        ASKED,
    ]
    # also read again
    for given in (["global_batch_size=8", "batch_size=2"], ["global_batch_size=8", ASKED]):
        assert command_line.switched(given, llm.WORKLOAD) == given


def trained(gpus: int, **changes: Any) -> dict[str, Any]:
    batch = {"global_batch_size": 32, "batch_size_asked": "global", "batch_size": 32 // gpus}
    return records.vision(gpus=gpus, total_s=100 / gpus, **batch | changes)


def test_ranks_of_one_global_batch_are_compared_as_one_training():
    one, two = (records.as_record(trained(gpus)) for gpus in (1, 2))
    assert two.axes["global_batch_size"] == 32 and two.axes["batch_size"] == 16
    assert "global_batch_size" not in records.as_record(records.vision()).axes
    assert comparable.reference(two, [one, two], gpus=1) is one
    assert comparable.varied([one, two], ()) == ["gpus"]
    others = [records.as_record(records.vision(gpus=2, batch_size=size)) for size in (8, 16)]
    assert comparable.varied([one, *others], ()) == ["gpus", "batch_size", "global_batch_size"]
    given = records.as_record(trained(2, batch_size_asked=None))  # then it is a setting of its own
    assert comparable.reference(given, [one], gpus=1) is None
    tuned = [records.as_record(records.llm(gpus=gpus, global_batch_size=8, batch_size=2,
                                           gradient_accumulation_steps=4 // gpus, recipe="distributed"))
             for gpus in (1, 2)]  # fmt: skip
    assert comparable.reference(tuned[1], tuned, gpus=1) is tuned[0]
    runs = [
        Run(Path(str(place)), columns(Path(str(place)), record))
        for place, record in enumerate((one, two))
    ]
    assert (
        len(grouping.by_setting(runs, ("gpus", "nodes"))) == 1
        and len(grouping.by_setting(runs)) == 2
    )


def test_a_race_vouches_for_the_accuracy_of_one_global_batch():
    def differing(*words: str) -> list[str]:
        return race._differing(
            [SimpleNamespace(config=typed(*words, f"gpus={gpus}")) for gpus in (1, 2)]
        )  # pyright: ignore[reportArgumentType]

    assert differing("global_batch_size=24", ASKED) == [] and differing() == ["gpus"]


@pytest.mark.parametrize(
    ("entry", "one", "other", "differ"),
    [
        ("tune_llm", "engine=torchtune", "engine=trl", ["engine"]),
        ("tune_llm", "warmup_steps=1", "warmup_steps=2", ["warmup_steps"]),
        ("train_vision", "warmup_steps=1", "warmup_steps=2", []),  # which the means leave out
        ("train_vision", "loader=torch", "loader=device", []),
        ("measure_script", "args.lr=0.1", "args.lr=0.2", ["args"]),
    ],
)
def test_a_race_says_what_may_change_accuracy(entry: str, one: str, other: str, differ: list[str]):
    script = ["script=train.py"] if entry == "measure_script" else []
    made = [OmegaConf.to_object(composed(*script, word, entry=entry)) for word in (one, other)]
    cells: Any = [SimpleNamespace(config=config) for config in made]
    assert race._differing(cells) == differ


def test_the_record_has_the_numbers_and_a_sweep_is_resumed(
    called: Called, tmp_path: Path, processes: None
):
    words = [
        "-m",
        *(word for word in SMALL if "batch_size" not in word),
        "global_batch_size=16",
        "gpus=1,2",
    ]
    words += ["model.width=0.35", f"hydra.sweep.dir={tmp_path}"]
    assert called(*words)[0] == 0
    found = sorted(tmp_path.glob("*global_batch_size=16,gpus=*/result.json"))
    made = [records.run_folder.read_run(path.parent).record for path in found]  # pyright: ignore[reportOptionalMemberAccess]
    assert [(record.axes["batch_size"], record.axes["global_batch_size"]) for record in made] == [
        (16, 16),
        (8, 16),
    ]
    assert [record.config["batch_size"] for record in made] == [16, 8]
    assert made[0].epochs[0].steps == made[1].epochs[0].steps == 6
    assert called(*words)[1].count("measured before") == 2


def test_tuning_learns_the_same_on_one_rank_and_on_two(tuned: Any):
    words = ["global_batch_size=4", "batch_size=1", "max_steps=5", "lr=3e-3", FIXED]
    one, two = (ok(tuned(*words, f"gpus={gpus}")) for gpus in (1, 2))
    assert [run["config"]["gradient_accumulation_steps"] for run in (one, two)] == [4, 2]
    assert one["tokens"]["loss_bearing"] == two["tokens"]["loss_bearing"]
    assert np.abs(steps(one, "loss") - steps(two, "loss")).max() < 1e-4
