"""The keys of a message, and who speaks, as public data call them."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

ROLE_KEYS = ("role", "from")
# of several the first that holds something; the last is Cohere's
CONTENT_KEYS = ("content", "value", "text", "message")
OWN_NAMES = ("system", "developer", "user", "assistant", "tool", "ipython", "function")
CALLS = ("function_call", "tool_call")  # roles of an assistant's turn that is a call, as JSON
# What public data call them: ShareGPT's, OpenAssistant's,
# LLaMA-Factory's and ms-swift's names among them
ROLES: dict[str, str] = {
    **{name: name for name in OWN_NAMES},
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
    **dict.fromkeys(CALLS, "assistant"),
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
}

# A turn of two: a question and its answer
EXCHANGES = (
    ("input", "output"),
    ("human", "assistant"),
    ("user", "assistant"),
    ("question", "answer"),
)
EXCHANGES += (("prompt", "response"), ("query", "response"), ("instruction", "output"))

# Keys of a message that say whether it is learnt: OpenAI's `weight`, axolotl's `training` and
# `train`, ms-swift's `loss` and `loss_scale`; torchtune's `masked` says the opposite
SWITCHES = (
    "weight",
    "train",
    "training",
    "trainable",
    "train_on_turn",
    "loss",
    "loss_scale",
    "masked",
)
OPPOSITE = ("masked",)
# axolotl's: parts of a message's text
PARTLY_LEARNT = ("train_detail", "training_detail", "train_details")
SWITCH_KEYS = tuple(f'"{name}"' for name in (*SWITCHES, *PARTLY_LEARNT))  # as they stand in JSON
ON = ("1", "1.0", "true", "yes")
OFF = ("0", "0.0", "false", "no")
# Keys that bear text, or change what is learnt: whoever cannot write them refuses them
BEARING_KEYS = (
    "tool_calls",
    "tools",
    "functions",
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_plan",
)
BEARING_KEYS += (
    "refusal",
    "audio",
    "image",
    "images",
    "video",
    "videos",
    "documents",
    "citations",
    "prefix",
)

# Keys of a message that are known, whatever their case
KNOWN_KEYS = {
    *ROLE_KEYS,
    *CONTENT_KEYS,
    *SWITCHES,
    *PARTLY_LEARNT,
    *BEARING_KEYS,
    *chain.from_iterable(EXCHANGES),
    "function_call",
    "tool_call_id",
    "name",
    "channel",
    "recipient",
}


def lowered(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose known keys are in lower case, as `Role`; a key that stands there in lower
    case too stays as it is.
    """
    if turn.keys() <= KNOWN_KEYS:
        return turn  # as nearly all are
    found = dict[str, Any]()
    for key, value in turn.items():
        lower = str(key).lower().strip()
        found[lower if lower in KNOWN_KEYS and lower not in turn else key] = value
    return found
