"""The tokenizers: one trained on the run's own text, Llama 3's and Qwen 2.5's,
and those of folders.

The first two are files in tiktoken's form (a line a token: base64 and rank),
which torchtune's Llama3Tokenizer reads.
"""

import base64
import json
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

# How Llama 3 splits text before it merges bytes (llama-models, tokenizer.py);
# torchtune has the same
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# The special tokens that torchtune's Llama3Tokenizer asks for by name
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
# a message's header, which rows need not contain
ROLES = ("user\n\n", "assistant\n\n", "system\n\n")
FILE = "tokenizer.json"  # of a folder in Hugging Face's form
# All of it that says which tokens a text has: tokens of their own, and which of all have a role
FILES = (
    "config.json",
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# what each tokenizer can write; one built for other tokens asks for some that are not there
PROBE = "A text, 1 é."
LLAMA3_RANKS = 128_000
LLAMA3_VOCABULARY = 128_256  # with the special tokens that text uses
QWEN25_TOKENS = 151_643
QWEN25_VOCABULARY = 151_665  # with the special tokens


def train(texts: Iterable[str], vocab_size: int) -> list[bytes]:
    """A byte-level BPE (Sennrich et al., 2016) of at most `vocab_size` tokens,
    the 256 bytes among them, by rank.

    The same texts give the same tokens: pairs are merged by count, equal counts by rank.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # of chat templates
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
    """The byte behind each character of GPT-2's byte-level alphabet,
    in which `tokenizers` writes merges.
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
    """Ids for the special tokens right after `ranks` others,
    as the `added_tokens` of a tokenizer.json.
    """
    return {
        "added_tokens": [{"id": ranks + i, "content": token} for i, token in enumerate(SPECIAL)]
    }


def vocabulary(config: GroupOption, ranks: int) -> int:
    """Tokens of the tokenizer, special ones included;
    `ranks` are the embedded tokenizer's other ones.
    """
    if isinstance(config, Llama3TokenizerConfig):
        return LLAMA3_VOCABULARY
    return QWEN25_VOCABULARY if isinstance(config, Qwen25TokenizerConfig) else ranks + len(SPECIAL)


def component(config: GroupOption, inputs: Path) -> dict[str, Any]:
    """torchtune's builder of the tokenizer and its files;
    those of the embedded one are in `inputs`.
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
    Rows are padded with a number that is no token.

    Args:
        max_seq_len: to which rows are cut, in tokens.
    """

    pad_id = -1

    def __init__(self, path: str, max_seq_len: int | None = None) -> None:
        self._tokenizer = of_folder(path).backend_tokenizer
        self.max_seq_len = max_seq_len

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of a text in which special tokens are written, and the characters of each,
        from and to.
        """
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets


def of_folder(path: str) -> "PreTrainedTokenizerFast":
    """A folder's tokenizer as transformers makes it of all its files, which is read once.

    Some tokens stand in tokenizer_config.json or special_tokens_map.json alone. Texts are neither
    cut nor padded,
    whatever tokenizer.json says: transformers does neither unless it is asked to.
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

    own = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # one in Python, which does not say where tokens are in a text
    if not isinstance(own, PreTrainedTokenizerFast):
        own = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    return own


def vocabulary_of(own: "PreTrainedTokenizerFast") -> int:
    """How many rows of an embedding the tokens of texts need, whose numbers may have gaps.

    A token for padding alone counts for nothing: files declare it beyond the model's vocabulary,
    and no text has it.
    """
    roles = [token for role, token in own.special_tokens_map.items() if role != "pad_token"]
    numbers = (
        number
        for token, number in own.get_vocab().items()
        if token != own.pad_token or token in roles
    )
    return 1 + max(numbers)


def special_of(own: "PreTrainedTokenizerFast") -> list[str]:
    """The special tokens of a tokenizer, as text writes them."""
    added = [token.content for token in own.added_tokens_decoder.values() if token.special]
    return [*dict.fromkeys([*added, *own.special_tokens_map.values()])]


def check_folder(model: HfConfig) -> "PreTrainedTokenizerFast":
    """The tokenizer of a model's folder. Refuses (ValueError) one that is missing, broken,
    or another model's.
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
        own = of_folder(str(model.path))
        own.backend_tokenizer.encode(PROBE, add_special_tokens=False)
        tokens = vocabulary_of(own)
    except Exception as error:  # of tokenizers, which has no class of its own for it
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
    return own


def check_files(config: GroupOption) -> None:
    """Refuse (ValueError) files of a model's own tokenizer that are not there, or not whole."""
    if isinstance(config, Llama3TokenizerConfig):
        _check(
            config.path,
            LLAMA3_RANKS,
            "Llama 3's tokenizer.model",
            lambda content: len(content.splitlines()),
        )
    elif isinstance(config, Qwen25TokenizerConfig):
        _check(
            config.path,
            QWEN25_TOKENS,
            "Qwen 2.5's vocab.json",
            lambda content: len(json.loads(content)),
        )
        _file("merges_file", config.merges_file, "Qwen 2.5's merges.txt")


def _check(path: str | None, tokens: int, whose: str, count: Callable[[bytes], int]) -> None:
    content = _file("path", path, whose).read_bytes()
    try:
        held = count(content)
    except (TypeError, ValueError):  # no JSON
        held = 0
    if held != tokens:
        raise Refusal(
            "llm.tokenizer-tokens",
            f"tokenizer.path={path}: holds {held} tokens, not {tokens}; give the path of {whose}",
            key="tokenizer.path",
            value=path,
            held=held,
            tokens=tokens,
        )


def _file(name: str, path: str | None, whose: str) -> Path:
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
