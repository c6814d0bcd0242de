"""Cells that share their groups are composed once by Hydra;
each is what Hydra composes of its own overrides.
"""

from collections.abc import Sequence

import pytest
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from multicard import workloads
from multicard.config import CONF
from multicard.sweep.compositions import Compositions, task_of

VISION, TUNING = "train_vision", "tune_llm"
CELLS: dict[str, tuple[str, list[list[str]]]] = {
    "values": (
        VISION,
        [[f"seed={seed}", f"lr={lr}", "epochs=3"] for seed in range(3) for lr in (0.1, 0.02)],
    ),
    "groups": (
        VISION,
        [[f"precision={name}", f"gpus={gpus}"] for name in ("fp32", "bf16") for gpus in (1, 2)],
    ),
    "keys of a group": (
        VISION,
        [["optimizer=adamw", f"optimizer.weight_decay={decay}"] for decay in (0, 0.1)],
    ),
    "a value before its group": (
        VISION,
        [[f"loader.prefetch_factor={many}", "loader=torch"] for many in (2, 4)],
    ),
    "presets": (
        VISION,
        [[f"preset={name}", f"seed={seed}"] for name in ("papers", "fast") for seed in (0, 1)],
    ),
    "an experiment": (
        VISION,
        [["experiment=table2", f"gpus={gpus}", "precision=fp64"] for gpus in (1, 2, 3)],
    ),
    "a named model": (VISION, [["model=resnet18", f"batch_size={size}"] for size in (8, 16)]),
    "lists and texts": (TUNING, [[f"tracker.tags=[a,{tag}]", "name='a b'"] for tag in ("b", "c")]),
    "null and words": (
        TUNING,
        [[f"max_steps={steps}", "model=llama3_tiny"] for steps in ("null", 7)],
    ),
    "dictionaries": (
        TUNING,
        [["dataset=chat", f"dataset.columns={{instruction: {name}}}"] for name in ("a", "b")],
    ),
    "added and deleted": (VISION, [["+hydra.job.env_set.X=1", f"seed={seed}"] for seed in (0, 1)]),
    "Hydra's own": (VISION, [[f"hydra.job.num={jobs}", "seed=1"] for jobs in (1, 2)]),
    "an interpolation": (
        VISION,
        [[f"batch_size={size}", "warmup_steps=${batch_size}"] for size in (8, 16)],
    ),
}


def loader_of(entry: str) -> tuple[ConfigLoaderImpl, DictConfig]:
    """Hydra's loader in a multirun of an entry, and the configuration of the command."""
    workloads.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration(entry, [], RunMode.MULTIRUN)
    assert isinstance(loader, ConfigLoaderImpl)
    return loader, sweep


def as_data(config: DictConfig) -> object:
    return OmegaConf.to_container(config, resolve=False, enum_to_str=True)


@pytest.mark.parametrize("name", CELLS)
def test_each_cell_is_what_hydra_composes(name: str):
    entry, cells = CELLS[name]
    loader, sweep = loader_of(entry)
    assert sweep.name  # of the time of day, which cells take from the command
    compositions = Compositions(loader, sweep)
    for words in [*cells, *reversed(cells)]:  # and one leaves nothing in another
        expected = loader.load_sweep_config(sweep, [*words])
        found = compositions.of(words)
        assert as_data(found.whole) == as_data(expected)
        assert as_data(found.task) == as_data(task_of(expected))
        assert OmegaConf.is_struct(found.task) == OmegaConf.is_struct(task_of(expected))


def composed_by_hydra(monkeypatch: pytest.MonkeyPatch, cells: Sequence[Sequence[str]]) -> int:
    loader, sweep = loader_of(VISION)
    counted = []
    whole = ConfigLoaderImpl.load_sweep_config
    monkeypatch.setattr(
        ConfigLoaderImpl, "load_sweep_config", lambda *args: counted.append(1) or whole(*args)
    )
    compositions = Compositions(loader, sweep)
    for words in cells:
        compositions.of(words)
    return len(counted)


def test_hydra_composes_each_choice_of_groups_once(monkeypatch: pytest.MonkeyPatch):
    cells = [
        [f"seed={seed}", f"precision={name}"] for seed in range(20) for name in ("fp32", "bf16")
    ]
    assert composed_by_hydra(monkeypatch, cells) == 2


@pytest.mark.parametrize("word", ["precision=none_such", "lr=fast", "no_such_key=1", "+lr=1"])
def test_what_hydra_refuses_is_refused_in_its_words(word: str):
    loader, sweep = loader_of(VISION)
    with pytest.raises(HydraException) as expected:
        loader.load_sweep_config(sweep, ["seed=1", word])
    with pytest.raises(HydraException) as found:
        Compositions(loader, sweep).of(["seed=1", word])
    assert str(found.value) == str(expected.value)
