"""The names that public data use for the keys of a message, and for the speakers."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

ROLE_KEYS = ("role", "from")
# The first key with a value is read. `message` is Cohere's, `parts` Gemini's.
CONTENT_KEYS = ("content", "value", "text", "message", "parts")
OWN_NAMES = ("system", "developer", "user", "assistant", "tool", "ipython", "function")
CALLS = ("function_call", "tool_call")  # The assistant's turn is a call, as JSON.
# Maps the names in public data to ours. They include the names of ShareGPT, OpenAssistant,
# LLaMA-Factory and ms-swift.
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

# An object with such keys holds two turns: a question and its answer.
EXCHANGES = (
    ("input", "output"),
    ("human", "assistant"),
    ("user", "assistant"),
    ("question", "answer"),
)
EXCHANGES += (("prompt", "response"), ("query", "response"), ("instruction", "output"))

# These keys of a message say whether it is learnt: `weight` is OpenAI's, `training` and `train` are
# axolotl's, `loss` and `loss_scale` ms-swift's, `loss_mask` verl's and `step_loss_mask` slime's.
# torchtune's `masked` has the opposite meaning.
SWITCHES = (
    "weight",
    "train",
    "training",
    "trainable",
    "train_on_turn",
    "loss",
    "loss_scale",
    "loss_mask",
    "step_loss_mask",
    "masked",
)
OPPOSITE = ("masked",)
# axolotl's keys for learning parts of a message's text.
PARTLY_LEARNT = ("train_detail", "training_detail", "train_details")
SWITCH_KEYS = tuple(f'"{name}"' for name in (*SWITCHES, *PARTLY_LEARNT))  # As JSON writes them.
ON = ("1", "1.0", "true", "yes")
OFF = ("0", "0.0", "false", "no")
# Keys that bear text, or change which part of it is learnt. A form that cannot write them refuses
# them.
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

# All known keys of a message. Their case does not matter.
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


def role_named(name: Any) -> str | None:
    """Return our name of a role in public data; None if it is unknown."""
    return ROLES.get(plain_name(name))


def plain_name(name: Any) -> str:
    """Return the name of a role in lower case, without spaces around it."""
    return str(name).lower().strip()


def with_lower_keys(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its known keys in lower case: `Role` becomes `role`.

    If the message also has the key in lower case, it stays unchanged.
    """
    if turn.keys() <= KNOWN_KEYS:
        return turn  # Nearly all messages take this path.
    lowered_turn = dict[str, Any]()
    for key, value in turn.items():
        lower_key = str(key).lower().strip()
        lowered_turn[lower_key if lower_key in KNOWN_KEYS and lower_key not in turn else key] = (
            value
        )
    return lowered_turn
