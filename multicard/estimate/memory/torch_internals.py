"""Imitations of torch, torchao and torchtune internals, whose names may change without notice.

They make fake tensors behave as on a GPU that does not exist, in several ranks that exchange
nothing. Each name is written in full, as an import, an attribute or a target to patch:
`tests/estimate/test_predict_memory.py` looks up each and reports names that a new release lacks.
Patches affect the whole process, so use this module in a separate process.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # gives collectives on fake tensors
from torch import nn
from torch._C import (
    DispatchKey,
    DispatchKeySet,
    _ExcludeDispatchKeyGuard,
)  # pyright: ignore[reportPrivateImportUsage]
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.distributed import (
    _DEFAULT_FIRST_BUCKET_BYTES,  # pyright: ignore[reportPrivateImportUsage]
    _compute_bucket_assignment_by_size,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.attention.flex_attention import BlockMask
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only

from multicard.messages import Message

GPU = torch.device("cuda:0")
CPU = torch.device("cpu")
HALVES = (torch.float16, torch.bfloat16)
MIB = 1 << 20
aten: Any = torch.ops.aten


@contextmanager
def patched(values: Mapping[str, Any]) -> Iterator[None]:
    """Replace attributes, given by full names, until exit."""
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch(name, value))
        yield


# ---- tensors without values


class Mode(FakeTensorMode):
    """Fake tensors whose values read as zero.

    For the loss scaling of fp16, zero means "no overflow". A recipe gets a loss to log. Shapes that
    depend on values still raise.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(allow_non_fake_inputs=True)  # For constants such as torch.tensor(0.0).
        self.device = device

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            self.device.type == "cuda"
            and kwargs
            and getattr(kwargs.get("device"), "type", "") == "meta"
        ):
            # C++ asks for "a scalar on this tensor's device", and it believed the device to be meta.
            kwargs = {**kwargs, "device": self.device}
        if func in (torch.ops.aten._fused_sgd_.default, torch.ops.aten._fused_sgd_.tensor_lr):
            return None  # It only works in place, and fake tensors do not support it.
        # A mask selects labeled tokens here. Assume that it selects all of them.
        if func is aten.nonzero.default:
            return args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
        # A product of experts. Fake tensors support it only in bf16.
        if func is aten._grouped_mm.default:
            return args[0].new_empty(grouped_shape(*args[:3]))
        try:
            return super().dispatch(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            dtype = args[0].dtype
            return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0
        # Fake tensors try real tensors for operators that they do not support.
        except RuntimeError as error:
            # There is no driver, or the GPUs are hidden from this process.
            if not any(
                reason in str(error) for reason in ("NVIDIA driver", "No CUDA GPUs are available")
            ):
                raise
            sentence = f"torch has no {func} for tensors without values"
            raise NotImplementedError(
                Message("memory.no-operator", sentence, operator=str(func))
            ) from None


def grouped_shape(
    left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor | None = None
) -> tuple[int, ...]:
    """Return the shape of torch's `grouped_mm`: one product per group.

    One operand may hold all groups along one dimension.

    Args:
        left: (groups, M, K), (M of all groups, K), or (M, K of all groups) with a right operand of
            two dimensions.
        right: (groups, K, N), (K, N of all groups), or (K of all groups, N).
        ends: (groups,), the end of each group in that dimension.
    """
    if left.dim() == 2 and right.dim() == 2:
        assert ends is not None
        return (ends.shape[0], left.shape[0], right.shape[1])
    if left.dim() == right.dim():
        return (left.shape[0], left.shape[1], right.shape[2])
    return (left.shape[-2], right.shape[-1])


@contextmanager
def fake(device: torch.device) -> Iterator[None]:
    """Make tensors on `device` fake until exit: they have no values and take no memory.

    Python and the dispatcher see a fake tensor's device as the GPU. C++ sees `meta`, because
    autograd would otherwise ask for a stream of a GPU. Therefore C++ autocast ignores these
    tensors, and `cuda_autocast` casts instead. Attention would fall back, and `attention` replaces
    it. `simulate` asserts that both happened.
    """
    make = torch.Tensor._make_subclass

    def make_subclass(
        cls: Any, data: torch.Tensor, requires_grad: bool = False, **keywords: Any
    ) -> torch.Tensor:
        if issubclass(cls, FakeTensor):
            keywords["dispatch_device"] = False
        return make(cls, data, requires_grad, **keywords)

    as_if_cuda: dict[str, Any] = {
        "torch.Tensor._make_subclass": staticmethod(make_subclass),
        "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
        "torch.cuda.is_bf16_supported": lambda *_, **__: True,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.get_device_capability": lambda *_: (9, 0),
        "torch.nn.functional.scaled_dot_product_attention": attention,
    }
    is_cuda = device.type == "cuda"
    with (
        patched(as_if_cuda if is_cuda else {}),
        cuda_autocast() if is_cuda else nullcontext(),
        Mode(device),
    ):
        yield


# ---- autocast("cuda"): torch's C++ casts only tensors whose device it sees as CUDA, and gives no
# warning. Here Python makes the same casts at the same place: the dispatcher's key AutocastCUDA.

# The policies of autocast on CUDA (pytorch.org/docs/stable/amp.html, "CUDA Op-Specific Behavior")
# for the operators that image classifiers and their losses call.
AUTOCAST_POLICIES = {
    "lower": (
        "addmm baddbmm bmm conv1d conv2d conv3d conv_transpose2d.input convolution einsum linear"
        " matmul mm mv prelu"
    ),
    "fp32": (
        "exp group_norm layer_norm log logsumexp native_layer_norm nll_loss nll_loss2d"
        " pow.Tensor_Scalar pow.Tensor_Tensor reciprocal rsqrt softplus upsample_bilinear2d"
        " upsample_nearest2d"
    ),
    # The result type is set if the caller names none.
    "fp32 result": "cumsum linalg_vector_norm log_softmax.int prod softmax.int sum sum.dim_IntList",
}


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Make autocast of GPUs cast fake tensors too, until exit.

    torch still handles the policy for mixed types, which widens if an operator's arguments differ.
    No model here mixes types.
    """
    # Copies of weights, kept until autocast ends, by the weight's id: (weight, its copy).
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        copies.clear()
        clear()

    library = torch.library.Library("aten", "IMPL")
    for policy, names in AUTOCAST_POLICIES.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            kernel = _casting_kernel(
                getattr(getattr(aten, packet), overload or "default"), policy, copies
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that a kernel is overridden.
                library.impl(name, kernel, "AutocastCUDA", allow_override=True)
    try:
        with mock.patch.object(torch, "clear_autocast_cache", clear_both):
            yield
    finally:
        library._destroy()


def _casting_kernel(operator: Any, policy: str, copies: dict[int, Any]) -> Callable[..., Any]:
    """Return an operator that first casts its arguments by a policy."""
    excluded_key = DispatchKeySet(DispatchKey.AutocastCUDA)
    names = [argument.name for argument in operator._schema.arguments]

    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        is_cast = tensor.is_floating_point() and tensor.dtype is not torch.float64
        if not is_cast or tensor.dtype is dtype or tensor.device.type != "cuda":
            return tensor
        is_weight = (
            policy == "lower"
            and tensor.requires_grad
            and tensor.is_leaf
            and tensor.dtype is torch.float32
        )
        if not (is_weight and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor, tensor.to(dtype)
        return copies[id(tensor)][1]

    def kernel(*args: Any, **keywords: Any) -> Any:
        with _ExcludeDispatchKeyGuard(excluded_key):
            if policy == "fp32 result":
                dtype_index = names.index("dtype")
                requested_dtype = (
                    keywords.get("dtype") if len(args) <= dtype_index else args[dtype_index]
                )
                if requested_dtype is None and args[0].dtype in HALVES:
                    args, keywords = args[:dtype_index], keywords | {"dtype": torch.float32}
                return operator(*args, **keywords)
            dtype = torch.get_autocast_dtype("cuda") if policy == "lower" else torch.float32
            args, keywords = tree_map_only(
                torch.Tensor, lambda tensor: cast(tensor, dtype), (args, keywords)
            )
            return operator(*args, **keywords)

    return kernel


# ---- attention: without a GPU, torch silently falls back to `math`, which keeps matrices of
# sequence x sequence.


class PackedMask(BlockMask):
    """Replaces flex attention's block mask, which torchtune builds from packed rows on a GPU.

    The mask is computed from `row_numbers` (B, S) int64. Its blocks of 128 x 128 are too few to
    count.
    """

    def __init__(self, row_numbers: torch.Tensor) -> None:
        self.row_numbers = row_numbers

    def to(self, *_: Any, **__: Any) -> "PackedMask":
        return self


class FusedAttention(torch.autograd.Function):
    """Holds the tensors that flash, memory-efficient and compiled flex attention keep.

    These are their inputs, their output, the log-sums of each query in float32, and the bias that
    memory-efficient attention makes from a mask.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        output = torch.empty_like(query)
        log_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, log_sums, bias)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Replace `scaled_dot_product_attention` by the kernels of GPUs since Ampere.

    Attention is fused, except for float64. Query, key and value have the shape (B, heads, S,
    width). The bias made from a mask has their type, and its rows are padded to a multiple of 16.
    """
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    if dtype is torch.float64:
        math: Any = torch.ops.aten._scaled_dot_product_attention_math
        return math(query, key, value, None, dropout_p, is_causal)[0]
    query, key, value = (part.to(dtype) for part in (query, key, value))
    bias = None
    if isinstance(attn_mask, torch.Tensor):
        bias = query.new_empty((*attn_mask.shape[:-1], -(-attn_mask.shape[-1] // 16) * 16))
    return FusedAttention.apply(query, key, value, bias)  # pyright: ignore[reportReturnType]


def torchtune_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **_: Any
) -> torch.Tensor:
    """Compute attention with the signature that torchtune's layer calls."""
    return attention(q, k, v, mask)


def torchtune_on_gpu() -> dict[str, Any]:
    """Return patches (`patched`) that make torchtune find a GPU."""
    return {
        "torchtune.utils.get_device": lambda device: GPU,
        "torchtune.utils._device._SUPPORTS_FLEX_ATTENTION": True,
        "torchtune.utils._device.BlockMask": PackedMask,
        "torchtune.modules.attention._sdpa_or_flex_attention": lambda: torchtune_attention,
        "torchtune.training.precision.verify_bf16_support": lambda: True,
    }


def _has_same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if a conversion changed nothing: C++ copies even then, as it sees a fake GPU as "meta"."""
    return (
        one.device == other.device and one.dtype == other.dtype and one.stride() == other.stride()
    )


def apply_without_swap(
    module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """Replace `nn.Module._apply`, which swaps tensors in place. Fake tensors refuse this."""
    parameters: dict[int, nn.Parameter] = {}  # By the old parameter's id: modules may share it.
    for part in module.modules() if recurse else [module]:
        for name, value in part._parameters.items():
            if value is not None and id(value) not in parameters:
                changed = change(value)
                is_unchanged = changed is value or _has_same_layout(changed, value)
                parameters[id(value)] = (
                    value if is_unchanged else nn.Parameter(changed.detach(), value.requires_grad)
                )
            part._parameters[name] = None if value is None else parameters[id(value)]
        for name, value in part._buffers.items():
            part._buffers[name] = value if value is None else change(value)
    return module


# Patches (`patched`) for TRL's trainers. accelerate identifies parameters by their addresses.
TRL_WITHOUT_VALUES: dict[str, Any] = {
    "torch.nn.Module._apply": apply_without_swap,
    "torch.Tensor.data_ptr": lambda tensor: tensor.untyped_storage()._cdata,
    "trl.trainer.base_trainer._BaseTrainer._send_telemetry": lambda _: None,
}
NO_KERNEL = defaultdict(
    lambda: lambda *_, **__: None
)  # Maps every grid to a function without effect.
# Patches that make TRL's trainers find a GPU. Their loss works in place there, on one tile and on
# gradients in float32.
TRL_ON_GPU: dict[str, Any] = {
    "torch.cuda.set_device": lambda _: None,
    "trl.kernels.chunked_logprob._forward_kernel": NO_KERNEL,
    "trl.kernels.chunked_logprob._backward_kernel": NO_KERNEL,
    "trl.kernels.chunked_logprob._addmm_fp32": lambda *_: None,
}


# ---- several ranks in one process


# Replaces `torch.cuda` for FSDP: nothing waits for its streams and events.
FAKE_CUDA = mock.MagicMock(current_device=lambda: 0, device_count=lambda: 8)
FSDP_ON_GPU: dict[str, Any] = {
    "torch.distributed.device_mesh._get_device_handle": lambda *_: FAKE_CUDA,
    "torch.distributed.fsdp._fully_shard._fsdp_collectives._get_device_handle": lambda *_: (
        FAKE_CUDA
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_init._get_device_handle": lambda *_: FAKE_CUDA,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group._get_device_handle": lambda *_: (
        FAKE_CUDA
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_state._get_device_handle": lambda *_: FAKE_CUDA,
    # C++ reports that a DTensor on fake tensors is on meta.
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._validate_no_meta_params": (
        lambda *_: None
    ),
    "torch.accelerator.current_stream": mock.MagicMock(),
    "torch.optim.optimizer._get_fused_kernels_supported_devices": lambda: ["cuda", "meta", "cpu"],
}


@contextmanager
def fake_ranks(count: int, device: torch.device) -> Iterator[Any]:
    """Join a group of `count` ranks as its rank 0, and yield the device mesh to shard over.

    Enter it before fake tensors, because a mesh reads its ranks' values.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        with patched(FSDP_ON_GPU if device.type == "cuda" else {}):
            yield dist.device_mesh.init_device_mesh(device.type, (count,))
    finally:
        dist.destroy_process_group()


def pausing_for_sharding_propagation(pause: Callable[[bool], None]) -> Any:
    """Return a patch that calls `pause(True)` and `pause(False)` around sharding propagation.

    To know the result's shape, DTensor tries each new operator on fake tensors of the full shapes.
    """
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagate_paused(propagator: Any, *arguments: Any) -> Any:
        pause(True)
        try:
            return propagate(propagator, *arguments)
        finally:
            pause(False)

    return mock.patch.object(
        ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate_paused
    )


def ddp_buckets(parameters: Sequence[torch.Tensor], cap_mb: float) -> list[list[int]]:
    """Return the parameters' indices in each of DDP's buckets.

    Buckets fill in the order in which gradients come, up to `cap_mb` MiB. The first holds 1 MiB.
    """
    order = list(range(len(parameters)))[::-1]
    limits = [min(_DEFAULT_FIRST_BUCKET_BYTES, int(cap_mb * MIB)), int(cap_mb * MIB)]
    buckets, _ = _compute_bucket_assignment_by_size([parameters[i] for i in order], limits)  # pyright: ignore[reportArgumentType]
    return [[order[i] for i in bucket] for bucket in buckets]


def replicated(note: Callable[[Any, str], None]) -> type[nn.Module]:
    """Return a replacement for DistributedDataParallel with the same buckets.

    A flat bucket adds to the gradients of each group of parameters. With `gradient_as_bucket_view`,
    it replaces them.

    Args:
        note: is called with each bucket and its kind.
    """

    class Replicated(nn.Module):
        def __init__(
            self,
            module: nn.Module,
            bucket_cap_mb: float = 25,
            gradient_as_bucket_view: bool = False,
            **_: Any,
        ) -> None:
            super().__init__()
            self.module = module
            parameters = [p for p in module.parameters() if p.requires_grad]
            self.buckets: list[torch.Tensor] = []
            for members in ddp_buckets(parameters, bucket_cap_mb):
                bucket_parameters = [parameters[i] for i in members]
                size = sum(p.numel() for p in bucket_parameters)
                bucket = torch.empty(
                    size, dtype=bucket_parameters[0].dtype, device=bucket_parameters[0].device
                )
                self.buckets.append(bucket)
                note(bucket, "buckets")
                if gradient_as_bucket_view:
                    offset = 0
                    for parameter in bucket_parameters:
                        view = bucket.as_strided(parameter.size(), parameter.stride(), offset)
                        parameter.register_post_accumulate_grad_hook(
                            lambda p, view=view: setattr(p, "grad", view)
                        )
                        offset += parameter.numel()

        def forward(self, *arguments: Any, **keywords: Any) -> Any:
            return self.module(*arguments, **keywords)

    return Replicated


# ---- NF4: torchao quantizes by value. torchtune then swaps tensors, which fake tensors refuse.


def nf4_like(weight: torch.Tensor, block_size: int = 64, scaler_block_size: int = 256) -> Any:
    """Return the NF4 tensor that `torchao.dtypes.nf4tensor.to_nf4` makes, without its values."""
    from torchao.dtypes.nf4tensor import NF4Tensor, SubclassTensorArgs

    blocks = weight.numel() // block_size
    offset = int(weight.storage_offset())
    meta = SubclassTensorArgs(
        weight.shape, weight.stride(), offset, weight.dtype, weight.device, weight.requires_grad
    )

    def empty(size: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=weight.device)

    scalers = (
        empty(blocks, torch.int8),
        empty(blocks // scaler_block_size, weight.dtype),
        empty((), weight.dtype),
    )
    values = empty(weight.numel() // 2, torch.uint8), empty(16, weight.dtype)
    make: Any = NF4Tensor
    return make(meta, block_size, blocks, scaler_block_size, *scalers, *values)


def _init_frozen_nf4(
    self: Any,
    in_dim: int,
    out_dim: int,
    bias: bool = False,
    device: Any = None,
    dtype: Any = None,
    **_: Any,
) -> None:
    """Replace `FrozenNF4Linear.__init__`."""
    nn.Linear.__init__(self, in_dim, out_dim, bias=bias, device=device, dtype=dtype)
    if self.bias is not None:
        self.bias.requires_grad_(False)
    self.weight = nn.Parameter(nf4_like(self.weight.detach()), requires_grad=False)


NF4_BY_SHAPE: dict[str, Any] = {
    "torchtune.modules.low_precision.nf4_linear.FrozenNF4Linear.__init__": _init_frozen_nf4,
    "torchtune.modules.low_precision.nf4_linear.to_nf4": nf4_like,
    "torchtune.modules.peft.lora.to_nf4": nf4_like,
}
