"""Check the keys of gpt-oss's messages: an answer's channel, and the tool to which it is sent."""

import re

from multicard.llm.data.columns import RowColumns
from multicard.messages import Refusal

HARMONY_CHANNELS = ("analysis", "commentary")
OPEN_CHANNELS = ("final",)
OPEN_RECIPIENTS = ("all", "user", "assistant")
TOOL_RECIPIENT = re.compile(r"(functions|browser|python|container|api_tool)(\.[\w.-]+)?")


def check_harmony(columns: RowColumns, number: int) -> None:
    """Refuse an answer that gpt-oss's keys call reasoning, or the call of a tool.

    Keys with other meanings stay unread, such as a `channel` for the messenger that was used.
    """
    channel = str(columns.peek("channel")) if columns.filled(("channel",)) else ""
    recipient = str(columns.peek("recipient")) if columns.filled(("recipient",)) else ""
    refused_key = None
    if channel in HARMONY_CHANNELS:
        refused_key = "channel", channel
    elif TOOL_RECIPIENT.fullmatch(recipient):
        refused_key = "recipient", recipient
    if refused_key is not None:
        key, value = refused_key
        raise Refusal(
            "llm.chat-harmony",
            f"message {number} (assistant) is not an answer, by its {key} {value}; put reasoning"
            " into the answer after it, under the chat template's key, and calls into tool_calls",
            message=number,
            column=key,
            value=value,
        )
    if channel in OPEN_CHANNELS:
        columns.pass_over("channel")
    if recipient in OPEN_RECIPIENTS:
        columns.pass_over("recipient")
