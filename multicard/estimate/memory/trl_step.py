"""A simulated step of TRL's own trainers, on fake tensors.

`engine.prepared` builds the trainers, here with another model and other batches.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

# This import sets variables that the libraries below read when they are imported.
from multicard.llm.trl import engine, models, text_part

# isort: split
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import DistributedType
from omegaconf import OmegaConf

from multicard.config.llm import Attention, LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.estimate.memory import nf4_layers, torch_internals, tuning_step
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.memory.tracker import Tracker
from multicard.llm import methods, preflight, torchtune_config
from multicard.llm import models as decoders
from multicard.llm.batches import Batch
from multicard.llm.trl import sizes as sizes_of
from multicard.ranks.process import Rank


def run(
    config: LlmConfig, facts: TextFacts, device: torch.device, tracker: Tracker, mesh: Any = None
) -> None:
    """Simulate a tuning step of rank 0 under `tracker`. Call it within `fake(device)`.

    Several ranks also need `fake_ranks`, which yields their mesh. Every token bears loss: on a
    GPU, TRL scores only labeled tokens.
    """
    ranks = str(config.world_size)
    backward = torch.Tensor.backward

    def backward_ending_forward(loss: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        tracker.is_forward = False
        backward(loss, *arguments, **keywords)

    arguments_of = engine.trainer_arguments

    def multi_gpu_arguments(*parameters: Any) -> Any:
        """Return the trainer's arguments, and make accelerate see several GPUs."""
        trainer_arguments = arguments_of(*parameters)
        if device.type == "cuda" and config.world_size > 1:
            multi_gpu_state = {
                "distributed_type": DistributedType.MULTI_GPU,
                "num_processes": config.world_size,
            }
            PartialState._shared_state.update(multi_gpu_state)
        return trainer_arguments

    replacements: dict[str, Any] = {
        "torch.Tensor.backward": backward_ending_forward,
        "multicard.llm.trl.engine.trainer_arguments": multi_gpu_arguments,
        "torch.nn.parallel.DistributedDataParallel": torch_internals.replicated(tracker.note),
        "torch.distributed.fsdp._fully_shard._fully_shard._init_default_mesh": lambda: mesh,
        "multicard.llm.trl.models.build_model": build_without_weights,
        "multicard.llm.trl.models.weights": lambda *_: defaultdict(lambda: torch.zeros(1)),
        "multicard.llm.trl.adapters.adapter_weights": lambda *_: defaultdict(
            lambda: torch.zeros(1)
        ),
        "multicard.llm.trl.models.read_weights": lambda *_: None,
        "multicard.llm.trl.checks.check_logits": lambda *_: None,  # It reads values.
        **torch_internals.TRL_WITHOUT_VALUES,
        **nf4_layers.WITHOUT_VALUES,
        **(torch_internals.TRL_ON_GPU | nf4_layers.ON_GPU if device.type == "cuda" else {}),
    }
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    variables["ACCELERATE_TORCH_DEVICE"] = str(device)
    rank = Rank(0, 0, config.world_size, device, "gloo", 1)
    with (
        mock.patch.dict("os.environ", variables),
        torch_internals.patched(replacements),
        TemporaryDirectory() as folder,
        tracker,
        engine_on_equal_batches(
            config, facts, rank, Path(folder), 1, lambda: batch(config, facts, device, tracker)
        ) as tuning,
    ):
        tracker.note_model(tuning.model)
        tracker.note(nf4_layers.scales(tuning.model), "weights")
        if isinstance(config.model, HfConfig):
            tracker.sizes = sizes_of.of_model(tuning.trainer.model)
        tuning.model.register_forward_pre_hook(lambda *_: setattr(tracker, "is_forward", True))
        tracker.make_states(*tuning.optimizers)
        tracker.restart_peak()
        tuning.train(config.epochs)


@contextmanager
def engine_on_equal_batches(
    config: LlmConfig,
    facts: TextFacts,
    rank: Rank,
    folder: Path,
    steps: int,
    batch: Callable[[], Batch],
) -> Iterator[engine.TrlEngine]:
    """Yield the engine for a few steps on equal batches, without measuring them."""
    per_step = config.gradient_accumulation_steps
    loader = tuning_step.EqualBatches(batch, steps * per_step)
    inputs = preflight.Inputs(
        [{}] * steps * per_step * config.batch_size * rank.world_size, None, facts.vocabulary
    )
    cfg: dict[str, Any] = {}  # A folder's model needs no torchtune configuration.
    if not isinstance(config.model, HfConfig):
        cfg = torchtune_config.torchtune_config(config, rank.device.type, inputs, folder)
    report = SimpleNamespace(folder=folder, content=SimpleNamespace())
    probe: Any = SimpleNamespace(
        config=config, rank=rank, report=report, pad_id=0, ranges=None, batches=iter
    )
    probe.log = probe.end_epoch = lambda *_: None
    with (
        mock.patch.object(engine, "build_loader", lambda *_: loader),
        engine.prepared(probe, cfg, OmegaConf.create()) as tuning,
    ):
        yield tuning


def batch(config: LlmConfig, facts: TextFacts, device: torch.device, tracker: Tracker) -> Batch:
    """Return a full batch of the longest rows on the device, like `engine.build_loader`.

    Packed rows have no mask.
    """
    full_batch = tuning_step.batch(config, facts, device, tracker)
    return (
        full_batch
        if isinstance(full_batch, tuple)
        else {name: part for name, part in full_batch.items() if name != "mask"}
    )


def build_without_weights(
    config: LlmConfig, cfg: dict[str, Any], device: torch.device, empty: bool
) -> Any:
    """Replace `models.build_model`, leaving out the weights.

    Args:
        empty: True for a model on "meta", even of a folder: the shards are the same.
    """
    dtype = models.DTYPES[config.formats.weights]
    options: dict[str, Any] = {"dtype": dtype}
    if config.attention is not Attention.auto:  # sdpa or eager: others are simulated as sdpa.
        options["attn_implementation"] = str(config.attention)
    is_nf4 = methods.chosen(config).nf4
    if isinstance(config.model, HfConfig):
        with models.refuse_unreadable(config.model):
            sizes = transformers.AutoConfig.from_pretrained(
                Path(str(config.model.path)).expanduser()
            )
    else:
        options.setdefault("attn_implementation", "sdpa")
        fields = decoders.hugging_face_config(config.model, cfg["model"]["vocab_size"])
        sizes = transformers.AutoConfig.for_model(**fields)
    vars(sizes).pop("quantization_config", None)  # The quantized weights are not read.
    with torch.device("meta") if empty and not is_nf4 else device:
        model = text_part.reader_of(sizes).from_config(sizes, **options)
    if not is_nf4:
        return model
    return nf4_layers.quantised(
        model, models.nf4_config(dtype, models.DTYPES[config.formats.products]), device
    )
