"""The tokenizers: one trained on the run's own text, or Llama 3's own. Imports neither torch nor torchtune.

Both are files in tiktoken's form, a token in base64 and its rank a line, which torchtune's Llama3Tokenizer reads.
"""

import base64
from collections.abc import Iterable
from pathlib import Path

from multicard.config.keys import require
from multicard.config.llm import Llama3TokenizerConfig

# How Llama 3 splits text before it merges bytes (llama-models, tokenizer.py); torchtune has the same.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# The special tokens that torchtune's Llama3Tokenizer asks for by name.
SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
)
ROLES = ("user\n\n", "assistant\n\n", "system\n\n")  # a message's header, which no row's own text need hold
LLAMA3_RANKS = 128_000
LLAMA3_VOCABULARY = 128_256  # with the special tokens that text uses


def train(texts: Iterable[str], vocab_size: int) -> list[bytes]:
    """A byte-level BPE (Sennrich et al., 2016) of at most `vocab_size` tokens, the 256 bytes among them, by rank.

    The same texts give the same tokens: pairs are merged by count, equal counts by rank.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    to_byte = _bytes_of_characters()
    ranked = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [bytes(to_byte[character] for character in word) for word, _ in ranked]


def _bytes_of_characters() -> dict[str, int]:
    """The byte behind each character of GPT-2's byte-level alphabet, which `tokenizers` prints merges in."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def tiktoken_lines(tokens: list[bytes]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def special_tokens(ranks: int) -> dict[str, list[dict[str, object]]]:
    """Ids for the special tokens right after `ranks` others, as the `added_tokens` of a tokenizer.json."""
    return {"added_tokens": [{"id": ranks + i, "content": token} for i, token in enumerate(SPECIAL)]}


def check_llama3(config: Llama3TokenizerConfig) -> None:
    """See that the file is a Llama 3 tokenizer, whole.

    Raises:
        ValueError: with the key and the remedy.
    """
    path = Path(config.path or "").expanduser()
    key = f"tokenizer.path={config.path}"
    remedy = "give the path of Llama 3's tokenizer.model"
    require(path.is_file(), f"{key}: no such file; {remedy}")
    lines = path.read_bytes().splitlines()
    found = len(lines)
    require(found == LLAMA3_RANKS, f"{key}: holds {found} tokens, not {LLAMA3_RANKS}; {remedy}")
    try:
        token, rank = lines[-1].split()
        whole = bool(base64.b64decode(token, validate=True)) and int(rank) == LLAMA3_RANKS - 1
    except ValueError:
        whole = False
    require(whole, f"{key}: is not a tiktoken file; {remedy}")
