"""Conversations as instructions: SlimOrca with the template `instruct`, as arXiv 2503.15252 (Table 4) tunes on it."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtune.data import AlpacaToMessages
from torchtune.datasets import SFTDataset

Turn = Mapping[str, str]  # ShareGPT's: `from` (system, human, gpt) and `value`


class ConversationToAlpaca(AlpacaToMessages):
    """torchtune's messages of a row with `conversations`, in Alpaca's template. The prompt is learnt too, as Alpaca's
    is by default."""

    def __call__(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        return super().__call__(instruction(sample["conversations"]))


def instruction(turns: Sequence[Turn]) -> dict[str, str]:
    """Alpaca's columns of a conversation of one question and one answer: the system's text is the instruction and the
    question its input; without such a text the question is the instruction.

    Raises:
        ValueError: several questions.
    """
    said = {turn["from"]: turn["value"] for turn in turns}
    if len(said) < len(turns):
        raise ValueError("template=instruct: a conversation has several questions; use template=null")
    system, question = said.get("system"), said["human"]
    asked = {"instruction": system, "input": question} if system else {"instruction": question, "input": ""}
    return asked | {"output": said["gpt"]}


def dataset(tokenizer: Any, *, source: str, **arguments: Any) -> SFTDataset:
    """Rows for torchtune's recipes, as its own builders make them; `arguments` are `datasets.load_dataset`'s."""
    transform = ConversationToAlpaca(train_on_input=True)
    return SFTDataset(source=source, message_transform=transform, model_transform=tokenizer, **arguments)
