"""Quickly test whether a server on the network answers.

Libraries that need a server may retry for minutes if it does not answer.
"""

import ssl
from http.client import HTTPException
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from multicard.messages import Message

ANSWERS_WITHIN_S = 4.0  # Includes resolving the server's name and connecting to it.


def problem(url: str) -> str | None:
    """Return why the server of `url` cannot be reached, or None if it answers, even with an error.

    Like the libraries, this uses the proxies that the environment names.
    """
    answers: list[str | None] = []
    # This runs in a thread because nothing else limits how long resolving a name takes.
    thread = Thread(target=lambda: answers.append(_ask(url)), daemon=True)
    thread.start()
    thread.join(ANSWERS_WITHIN_S)
    if answers:
        return answers[0]
    return _no_answer()


def _no_answer() -> Message:
    return Message(
        "network.no-answer", f"no answer within {ANSWERS_WITHIN_S:g} s", seconds=ANSWERS_WITHIN_S
    )


def unreachable(url: str, reason: str) -> Message:
    """Make the message that a server cannot be reached."""
    return Message("network.unreachable", f"cannot reach {url} ({reason})", url=url, reason=reason)


def _ask(url: str) -> str | None:
    try:
        with urlopen(Request(url, method="HEAD"), timeout=ANSWERS_WITHIN_S):
            return None
    except HTTPError:
        return None
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            return None  # The server answers, and the libraries may know other certificates.
        if isinstance(reason, TimeoutError):
            return _no_answer()
        return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
