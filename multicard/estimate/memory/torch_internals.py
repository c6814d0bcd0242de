"""Imitated internals of torch, torchao and torchtune,
by names that these libraries do not promise to keep.

With it, tensors without values behave as on a GPU that is not there, in several ranks that exchange
nothing. A name is written in full, as an import, an attribute or a target to patch:
`tests/estimate/test_predict_memory.py` looks each of them up, and says which a new release has
lost. Patches are of the whole process: call this in one of its own.
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
    """Within, full names stand for other values."""
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch(name, value))
        yield


# ---- tensors without values


class Mode(FakeTensorMode):
    """Fake tensors whose values read as zero: for fp16's loss scaling "no overflow", for a recipe's
    loss a number to log. Shapes that depend on values are refused as ever.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(allow_non_fake_inputs=True)  # constants, as torch.tensor(0.0)
        self.device = device

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            self.device.type == "cuda"
            and kwargs
            and getattr(kwargs.get("device"), "type", "") == "meta"
        ):
            # C++ asks for "a scalar where this tensor is", and saw meta
            kwargs = {**kwargs, "device": self.device}
        if func in (torch.ops.aten._fused_sgd_.default, torch.ops.aten._fused_sgd_.tensor_lr):
            return None  # it works in place alone, and fake tensors do not know it
        # of a mask by which labelled tokens are taken: all of them
        if func is aten.nonzero.default:
            return args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
        if func is aten._grouped_mm.default:  # of experts; fake tensors know it in bf16 alone
            return args[0].new_empty(grouped_shape(*args[:3]))
        try:
            return super().dispatch(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            dtype = args[0].dtype
            return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0
        # fake tensors try real ones for operators that they do not know
        except RuntimeError as error:
            # no driver, or GPUs that are hidden from this process
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
    """The shape of torch's `grouped_mm`: a product for each group,
    of which a side may hold all in a dimension.

    Args:
        left: (groups, M, K), (M of all groups, K), or (M, K of all groups) beside a right one of
            two dimensions.
        right: (groups, K, N), (K, N of all groups), or (K of all groups, N).
        ends: (groups,) of each group in that dimension.
    """
    if left.dim() == 2 and right.dim() == 2:
        assert ends is not None
        return (ends.shape[0], left.shape[0], right.shape[1])
    if left.dim() == right.dim():
        return (left.shape[0], left.shape[1], right.shape[2])
    return (left.shape[-2], right.shape[-1])


@contextmanager
def fake(device: torch.device) -> Iterator[None]:
    """Within, tensors made on `device` have no values and take no memory.

    A GPU's fake tensors have, for Python and the dispatcher, the GPU as their device, and for C++
    `meta`: autograd would otherwise ask for a stream of a GPU. C++ autocast then leaves them alone,
    which `cuda_autocast` makes up for, and attention falls back, which `attention` replaces;
    `simulate` asserts that both happened.
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


# ---- autocast("cuda"): torch's C++ casts nothing of a tensor whose device it does not see as CUDA,
# and says nothing. Here the same casts are made in Python,
# at the same place: the dispatcher's key AutocastCUDA.

# The policies of autocast on CUDA (pytorch.org/docs/stable/amp.html, "CUDA Op-Specific Behavior")
# for the operators that classifiers of images and their losses call
POLICIES = {
    "lower": (
        "addmm baddbmm bmm conv1d conv2d conv3d conv_transpose2d.input convolution einsum linear"
        " matmul mm mv prelu"
    ),
    "fp32": (
        "exp group_norm layer_norm log logsumexp native_layer_norm nll_loss nll_loss2d"
        " pow.Tensor_Scalar pow.Tensor_Tensor reciprocal rsqrt softplus upsample_bilinear2d"
        " upsample_nearest2d"
    ),
    # asked for a type of their result where the caller names none
    "fp32 result": "cumsum linalg_vector_norm log_softmax.int prod softmax.int sum sum.dim_IntList",
}


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Within, autocast of GPUs casts fake tensors too. Other autocast policies (promotion of mixed
    types) stay torch's: they widen, where the arguments of one operator differ,
    and no model here mixes them.
    """
    # weights until autocast ends: (weight, its copy)
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        copies.clear()
        clear()

    library = torch.library.Library("aten", "IMPL")
    for policy, names in POLICIES.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            kernel = _casting(getattr(getattr(aten, packet), overload or "default"), policy, copies)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a kernel is overridden
                library.impl(name, kernel, "AutocastCUDA", allow_override=True)
    try:
        with mock.patch.object(torch, "clear_autocast_cache", clear_both):
            yield
    finally:
        library._destroy()


def _casting(operator: Any, policy: str, copies: dict[int, Any]) -> Callable[..., Any]:
    """An operator behind the casts of a policy."""
    below = DispatchKeySet(DispatchKey.AutocastCUDA)
    names = [argument.name for argument in operator._schema.arguments]

    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        floats = tensor.is_floating_point() and tensor.dtype is not torch.float64
        if not floats or tensor.dtype is dtype or tensor.device.type != "cuda":
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
        with _ExcludeDispatchKeyGuard(below):
            if policy == "fp32 result":
                place = names.index("dtype")
                named = keywords.get("dtype") if len(args) <= place else args[place]
                if named is None and args[0].dtype in HALVES:
                    args, keywords = args[:place], keywords | {"dtype": torch.float32}
                return operator(*args, **keywords)
            dtype = torch.get_autocast_dtype("cuda") if policy == "lower" else torch.float32
            args, keywords = tree_map_only(
                torch.Tensor, lambda tensor: cast(tensor, dtype), (args, keywords)
            )
            return operator(*args, **keywords)

    return kernel


# ---- attention: without a GPU torch falls back to `math`,
# which keeps matrices of sequence x sequence, in silence


class PackedMask(BlockMask):
    """Stands for flex attention's block mask, which torchtune makes of packed rows on a GPU.

    `row_numbers` (B, S) int64 is what the mask is computed from;
    its blocks of 128 x 128 are too few to count.
    """

    def __init__(self, row_numbers: torch.Tensor) -> None:
        self.row_numbers = row_numbers

    def to(self, *_: Any, **__: Any) -> "PackedMask":
        return self


class FusedAttention(torch.autograd.Function):
    """Tensors that flash attention, memory-efficient attention and compiled flex attention keep:
    their inputs, their output, the log-sums of each query, in float32,
    and the bias that memory-efficient attention makes of a mask.
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
    """torch's `scaled_dot_product_attention` as on a GPU from Ampere on: fused, but for float64.
    (B, heads, S, width) each, the mask of each layer in their type, its rows padded to a multiple
    of 16.
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
    """Attention as torchtune's layer calls it."""
    return attention(q, k, v, mask)


def torchtune_on_gpu() -> dict[str, Any]:
    """Patches (`patched`) by which torchtune finds a GPU."""
    return {
        "torchtune.utils.get_device": lambda device: GPU,
        "torchtune.utils._device._SUPPORTS_FLEX_ATTENTION": True,
        "torchtune.utils._device.BlockMask": PackedMask,
        "torchtune.modules.attention._sdpa_or_flex_attention": lambda: torchtune_attention,
        "torchtune.training.precision.verify_bf16_support": lambda: True,
    }


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True of a tensor that was moved to where it is: C++ makes a copy of it,
    as it takes a fake GPU for "meta".
    """
    return (
        one.device == other.device and one.dtype == other.dtype and one.stride() == other.stride()
    )


def converted(
    module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """`nn.Module._apply`, which swaps tensors in place: fake ones refuse it."""
    made: dict[int, nn.Parameter] = {}  # by the parameter, which modules may share
    for part in module.modules() if recurse else [module]:
        for name, value in part._parameters.items():
            if value is not None and id(value) not in made:
                changed = change(value)
                same = changed is value or _is_alike(changed, value)
                made[id(value)] = (
                    value if same else nn.Parameter(changed.detach(), value.requires_grad)
                )
            part._parameters[name] = None if value is None else made[id(value)]
        for name, value in part._buffers.items():
            part._buffers[name] = value if value is None else change(value)
    return module


# Patches (`patched`) for TRL's trainers: accelerate knows parameters again by their addresses
TRL_WITHOUT_VALUES: dict[str, Any] = {
    "torch.nn.Module._apply": converted,
    "torch.Tensor.data_ptr": lambda tensor: tensor.untyped_storage()._cdata,
    "trl.trainer.base_trainer._BaseTrainer._send_telemetry": lambda _: None,
}
KERNEL = defaultdict(lambda: lambda *_, **__: None)  # by its grid
# By which they find a GPU; its loss works in place there, on a tile and on gradients in float32
TRL_ON_GPU: dict[str, Any] = {
    "torch.cuda.set_device": lambda _: None,
    "trl.kernels.chunked_logprob._forward_kernel": KERNEL,
    "trl.kernels.chunked_logprob._backward_kernel": KERNEL,
    "trl.kernels.chunked_logprob._addmm_fp32": lambda *_: None,
}


# ---- several ranks in one process


# What FSDP asks `torch.cuda` for: streams and events that nothing waits for
CUDA = mock.MagicMock(current_device=lambda: 0, device_count=lambda: 8)
FSDP_ON_GPU: dict[str, Any] = {
    "torch.distributed.device_mesh._get_device_handle": lambda *_: CUDA,
    "torch.distributed.fsdp._fully_shard._fsdp_collectives._get_device_handle": lambda *_: CUDA,
    "torch.distributed.fsdp._fully_shard._fsdp_init._get_device_handle": lambda *_: CUDA,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group._get_device_handle": lambda *_: CUDA,
    "torch.distributed.fsdp._fully_shard._fsdp_state._get_device_handle": lambda *_: CUDA,
    # C++ says of a DTensor on fake tensors that it is on meta
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._validate_no_meta_params": (
        lambda *_: None
    ),
    "torch.accelerator.current_stream": mock.MagicMock(),
    "torch.optim.optimizer._get_fused_kernels_supported_devices": lambda: ["cuda", "meta", "cpu"],
}


@contextmanager
def fake_ranks(count: int, device: torch.device) -> Iterator[Any]:
    """Join a group of `count` ranks as its rank 0. Yields the device mesh to shard over. Enter it
    before fake tensors: a mesh reads its ranks.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        with patched(FSDP_ON_GPU if device.type == "cuda" else {}):
            yield dist.device_mesh.init_device_mesh(device.type, (count,))
    finally:
        dist.destroy_process_group()


def sharding_unseen(pause: Callable[[bool], None]) -> Any:
    """A patch: DTensor tries each new operator on fake tensors of the whole shapes, to know the
    result's; `pause` is told before and after.
    """
    try_out = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(propagator: Any, *arguments: Any) -> Any:
        pause(True)
        try:
            return try_out(propagator, *arguments)
        finally:
            pause(False)

    return mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen)


def ddp_buckets(parameters: Sequence[torch.Tensor], cap_mb: float) -> list[list[int]]:
    """The indices of the parameters of each of DDP's buckets: filled in the order in which
    gradients come, to `cap_mb` MiB, the first to 1 MiB.
    """
    order = list(range(len(parameters)))[::-1]
    limits = [min(_DEFAULT_FIRST_BUCKET_BYTES, int(cap_mb * MIB)), int(cap_mb * MIB)]
    buckets, _ = _compute_bucket_assignment_by_size([parameters[i] for i in order], limits)  # pyright: ignore[reportArgumentType]
    return [[order[i] for i in bucket] for bucket in buckets]


def replicated(note: Callable[[Any, str], None]) -> type[nn.Module]:
    """What stands for DistributedDataParallel: a flat bucket beside the gradients of each group of
    parameters, or, with `gradient_as_bucket_view`, in their place. `note` is told of buckets.
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
                inside = [parameters[i] for i in members]
                size = sum(p.numel() for p in inside)
                bucket = torch.empty(size, dtype=inside[0].dtype, device=inside[0].device)
                self.buckets.append(bucket)
                note(bucket, "buckets")
                if gradient_as_bucket_view:
                    offset = 0
                    for parameter in inside:
                        view = bucket.as_strided(parameter.size(), parameter.stride(), offset)
                        parameter.register_post_accumulate_grad_hook(
                            lambda p, view=view: setattr(p, "grad", view)
                        )
                        offset += parameter.numel()

        def forward(self, *arguments: Any, **keywords: Any) -> Any:
            return self.module(*arguments, **keywords)

    return Replicated


# ---- NF4: torchao quantises by value, and torchtune then swaps tensors, which fake ones refuse


def nf4_like(weight: torch.Tensor, block_size: int = 64, scaler_block_size: int = 256) -> Any:
    """The NF4 tensor that `torchao.dtypes.nf4tensor.to_nf4` makes of a weight,
    without its values.
    """
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


def _frozen_nf4(
    self: Any,
    in_dim: int,
    out_dim: int,
    bias: bool = False,
    device: Any = None,
    dtype: Any = None,
    **_: Any,
) -> None:
    """`FrozenNF4Linear.__init__`."""
    nn.Linear.__init__(self, in_dim, out_dim, bias=bias, device=device, dtype=dtype)
    if self.bias is not None:
        self.bias.requires_grad_(False)
    self.weight = nn.Parameter(nf4_like(self.weight.detach()), requires_grad=False)


NF4_BY_SHAPE: dict[str, Any] = {
    "torchtune.modules.low_precision.nf4_linear.FrozenNF4Linear.__init__": _frozen_nf4,
    "torchtune.modules.low_precision.nf4_linear.to_nf4": nf4_like,
    "torchtune.modules.peft.lora.to_nf4": nf4_like,
}
