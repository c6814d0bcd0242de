"""Save the tokenizer of a tuning run in Hugging Face's form, next to the tuned weights.

torchtune's tokenizers come from other kinds of files. Llama 3's has tiktoken's form: ranks of
tokens, but no merges. Qwen 2.5's consists of vocab.json and merges.txt.
"""

import base64
import json
import shutil
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import ChatConfig
from multicard.config.llm_tokenizers import Llama3TokenizerConfig, Qwen25TokenizerConfig
from multicard.llm.data import chat, stored_templates
from multicard.llm.data.tokenizer import (
    FILE,
    LLAMA3_VOCABULARY,
    PATTERN,
    SPECIAL,
    byte_level_alphabet,
    of_folder,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SETTINGS = "tokenizer_config.json"
# Files of a folder in Hugging Face's form that define its tokenizer and how text is generated.
COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)
COPIED += ("generation_config.json", "*processor_config.json", "spiece.model")
# From Qwen 2.5's tokenizer.json. It is Llama 3's pattern, except that each digit is a token.
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write(config: LlmConfig, inputs: Path, target: Path) -> None:
    """Write the run's tokenizer, its chat template, and further named templates.

    Args:
        inputs: Folder of the run's inputs, which holds the embedded tokenizer.
        target: An existing folder.
    """
    if isinstance(config.model, HfConfig):
        folder = Path(str(config.model.path)).expanduser()
        matching = chain.from_iterable(folder.glob(pattern) for pattern in COPIED)
        for path in {path for path in matching if path.is_file()}:
            shutil.copyfile(path, target / path.name)
        _name_class(folder, target)
    else:
        numbers = special_numbers(config, inputs)
        if isinstance(config.tokenizer, Qwen25TokenizerConfig):
            tokenizer = _qwen_tokenizer(config.tokenizer, numbers)
        else:
            tokenizer = _tokenizer_of_ranks(_read_ranks(config, inputs), numbers)
        tokenizer.save(str(target / FILE))
        (target / SETTINGS).write_text(json.dumps(_tokenizer_settings(config), indent=2) + "\n")
    configured_template = getattr(config.dataset, "chat_template", None)
    if isinstance(config.dataset, ChatConfig) and (
        configured_template or not isinstance(config.model, HfConfig)
    ):
        template = chat.template(config)
        (target / "chat_template.jinja").write_text(template.source, "utf-8")
        _write_named_templates(template.others, target)
    elif isinstance(config.model, HfConfig):
        template_folder = Path(str(config.model.path)).expanduser() / stored_templates.ADDITIONAL
        _write_named_templates(
            {path.stem: path.read_text("utf-8") for path in template_folder.glob("*.jinja")}, target
        )


def _name_class(folder: Path, target: Path) -> None:
    """Name the class of a folder's tokenizer in the saved settings.

    transformers would otherwise look for it in config.json, which adapters do not have.
    """
    name = type(of_folder(str(folder))).__name__
    # transformers 4 only knows this class by its older name.
    name = "PreTrainedTokenizerFast" if name == "TokenizersBackend" else name
    settings_path = target / SETTINGS
    settings = json.loads(settings_path.read_text("utf-8")) if settings_path.is_file() else {}
    if str(settings.get("tokenizer_class")).removesuffix("Fast") != name.removesuffix("Fast"):
        settings_path.write_text(
            json.dumps(settings | {"tokenizer_class": name}, indent=2) + "\n", "utf-8"
        )


def _write_named_templates(templates: Mapping[str, str], target: Path) -> None:
    """Write templates in addition to the default one, in transformers' layout."""
    for name, source in templates.items():
        (target / stored_templates.ADDITIONAL).mkdir(exist_ok=True)
        (target / stored_templates.ADDITIONAL / f"{name}.jinja").write_text(source, "utf-8")


def special_numbers(config: LlmConfig, inputs: Path) -> dict[str, int]:
    """Return the special tokens of a decoder that torchtune builds, and their ids."""
    if isinstance(config.tokenizer, Qwen25TokenizerConfig):
        from torchtune.models.qwen2_5._tokenizer import QWEN2_5_SPECIAL_TOKENS

        return QWEN2_5_SPECIAL_TOKENS
    if isinstance(config.tokenizer, Llama3TokenizerConfig):
        from torchtune.models.llama3._tokenizer import LLAMA3_SPECIAL_TOKENS

        # Tokens for images lie beyond the text model's vocabulary.
        return {
            token: number
            for token, number in LLAMA3_SPECIAL_TOKENS.items()
            if number < LLAMA3_VOCABULARY
        }
    first_number = len(_read_ranks(config, inputs))
    return {token: first_number + index for index, token in enumerate(SPECIAL)}


def special_ids(config: LlmConfig, inputs: Path) -> dict[str, Any]:
    """Return config.json's ids of the tokens that begin, end and pad a text."""
    numbers = special_numbers(config, inputs)
    settings = _tokenizer_settings(config)
    ends = [numbers[settings["eos_token"]]]
    if "<|end_of_text|>" in numbers:
        ends.append(numbers["<|end_of_text|>"])
    ids: dict[str, Any] = {"eos_token_id": ends, "pad_token_id": numbers[settings["pad_token"]]}
    if "bos_token" in settings:
        ids["bos_token_id"] = numbers[settings["bos_token"]]
    return ids


def _tokenizer_settings(config: LlmConfig) -> dict[str, Any]:
    """Return the content of tokenizer_config.json. Its `eos_token` ends an answer."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    settings["model_max_length"] = config.model.max_seq_len
    if isinstance(config.tokenizer, Qwen25TokenizerConfig):
        return settings | {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    settings |= {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
    }
    return settings


def _read_ranks(config: LlmConfig, inputs: Path) -> dict[bytes, int]:
    """Read the tokens and their ranks from a file in tiktoken's form."""
    tokenizer = config.tokenizer
    path = (
        Path(str(tokenizer.path))
        if isinstance(tokenizer, Llama3TokenizerConfig)
        else inputs / "tokenizer.tiktoken"
    )
    lines = path.expanduser().read_text().splitlines()
    pairs = (line.split() for line in lines if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _tokenizer_of_ranks(ranks: dict[bytes, int], special: dict[str, int]) -> "Tokenizer":
    """Return a tokenizer with tiktoken's ranks.

    Merges are in the order of their tokens' ranks. Each way to build a token from two others is a
    merge.
    """
    from tokenizers import Tokenizer, models, processors

    characters = {byte: character for character, byte in byte_level_alphabet().items()}

    def to_text(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = [(token[:position], token[position:]) for position in range(1, len(token))]
        halves = [cut for cut in cuts if cut[0] in ranks and cut[1] in ranks]
        halves.sort(key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
        merges += [(to_text(first), to_text(second)) for first, second in halves]
    vocabulary = {to_text(token): rank for token, rank in ranks.items()} | special
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    _set_splitting(tokenizer, PATTERN)
    _add_special_tokens(tokenizer, special)
    begin = "<|begin_of_text|>"
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{begin} $A",
        pair=f"{begin} $A {begin} $B",
        special_tokens=[(begin, special[begin])],
    )
    return tokenizer


def _qwen_tokenizer(options: Qwen25TokenizerConfig, special: dict[str, int]) -> "Tokenizer":
    from tokenizers import Tokenizer, models, normalizers

    files = [str(Path(str(path)).expanduser()) for path in (options.path, options.merges_file)]
    tokenizer = Tokenizer(models.BPE.from_file(*files))
    tokenizer.normalizer = normalizers.NFC()  # pyright: ignore[reportAttributeAccessIssue]
    _set_splitting(tokenizer, QWEN_PATTERN)
    _add_special_tokens(tokenizer, special)
    return tokenizer


def _set_splitting(tokenizer: "Tokenizer", pattern: str) -> None:
    """Make the tokenizer split text by a pattern, then into bytes, and join bytes in decoding."""
    from tokenizers import Regex, decoders, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]


def _add_special_tokens(tokenizer: "Tokenizer", special: dict[str, int]) -> None:
    """Add special tokens. They get the ids that the vocabulary has for them, or the next ones."""
    from tokenizers import AddedToken

    in_order = sorted(special, key=special.__getitem__)
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=token.startswith("<|")) for token in in_order]
    )
