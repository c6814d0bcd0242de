"""The tokenizers: one trained on the run's text, Llama 3's, Qwen 2.5's, and a model folder's.

The embedded tokenizer and Llama 3's are files in tiktoken's form, which torchtune's Llama3Tokenizer
reads. Each line holds a token in base64 and its rank.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.config.base import GroupOption
from multicard.config.llm_models import HfConfig
from multicard.config.llm_tokenizers import Llama3TokenizerConfig, Qwen25TokenizerConfig
from multicard.messages import Refusal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Without this, tiktoken copies each file that it reads into the folder for temporary files, and
# finds the copy by the file's path alone. A file that changed would be read as it was before, and
# another user could put a copy there.
os.environ["TIKTOKEN_CACHE_DIR"] = ""

# Llama 3 splits text in this way before it merges bytes (llama-models, tokenizer.py). torchtune
# has the same pattern.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# torchtune's Llama3Tokenizer asks for these special tokens by name.
SPECIAL = tuple(
    f"<|{name}|>"
    for name in (
        "begin_of_text",
        "end_of_text",
        "finetune_right_pad_id",
        "step_id",
        "start_header_id",
        "end_header_id",
        "eom_id",
        "eot_id",
        "python_tag",
        "image",
    )
)
# Rows need not contain the header of a message.
ROLES = ("user\n\n", "assistant\n\n", "system\n\n")
FILE = "tokenizer.json"  # In a folder in Hugging Face's form.
# These files decide which tokens a text has: they add tokens, and give some of them a role.
FILES = (
    "config.json",
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Every tokenizer can encode this text. Some broken ones lack tokens for it, and raise.
PROBE = "A text, 1 é."
LLAMA3_RANKS = 128_000
LLAMA3_VOCABULARY = 128_256  # Includes the special tokens that text uses.
QWEN25_TOKENS = 151_643
QWEN25_VOCABULARY = 151_665  # Includes the special tokens.


def train(texts: Iterable[str], vocab_size: int) -> list[bytes]:
    """Train a byte-level BPE (Sennrich et al., 2016), and return its tokens by rank.

    It has at most `vocab_size` tokens, including the 256 bytes. The same texts give the same
    tokens: pairs are merged by count, and pairs with equal counts by rank.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # Chat templates write special tokens, which are not merged with text.
    special = pre_tokenizers.Split(Regex("|".join(map(re.escape, SPECIAL))), behavior="removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([special, split, to_bytes])  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    ranked = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    byte_of = byte_level_alphabet()
    return [bytes(byte_of[character] for character in word) for word, _ in ranked]


def byte_level_alphabet() -> dict[str, int]:
    """Return the byte for each character of GPT-2's byte-level alphabet.

    `tokenizers` writes merges in this alphabet.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def tiktoken_lines(tokens: list[bytes]) -> str:
    return "".join(
        f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)
    )


def special_tokens(ranks: int) -> dict[str, list[dict[str, object]]]:
    """Return the `added_tokens` of a tokenizer.json: the special tokens, after `ranks` others."""
    return {
        "added_tokens": [{"id": ranks + i, "content": token} for i, token in enumerate(SPECIAL)]
    }


def vocabulary(config: GroupOption, ranks: int) -> int:
    """Return the number of tokens of a tokenizer, including special ones.

    Args:
        ranks: the number of the embedded tokenizer's other tokens.
    """
    if isinstance(config, Llama3TokenizerConfig):
        return LLAMA3_VOCABULARY
    return QWEN25_VOCABULARY if isinstance(config, Qwen25TokenizerConfig) else ranks + len(SPECIAL)


def component(config: GroupOption, inputs: Path) -> dict[str, Any]:
    """Return torchtune's configuration of the tokenizer: its builder and its files.

    Args:
        inputs: the folder with the files of the embedded tokenizer.
    """
    if isinstance(config, Qwen25TokenizerConfig):
        builder = "torchtune.models.qwen2_5.qwen2_5_tokenizer"
        return {
            "_component_": builder,
            "path": _expand(config.path),
            "merges_file": _expand(config.merges_file),
        }
    builder = "torchtune.models.llama3.llama3_tokenizer"
    if isinstance(config, Llama3TokenizerConfig):
        return {"_component_": builder, "path": _expand(config.path)}
    files = {"path": "tokenizer.tiktoken", "special_tokens_path": "special_tokens.json"}
    return {"_component_": builder} | {key: str(inputs / name) for key, name in files.items()}


class FolderTokenizer:
    """The tokenizer of a folder in Hugging Face's form.

    Rows are padded with -1, which is not a token.

    Args:
        path: the folder.
        max_seq_len: the number of tokens to which rows are truncated.
    """

    pad_id = -1

    def __init__(self, path: str, max_seq_len: int | None = None) -> None:
        self._tokenizer = of_folder(path).backend_tokenizer
        self.max_seq_len = max_seq_len

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a text, and the characters of each, as (from, to).

        The text itself holds the special tokens; none are added.
        """
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets


def of_folder(path: str) -> "PreTrainedTokenizerFast":
    """Return a folder's tokenizer as transformers builds it from all of its files. It is cached.

    Some tokens are only in tokenizer_config.json or special_tokens_map.json. Texts are neither
    truncated nor padded, even if tokenizer.json asks for it: transformers ignores it there too.
    """
    folder = Path(_expand(path))
    files = []
    for pattern in FILES:
        files.extend(sorted(folder.glob(pattern)))
    return _read_folder(
        str(folder),
        tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files),
    )


@lru_cache(maxsize=2)
def _read_folder(
    folder: str, _files: tuple[tuple[str, int, int], ...]
) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    # A tokenizer in Python does not say where tokens are in a text.
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def vocabulary_of(tokenizer: "PreTrainedTokenizerFast") -> int:
    """Return how many rows of an embedding the tokens of texts need. Their ids may have gaps.

    A token that only pads does not count. No text has it, and files declare it beyond the model's
    vocabulary.
    """
    roles = [token for role, token in tokenizer.special_tokens_map.items() if role != "pad_token"]
    token_ids = (
        number
        for token, number in tokenizer.get_vocab().items()
        if token != tokenizer.pad_token or token in roles
    )
    return 1 + max(token_ids)


def special_of(tokenizer: "PreTrainedTokenizerFast") -> list[str]:
    """Return the special tokens of a tokenizer, as text writes them."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return [*dict.fromkeys([*added, *tokenizer.special_tokens_map.values()])]


def check_folder(model: HfConfig) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a model's folder.

    Raises:
        Refusal: it is missing, broken, or belongs to another model.
    """
    key = "model.path"
    remedy = "save the model's own there (AutoTokenizer.from_pretrained(...).save_pretrained)"
    if not (Path(_expand(model.path)) / FILE).is_file():
        raise Refusal(
            "llm.folder-no-tokenizer",
            f"{key}={model.path}: has no tokenizer ({FILE}); {remedy}",
            key=key,
            value=model.path,
        )
    try:
        tokenizer = of_folder(str(model.path))
        tokenizer.backend_tokenizer.encode(PROBE, add_special_tokens=False)
        tokens = vocabulary_of(tokenizer)
    except Exception as error:  # `tokenizers` raises bare exceptions.
        raise Refusal(
            "llm.folder-tokenizer-unread",
            f"{key}={model.path}: its tokenizer cannot be read ({error}); {remedy}",
            key=key,
            value=model.path,
            reason=str(error),
        ) from None
    if model.vocab_size and tokens > model.vocab_size:
        raise Refusal(
            "llm.folder-tokens",
            f"{key}={model.path}: its tokenizer has {tokens} tokens, "
            f"more than config.json's vocab_size={model.vocab_size}; {remedy}",
            key=key,
            value=model.path,
            tokens=tokens,
            vocab_size=model.vocab_size,
        )
    return tokenizer


def check_files(config: GroupOption) -> None:
    """Refuse files of a model's own tokenizer that are missing or incomplete."""
    if isinstance(config, Llama3TokenizerConfig):
        _check_count(
            config.path,
            LLAMA3_RANKS,
            "Llama 3's tokenizer.model",
            lambda content: len(content.splitlines()),
        )
    elif isinstance(config, Qwen25TokenizerConfig):
        _check_count(
            config.path,
            QWEN25_TOKENS,
            "Qwen 2.5's vocab.json",
            lambda content: len(json.loads(content)),
        )
        _existing_file("merges_file", config.merges_file, "Qwen 2.5's merges.txt")


def _check_count(path: str | None, tokens: int, whose: str, count: Callable[[bytes], int]) -> None:
    content = _existing_file("path", path, whose).read_bytes()
    try:
        held_tokens = count(content)
    except (TypeError, ValueError):  # The file is not JSON.
        held_tokens = 0
    if held_tokens != tokens:
        raise Refusal(
            "llm.tokenizer-tokens",
            f"tokenizer.path={path}: holds {held_tokens} tokens, not {tokens};"
            f" give the path of {whose}",
            key="tokenizer.path",
            value=path,
            held=held_tokens,
            tokens=tokens,
        )


def _existing_file(name: str, path: str | None, whose: str) -> Path:
    file = Path(_expand(path))
    if not file.is_file():
        raise Refusal(
            "llm.tokenizer-absent",
            f"tokenizer.{name}={path}: no such file; give the path of {whose}",
            key=f"tokenizer.{name}",
            value=path,
        )
    return file


def _expand(path: str | None) -> str:
    return str(Path(path or "").expanduser())
