"""Build models of transformers for `engine=trl`, with their weights and PEFT's adapters.

Models that torchtune also builds get the same weights as there.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import peft.tuners.lora.torchao
import torch
import transformers
from accelerate import init_empty_weights
from bitsandbytes.nn.modules import Linear4bit
from peft import LoraConfig
from peft.utils import transformers_weight_conversion
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.hooks import RemovableHandle
from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer
from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear
from transformers import core_model_loading

from multicard.config.llm import Attention, LlmConfig
from multicard.config.llm_models import DecoderConfig, HfConfig
from multicard.llm import int4, methods, models
from multicard.llm.drawn_weights import DTYPES, weights
from multicard.llm.parts import TensorPart
from multicard.llm.torchtune_components import RandomWeight
from multicard.llm.trl.stored_tensors import check_loaded, check_shape, check_ties
from multicard.llm.trl.text_part import reader_of, text_modules
from multicard.messages import Refusal
from multicard.ranks.failures import is_oom

# transformers' names, if they differ from multicard's.
ATTENTION = {Attention.flash: "flash_attention_2", Attention.flex: "flex_attention"}
FLASH_CAPABILITY = (8, 0)  # The lowest compute capability that FlashAttention 2 supports.

# PEFT rejects the version of torchao that torchtune needs, but uses nothing of it here.
peft.tuners.lora.torchao.is_torchao_available = lambda: False  # pyright: ignore[reportPrivateImportUsage]
# For a mixture of experts that are one tensor, the conversion would adapt the experts instead of
# the linears that the configuration names.
transformers_weight_conversion.convert_peft_config_for_transformers = lambda *_, **__: None


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
        else adapter_weights(model, config, cfg, device)
    )
    for name, weight in weights_by_name.items():
        fill_parameter(name, weight[...])


def transformers_name(name: str) -> str:
    """Return transformers' name of a parameter inside the wrappers of PEFT and accelerate."""
    return re.sub(r"^base_model\.model\.|base_layer\.|_checkpoint_wrapped_module\.", "", name)


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


def linears(model: Any) -> dict[str, nn.Module]:
    """Return the linears of the tuned layers, by name.

    GPT-2's linears are of a class Conv1D. The output is not among them, because TRL's loss reads
    its weights without calling the layer.
    """
    output = model.get_output_embeddings()
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    tuned = text_modules(model)
    return {
        name: part for name, part in tuned.items() if isinstance(part, kinds) and part is not output
    }


def adapter_config(model: nn.Module, config: LlmConfig) -> LoraConfig | None:
    """Return PEFT's configuration of the method's adapters, which only adapt the text part.

    Raises:
        ValueError: The model lacks the linears that the configuration names.
    """
    options = config.method
    if not isinstance(options, methods.LoraConfig):
        return None
    model_linears = linears(model)
    short_names = {name: name.rpartition(".")[2] for name in model_linears}
    if options.adapts_all:
        targets = list(model_linears)
    else:
        names = [
            models.hugging_face_name(f"layers.0.{name}.weight").split(".")[-2]
            for name in methods.adapted_linears(options)
        ]
        model_names = sorted(filter(str.isidentifier, set(short_names.values())))
        if not {*names} <= {*model_names}:
            offered_names = ",".join(
                "output_proj" if name == "o_proj" else name for name in model_names
            )
            raise Refusal(
                "llm.folder-layers",
                f"method={config.method.name}: adapts {', '.join(names)}, but the model"
                f" has {', '.join(model_names)}; choose from them with"
                f" `method.lora_attn_modules=[{offered_names}]` and"
                " `method.apply_lora_to_mlp=false`, or use"
                " `method.lora_attn_modules=all-linear` or `method=full`",
                key="method",
                value=config.method.name,
                asked=names,
                has=model_names,
            )
        targets = [name for name in model_linears if short_names[name] in names]
    return LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # pyright: ignore[reportArgumentType]  PEFT accepts any number.
        use_rslora=options.rslora,
        lora_dropout=options.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def initialise_adapters(
    model: Any, config: LlmConfig, cfg: dict[str, Any], device: torch.device
) -> None:
    """Initialise adapters as torchtune does, and in the run's precision instead of float32."""
    if not isinstance(config.method, methods.LoraConfig):
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[config.formats.weights])
    initial_weights = adapter_weights(model, config, cfg, device)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:  # On "meta", the copy has no effect.
            with torch.no_grad():
                parameter.copy_(initial_weights[transformers_name(name)][...])


def adapter_weights(
    model: nn.Module, config: LlmConfig, cfg: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """Return the initial weights of the adapters by PEFT's names.

    They are torchtune's weights. A model that torchtune cannot build gets weights that are drawn
    in the same way.
    """
    if not isinstance(config.model, HfConfig):
        return {
            name: weight for name, weight in weights(config, cfg, device).items() if "lora_" in name
        }
    dtype = DTYPES[config.formats.weights]
    return {
        transformers_name(name): RandomWeight(
            transformers_name(name).lower(), config.seed, parameter.shape, dtype, device
        )
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }


def simulate_quantisation(model: Any, config: LlmConfig) -> None:
    """Add fake quantisation to the linears, as torchtune does.

    The output is included unless it is tied to the embeddings.
    """
    if isinstance(config.method, methods.QatConfig):
        is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        part = model.base_model if is_tied else model
        dtype = DTYPES[config.formats.weights]
        Int8DynActInt4WeightQATQuantizer(config.method.groupsize, precision=dtype).prepare(part)


def quantise_output(model: Any) -> None:
    """Make TRL's loss read the output's fake-quantised weights.

    The loss reads the weights without calling the layer, and would miss its fake quantisation.
    """
    output: Any = model.get_output_embeddings()
    if not isinstance(output, Int8DynActInt4WeightQATLinear):
        return
    quantise_weight = output.weight_fake_quantizer
    quantise_activations = output.activation_fake_quantizer
    assert quantise_weight is not None and quantise_activations is not None
    _replace_output(model, quantise_weight, quantise_activations)


def _replace_output(
    model: Any,
    quantise_weight: Callable[[Tensor], Tensor],
    quantise_activations: Callable[[Tensor], Tensor],
) -> RemovableHandle:
    """Replace the output that TRL's loss reads, and the activations that it multiplies with it.

    To undo this, remove the returned hook and delete `model.get_output_embeddings`.
    """
    output: Any = model.get_output_embeddings()

    def quantised_output() -> Any:
        whole_weight = (
            output.weight.full_tensor() if isinstance(output.weight, DTensor) else output.weight
        )
        return SimpleNamespace(weight=quantise_weight(whole_weight), bias=output.bias)

    def quantise_result(_: nn.Module, __: Any, result: Any) -> None:
        result.last_hidden_state = quantise_activations(result.last_hidden_state)

    model.get_output_embeddings = quantised_output
    return model.base_model.register_forward_hook(quantise_result)


@contextmanager
def in_int4(model: Any, groupsize: int) -> Iterator[list[Exception]]:
    """Within this context, the model computes as if it were quantised to int4.

    An output that is tied to the embeddings is not quantised. If the model simulates quantisation,
    its output already computes in int4.

    Yields:
        The failures of single layers, as in `int4.computing`.
    """
    with int4.computing(int4.linears(model.base_model), groupsize) as failures:
        is_plain = type(model.get_output_embeddings()) is nn.Linear
        if (
            not is_plain
            or model.get_output_embeddings().weight is model.get_input_embeddings().weight
        ):
            yield failures
            return

        def quantise_weight(whole_weight: Tensor) -> Tensor:
            return int4.unless_failed(
                failures, lambda: int4.weights(whole_weight, groupsize), lambda: whole_weight
            )

        def quantise_activations(inputs: Tensor) -> Tensor:
            return int4.unless_failed(failures, lambda: int4.activations(inputs), lambda: inputs)

        hook = _replace_output(model, quantise_weight, quantise_activations)
        try:
            yield failures
        finally:
            hook.remove()
            del model.get_output_embeddings


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
