"""Build models of transformers for `engine=trl`, with their weights.

Models that torchtune also builds get the same weights as there.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from accelerate import init_empty_weights
from bitsandbytes.nn.modules import Linear4bit
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear
from transformers import core_model_loading

from multicard.config.llm import Attention, LlmConfig
from multicard.config.llm_models import DecoderConfig, HfConfig
from multicard.llm import methods, models
from multicard.llm.drawn_weights import DTYPES, weights
from multicard.llm.parts import TensorPart
from multicard.llm.trl import adapters
from multicard.llm.trl.adapters import transformers_name
from multicard.llm.trl.stored_tensors import check_loaded, check_shape, check_ties
from multicard.llm.trl.text_part import reader_of
from multicard.messages import Refusal
from multicard.ranks.failures import is_oom

# transformers' names, if they differ from multicard's.
ATTENTION = {Attention.flash: "flash_attention_2", Attention.flex: "flex_attention"}
FLASH_CAPABILITY = (8, 0)  # The lowest compute capability that FlashAttention 2 supports.


def build_model(config: LlmConfig, cfg: dict[str, Any], device: torch.device, empty: bool) -> Any:
    """Return the model on the device, without adapters and with the weights of torchtune's model.

    Args:
        empty: True if the parameters should be on "meta", to be filled after sharding. With NF4, or
            with random weights for a folder's configuration, the weights are created nevertheless.
    """
    dtype = DTYPES[config.formats.weights]
    options: dict[str, Any] = {"dtype": dtype}
    if config.attention is not Attention.auto:
        options["attn_implementation"] = ATTENTION.get(config.attention, str(config.attention))
    if methods.chosen(config).nf4:
        options["quantization_config"] = nf4_config(dtype, DTYPES[config.formats.products])
    empty = empty and not methods.chosen(config).nf4
    if isinstance(config.model, HfConfig):
        with refuse_unreadable(config.model):
            sizes = sizes_of(str(config.model.path))
            check_kind(sizes)
        check_attention(sizes, config, device)
        with refuse_unreadable(config.model):
            return model_of_folder(config.model, config.seed, device, options, empty)
    sizes = transformers.AutoConfig.for_model(
        **models.hugging_face_config(config.model, cfg["model"]["vocab_size"])
    )
    check_attention(sizes, config, device)
    if empty:
        return build_on_meta(sizes, device, options)
    if config.model.folder is not None:
        return read_model(config.model, options | {"device_map": {"": device}})
    weights_by_name = weights(config, cfg, device)
    return model_of_weights(
        sizes,
        device,
        options,
        {name: weights_by_name[name] for name in weights_by_name if "lora" not in name},
    )


def sizes_of(folder: str) -> Any:
    """Return the configuration of a folder, without asking whether to run code that it brings."""
    return transformers.AutoConfig.from_pretrained(
        Path(folder).expanduser(), trust_remote_code=False
    )


def check_kind(sizes: Any) -> None:
    """Refuse (ValueError) a configuration of another kind of model."""
    if type(sizes) not in reader_of(sizes)._model_mapping:
        raise Refusal(
            "llm.folder-kind",
            f"transformers has no causal language model of the type {sizes.model_type}",
            type=sizes.model_type,
        )


def check_attention(sizes: Any, config: LlmConfig, device: torch.device) -> None:
    """Refuse (ValueError) an attention that transformers lacks for the model or the GPU."""
    model_class: Any = reader_of(sizes)._model_mapping[type(sizes)]
    supported = {
        Attention.sdpa: model_class._supports_sdpa,
        Attention.flash: model_class._supports_flash_attn,
        Attention.flex: model_class._supports_flex_attn,
    }
    if not supported.get(config.attention, True):
        raise Refusal(
            "llm.attention-unknown",
            f"attention={config.attention}: transformers has no such attention for"
            f" {model_class.__name__}; use `attention=auto`",
            key="attention",
            value=config.attention,
            model=model_class.__name__,
        )
    if (
        config.attention is Attention.flash
        and torch.cuda.get_device_capability(device) < FLASH_CAPABILITY
    ):
        raise Refusal(
            "llm.flash-gpu",
            "attention=flash: needs a GPU of compute capability 8.0 (Ampere) or more; use"
            " `attention=sdpa`",
            key="attention",
        )


def build_on_meta(sizes: Any, device: torch.device, options: dict[str, Any]) -> Any:
    """Return the model with its parameters on "meta", and its computed buffers on the device."""
    with device, init_empty_weights():
        model = reader_of(sizes).from_config(sizes, **options)
    model.tie_weights()
    return model


def read_model(model: DecoderConfig, options: dict[str, Any]) -> Any:
    """Return the model of a folder with the folder's weights.

    Raises:
        ValueError: A weight is missing, has another shape than config.json says, or belongs to
            no part of the model.
    """
    folder = Path(str(model.folder)).expanduser()
    auto = reader_of(sizes_of(str(folder)))
    options = options | {
        "trust_remote_code": False,
        "use_safetensors": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,
    }
    # transformers would collect errors, running out of memory too, for a report of its own.
    with mock.patch.object(
        core_model_loading, "log_conversion_errors", lambda *_, **__: nullcontext()
    ):
        result: Any = auto.from_pretrained(folder, **options)
    check_loaded(*result)
    return result[0]


def fill_shards(
    model: nn.Module, config: LlmConfig, cfg: dict[str, Any], device: torch.device
) -> None:
    """Allocate a sharded model, and fill each parameter with its shard of the weight.

    Only one whole weight is in memory at a time.
    """
    shard_device = torch.device("cpu") if config.offloads else device

    def allocate(tensor: Tensor) -> Tensor:
        """Allocate a tensor on "meta": a shard on its home device, a buffer on the GPU."""
        if not tensor.is_meta:
            return tensor
        return torch.empty_like(
            tensor, device=shard_device if isinstance(tensor, DTensor) else device
        )

    model._apply(allocate)
    tensors_by_name = {
        transformers_name(name): tensor
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }

    untaken = dict[str, Tensor]()

    def fill_parameter(name: str, whole_weight: torch.Tensor) -> None:
        parameter = tensors_by_name.get(name)
        if parameter is None:  # Only one of two tied weights is a parameter.
            untaken[name] = whole_weight
            return
        check_shape(name, whole_weight.shape, parameter.shape)
        if isinstance(parameter, DTensor):
            whole_weight = distribute_tensor(
                whole_weight.to(device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
        with torch.no_grad():
            parameter.copy_(whole_weight)

    if config.model.folder is not None:
        read_weights(config.model, DTYPES[config.formats.weights], fill_parameter)
        with refuse_unreadable(config.model):
            check_ties(model, tensors_by_name, untaken)
    weights_by_name = (
        weights(config, cfg, device)
        if config.model.folder is None
        else adapters.adapter_weights(model, config, cfg, device)
    )
    for name, weight in weights_by_name.items():
        fill_parameter(name, weight[...])


def read_weights(
    model: DecoderConfig, dtype: torch.dtype, receive: Callable[[str, torch.Tensor], None]
) -> None:
    """Pass each weight of a folder to `receive`, with its name in the model, one after another.

    transformers converts the weights while it reads them into a model on "meta". The weights are
    taken from it before it stores them. Its loading threads are turned off, so that only one weight
    is in memory.
    """

    def take_weight(
        _: Any, name: str, whole_weight: torch.Tensor, loading_info: Any, __: Any
    ) -> None:
        loading_info.missing_keys.discard(name)
        receive(name, whole_weight)

    without_threads = mock.patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1")
    with (
        refuse_unreadable(model),
        without_threads,
        mock.patch.object(core_model_loading, "set_param_for_module", take_weight),
    ):
        read_model(model, {"dtype": dtype})


def model_of_weights(
    sizes: Any, device: torch.device, options: dict[str, Any], state: dict[str, Any]
) -> Any:
    """Return the model with these weights. Each is read, and quantised, separately."""
    model_class: Any = reader_of(sizes)._model_mapping[type(sizes)]
    return model_class.from_pretrained(
        None, config=sizes, state_dict=state, device_map={"": device}, **options
    )


def nf4_config(dtype: torch.dtype, products: torch.dtype) -> transformers.BitsAndBytesConfig:
    """Return bitsandbytes' configuration of NF4 for all linears except the output.

    As in torchao, 64 weights share a scale, and the scales are quantised too.
    """
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=products,
        bnb_4bit_quant_storage=dtype,  # FSDP needs the same type for all tensors that it shards.
    )


def model_of_folder(
    hf_config: HfConfig, seed: int, device: torch.device, options: dict[str, Any], empty: bool
) -> Any:
    """Return a model that transformers builds from a folder's config.json."""
    if hf_config.folder is not None and not empty:
        return read_model(hf_config, options | {"device_map": {"": device}})
    sizes = sizes_of(str(hf_config.path))
    if hf_config.folder is not None:
        return build_on_meta(sizes, device, options)
    # It describes the folder's weights, which are not read.
    vars(sizes).pop("quantization_config", None)
    transformers.set_seed(seed)  # All ranks draw the same weights.
    quantization_config = options.pop("quantization_config", None)
    with device:
        model = reader_of(sizes).from_config(sizes, **options)
    if quantization_config is None:
        return model
    return model_of_weights(
        sizes, device, options | {"quantization_config": quantization_config}, model.state_dict()
    )


@contextmanager
def refuse_unreadable(model: DecoderConfig, reader: str = "transformers") -> Iterator[None]:
    """Refuse (ValueError) a folder whose causal language model transformers or TRL cannot read."""
    try:
        yield
    except (AttributeError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if is_oom(error):
            raise
        key, value = (
            ("model.path", model.path)
            if isinstance(model, HfConfig)
            else ("model.weights", model.weights)
        )
        cause = (
            error.message if isinstance(error, Refusal) else str(error).strip().partition("\n")[0]
        )
        raise Refusal(
            "llm.folder-unread",
            f"{key}={value}: {reader} cannot read it ({cause}); give another folder",
            key=key,
            value=value,
            reader=reader,
            reason=cause,
        ) from None


def layer_counts(model: nn.Module) -> dict[str, int]:
    """Count the weights in NF4, the linears with fake quantisation, and the hidden parameters.

    Hidden parameters are those that `numel()` of NF4 tensors does not count (see
    `hidden_parameters`).
    """
    parts = list(model.modules())
    nf4_count = sum(isinstance(part, Linear4bit) for part in parts)
    fake_quantised_count = sum(isinstance(part, Int8DynActInt4WeightQATLinear) for part in parts)
    return {
        "nf4_tensors": nf4_count,
        "fake_quantised_linears": fake_quantised_count,
        "hidden": hidden_parameters(parts),
    }


def hidden_parameters(parts: Iterable[nn.Module]) -> int:
    """Return the number of parameters that `numel()` does not count.

    A number of an NF4 tensor packs several parameters.
    """
    nf4_layers = (part for part in parts if isinstance(part, Linear4bit))
    return sum(part.in_features * part.out_features - part.weight.numel() for part in nf4_layers)


def no_tokenizer() -> Any:
    """Return a tokenizer that the trainers require but do not use: rows come as tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "<eos>": 2}, unk_token="<unk>"))
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names)


def whole_model(model: nn.Module) -> dict[str, TensorPart]:
    """Return the weights of a model as its class would store them.

    Tied weights are stored once. Adapters and fake quantisers are left out.
    """
    stored_names = {transformers_name(name) for name in model.state_dict()}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_stored = transformers_name(name) in stored_names
        if is_stored and ".lora_" not in name and "_fake_quantizer." not in name:
            tensors[transformers_name(name)] = tensor
    return {name: TensorPart(tensor) for name, tensor in tensors.items()}
