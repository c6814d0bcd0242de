"""The keys of a message, and who speaks, as public data call them."""

ROLE_KEYS = ("role", "from")
CONTENT_KEYS = ("content", "value")
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
