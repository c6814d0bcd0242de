"""The rank's part in tests of tuning: each rank writes its results to `folder/<rank>.pt`."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo.utils
from omegaconf import OmegaConf
from torchao.dtypes.nf4tensor import NF4Tensor

from multicard.bottleneck import ablations
from multicard.config.llm import LlmConfig
from multicard.llm import precompile, recipes, tune
from multicard.llm.rank_report import TuningReport
from multicard.llm.step_probe import Probe
from multicard.ranks.process import Rank


def build(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """Set a recipe up as a run does, and save what it built: its loader's pinning, and its weights and their kinds."""
    if config.distributed and rank.world_size == 1:
        recipes.join_alone("gloo")
    module, recipe_class = recipes.load(config.recipe_name)
    probe = Probe(rank, config, TuningReport(rank, folder, {}))
    with recipes.patched(module, rank.device):
        ours = tune.run_configuration(cfg, folder / ".datasets")
        recipe: Any = recipes.measured(recipe_class, probe, lambda scheduler, _: scheduler)(cfg=OmegaConf.create(ours))
        recipe.setup(cfg=ours)
    kinds, weights = {}, {}
    for name, parameter in recipe._model.named_parameters():
        local = getattr(parameter, "_local_tensor", parameter).detach()
        weights[name] = local.get_original_weight() if isinstance(local, NF4Tensor) else local
        kinds[name] = (type(local).__name__, str(parameter.dtype), bool(parameter.requires_grad))
    linears = {n: type(m).__name__ for n, m in recipe._model.named_modules() if isinstance(m, torch.nn.Linear)}
    built = {"pin_memory": recipe._dataloader.loader.pin_memory, "kinds": kinds, "linears": linears, "weights": weights}
    torch.save(built, folder / f"{rank.rank}.pt")


def tune_in_few_rounds(rank: Rank, *work: Any) -> None:
    """As `tune.tune`, with a single round of ablations of a step each."""
    with mock.patch.object(ablations, "ROUNDS", 1), mock.patch.object(ablations, "MOST_STEPS", 1):
        tune.tune(rank, *work)


def tune_and_count_graphs(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """As `tune.tune`, without Inductor; the graphs that were compiled before training, and in all."""
    compile_now, graphs = precompile.compile_now, []

    def counted(*arguments: Any) -> dict[str, Any]:
        result = compile_now(*arguments)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return result

    with (
        mock.patch.dict("os.environ", TORCH_COMPILE_BACKEND="aot_eager"),
        mock.patch.object(precompile, "compile_now", counted),
    ):
        tune.tune(rank, config, folder, cfg)
    torch.save([*graphs, torch._dynamo.utils.counters["stats"]["unique_graphs"]], folder / f"{rank.rank}.pt")
