"""Arithmetic on a Llama 3's sizes: its tensors, its parameters, and the work that a token takes. No torch."""

from multicard.config.llm import LlamaConfig, LoraConfig, MethodName

Shape = tuple[int, ...]

LINEARS = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj", "mlp.w1", "mlp.w2", "mlp.w3")


def linears(model: LlamaConfig) -> dict[str, Shape]:
    """The linears of one layer as torchtune names them: (out, in)."""
    width, inner, narrow = model.embed_dim, model.intermediate_dim, model.num_kv_heads * model.head_dim
    shapes = ((width, width), (narrow, width), (narrow, width), (width, width))
    return dict(zip(LINEARS, (*shapes, (inner, width), (width, inner), (inner, width)), strict=True))


def tensors(model: LlamaConfig, vocabulary: int) -> dict[str, Shape]:
    """All tensors of the model without adapters, as torchtune names them."""
    width = model.embed_dim
    found: dict[str, Shape] = {"tok_embeddings.weight": (vocabulary, width)}
    for layer in range(model.num_layers):
        for name, shape in linears(model).items():
            found[f"layers.{layer}.{name}.weight"] = shape
        found[f"layers.{layer}.sa_norm.scale"] = found[f"layers.{layer}.mlp_norm.scale"] = (width,)
    found["norm.scale"] = (width,)
    if not model.tied:
        found["output.weight"] = (vocabulary, width)
    return found


def adapted(method: LoraConfig) -> list[str]:
    """The linears of a layer that have an adapter."""
    attention = [f"attn.{name}" for name in method.lora_attn_modules]
    return [*attention, *(["mlp.w1", "mlp.w2", "mlp.w3"] if method.apply_lora_to_mlp else [])]


def adapter_parameters(model: LlamaConfig, vocabulary: int, method: LoraConfig) -> int:
    """rank x (in + out) of each linear that has an adapter."""
    shapes = linears(model)
    layer = sum(sum(shapes[name]) for name in adapted(method))
    output = vocabulary + model.embed_dim if method.apply_lora_to_output else 0
    return method.lora_rank * (model.num_layers * layer + output)


def flops_per_token(model: LlamaConfig, vocabulary: int, method: MethodName, adapters: int, length: float) -> float:
    """Floating-point operations that training on a token takes, in rows of `length` tokens (padding counts as tokens).

    2 a weight for each pass over it (Kaplan et al., 2020; the embedding is looked up), and 4 L d s for the attention
    of a forward pass, not halved for causality (PaLM, appendix B); a backward pass costs twice a forward one, but for
    the frozen weights' own gradients. DPO adds the reference model's forward pass. Recomputed activations are no work
    of the model's and are left out.
    """
    weights = model.num_layers * sum(a * b for a, b in linears(model).values()) + vocabulary * model.embed_dim
    attention = 4 * model.num_layers * model.embed_dim * length
    if method in (MethodName.full, MethodName.qat):
        return 6 * weights + 3 * attention
    adapter_work = 6 * adapters
    reference = 2 * weights + attention if method is MethodName.dpo else 0
    return 4 * weights + adapter_work + 3 * attention + reference


# Dense matrix peaks in operations a second (NVIDIA's data sheets): fp32 without TF32, as torchtune computes, and bf16.
PEAK_FLOPS_PER_S: dict[str, dict[str, float]] = {
    "H200": {"fp32": 67e12, "bf16": 989e12},
    "H100 80GB HBM3": {"fp32": 67e12, "bf16": 989e12},
    "H100 NVL": {"fp32": 60e12, "bf16": 835e12},
    "H100 PCIe": {"fp32": 51e12, "bf16": 756e12},
    "A100": {"fp32": 19.5e12, "bf16": 312e12},
}


def peak_flops_per_s(device: str, precision: str) -> float | None:
    """The peak of a device by its name as CUDA gives it; None where it is not known."""
    return next((peaks[precision] for name, peaks in PEAK_FLOPS_PER_S.items() if name in device), None)
