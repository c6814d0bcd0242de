"""The rank's part in tests of tuning: each rank writes its results to `folder/<rank>.pt`."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo.utils
import torch.distributed as dist
from omegaconf import OmegaConf
from torchao.dtypes.nf4tensor import NF4Tensor

from multicard.config.llm import LlmConfig
from multicard.llm import after_tuning, compiling, held_out, int4, model_writer, recipes, tune
from multicard.llm.step_probe import Probe
from multicard.llm.tuning_report import TuningReport
from multicard.observe import diagnosis
from multicard.ranks.process import Rank
from tests.helpers import traces
from tests.helpers.rank_work import full_disk, leave_listeners, lose_the_compiler


def build(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """Set a recipe up as a run does, and save what it built: its loader's pinning,
    and its weights and their kinds.
    """
    if config.distributed and rank.world_size == 1:
        recipes.join_alone("gloo")
    module, recipe_class = recipes.load_recipe(config.recipe_name)
    probe = Probe(rank, config, TuningReport(rank, folder, config))
    with recipes.patched(module, rank.device):
        ours = tune.run_configuration(cfg, folder / ".datasets")
        recipe: Any = recipes.measured_recipe(recipe_class, probe, lambda scheduler, _: scheduler)(
            cfg=OmegaConf.create(ours)
        )
        recipe.setup(cfg=ours)
    kinds, weights = {}, {}
    for name, parameter in recipe._model.named_parameters():
        local = getattr(parameter, "_local_tensor", parameter).detach()
        weights[name] = local.get_original_weight() if isinstance(local, NF4Tensor) else local
        kinds[name] = (type(local).__name__, str(parameter.dtype), bool(parameter.requires_grad))
    linears = {
        n: type(m).__name__
        for n, m in recipe._model.named_modules()
        if isinstance(m, torch.nn.Linear)
    }
    built = {
        "pin_memory": recipe._dataloader.loader.pin_memory,
        "kinds": kinds,
        "linears": linears,
        "weights": weights,
    }
    torch.save(built, folder / f"{rank.rank}.pt")


def tune_in_few_rounds(rank: Rank, *work: Any) -> None:
    """As `tune.tune`, with a single round of ablations of a step each."""
    with mock.patch.object(diagnosis, "ROUNDS", 1), mock.patch.object(diagnosis, "MOST_STEPS", 1):
        tune.tune(rank, *work)


def tune_and_leave_listeners(
    rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]
) -> None:
    with mock.patch.object(after_tuning, "after_tuning", lambda *_: leave_listeners(rank, folder)):
        tune.tune(rank, config, folder, cfg)


def tune_and_count_exchanges(
    rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]
) -> None:
    """As `tune_in_few_rounds`; the calls of FSDP's collectives within the ablations' steps without
    exchange and in all, and whether the weights changed in those steps,
    by nothing but the optimiser's decay and momentum.
    """
    calls, changes, without_exchange = (
        {"alone": 0, "all": 0, "blocks": 0},
        [],
        after_tuning.without_exchange,
    )

    def counting(name: str) -> Any:
        collective = getattr(dist, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            calls["all"] += 1
            return collective(*arguments, **keywords)

        return mock.patch.object(dist, name, call)

    def weights(model: torch.nn.Module) -> list[torch.Tensor]:
        return [
            getattr(p, "_local_tensor", p).detach().clone()
            for p in model.parameters()
            if p.requires_grad
        ]

    @contextmanager
    def watched(model: torch.nn.Module) -> Iterator[None]:
        before, called = weights(model), calls["all"]
        with without_exchange(model):
            yield
        calls["blocks"] += 1
        calls["alone"] += calls["all"] - called
        changes.extend(
            float((a - b).abs().max()) for a, b in zip(weights(model), before, strict=True)
        )

    replaced = mock.patch.object(after_tuning, "without_exchange", watched)
    with counting("all_gather_into_tensor"), counting("reduce_scatter_tensor"), replaced:
        tune_in_few_rounds(rank, config, folder, cfg)
    torch.save(calls | {"most_changed": max(changes)}, folder / f"{rank.rank}.pt")


def tune_and_count_graphs(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """As `tune.tune`, without Inductor; the graphs that were compiled before training,
    and in all.
    """
    compile_now, graphs = compiling.compile_now, []

    def counted(*arguments: Any) -> float:
        result = compile_now(*arguments)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return result

    with (
        mock.patch.dict("os.environ", TORCH_COMPILE_BACKEND="aot_eager"),
        mock.patch.object(compiling, "compile_now", counted),
    ):
        tune.tune(rank, config, folder, cfg)
    torch.save(
        [*graphs, torch._dynamo.utils.counters["stats"]["unique_graphs"]],
        folder / f"{rank.rank}.pt",
    )


def tune_without_a_compiler(
    rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]
) -> None:
    lose_the_compiler(folder)
    tune.tune(rank, config, folder, cfg)


def tune_and_compare(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """As `tune.tune`; what the checks before training changed of the model,
    and how much of it there is to change.
    """
    from multicard.llm.trl import checks

    check, found = checks.check_logits, {}

    def compared(model: Any, config: LlmConfig) -> None:
        before = traces.snapshot(model)
        check(model, config)
        found.update(changed=traces.changes(before, traces.snapshot(model)), compared=len(before))

    with mock.patch.object(checks, "check_logits", compared):
        tune.tune(rank, config, folder, cfg)
    torch.save(found, folder / f"{rank.rank}.pt")


@contextmanager
def failing_in_int4(rank: Rank, fault: str) -> Iterator[None]:
    """Have rank 1 fail once it scores rows in int4: as `weights` are quantised, before a `call` of
    the model, `within` one, as it gets ready (`entry`), or killed by the system (`killed`).
    """
    if rank.rank != 1:
        yield
        return
    entered, computing = list[bool](), int4.computing

    def fails(*_: Any, **__: Any) -> Any:
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError(f"no room: {fault}")

    @contextmanager
    def noting(*arguments: Any) -> Iterator[list[Exception]]:
        if fault == "entry":
            fails()
        with computing(*arguments) as failures:
            entered.append(True)
            yield failures

    def failing_if_entered(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return fails() if entered else function(*arguments, **keywords)

        return call

    places: dict[str, tuple[Any, str]] = {
        "entry": (int4, "weights"),
        "weights": (int4, "weights"),
        "killed": (int4, "weights"),
        "call": (held_out, "padded_collate_sft"),
        "within": (torch.nn.functional, "scaled_dot_product_attention"),
    }
    module, name = places[fault]
    failing = mock.patch.object(module, name, failing_if_entered(getattr(module, name)))
    with mock.patch.object(int4, "computing", noting), failing:
        yield


def tune_and_fail_in_int4(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """As `tune.tune`, with the fault that the file `fault` beside the run's folder names."""
    with failing_in_int4(rank, (folder.parent / "fault").read_text()):
        tune.tune(rank, config, folder, cfg)


def tune_and_fail_in_the_evaluation(
    rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]
) -> None:
    """As `tune.tune`; rank 1 fails in the evaluation at the end of the epoch,
    which the run is to have.
    """

    def fails(*_: Any) -> Any:
        raise MemoryError("no room")

    with mock.patch.object(
        held_out.Evaluator, "evaluate", fails if rank.rank == 1 else held_out.Evaluator.evaluate
    ):
        tune.tune(rank, config, folder, cfg)


def tune_on_a_full_disk(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """As `tune.tune`; no file of what is kept can be longer than some kilobytes,
    as on a disk that fills up.
    """
    with full_disk(model_writer, "write_trained"):
        tune.tune(rank, config, folder, cfg)
