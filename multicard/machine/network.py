"""A quick test of a server on the network: libraries that ask it
retry for minutes where it does not answer.
"""

import ssl
from http.client import HTTPException
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from multicard.messages import Message

ANSWERS_WITHIN_S = 4.0  # the resolution of its name and the connection included


def problem(url: str) -> str | None:
    """The reason that the server of `url` cannot be reached; None where it answers,
    even by an error.

    The proxies that the environment names are used, as the libraries do.
    """
    answers: list[str | None] = []
    # a thread: nothing limits how long the resolution of a name takes
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
    """The message on a server that cannot be reached."""
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
            return None  # it is there; the libraries may know other certificates
        if isinstance(reason, TimeoutError):
            return _no_answer()
        return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
