"""`report --watch`: the page on loopback, made anew as runs end, with the cells that run now: how
far each is, and when it will be done, from their folders alone.

The address holds a random token: who does not know it gets an empty 404, as does a page from
elsewhere that has its own name resolve to this machine. Folders are read only while somebody looks,
at a low priority and at most a third of the time, and pages take at most a third of a core,
so that measurements beside it are not disturbed.
"""

import hmac
import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from threading import Event, Thread
from time import process_time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from multicard.measure.timing import clock_s, in_hours, pause
from multicard.messages import Message, Refusal
from multicard.records import ownership
from multicard.records.progress import BoardCopy
from multicard.records.run_folder import RESULT, settings_of
from multicard.records.text_table import first_few
from multicard.run.progress_bar import ProgressBar
from multicard.workloads import WORKLOADS

from .. import rerun_commands
from ..runs import load
from . import page
from .blocks import Report

LOOPBACK = "127.0.0.1"
LEAST_S = 2.0  # between two looks at the folders
# between two questions whether somebody still measures a cell: SLURM is asked by a command
OWNER_S = 10.0
# length of a pause, by that of the look before it, or by the CPU time of making the page
PAUSES = 2
NICE = 10  # a tenth of a core that a CPU rank keeps busy; at 19 a page would take minutes there
PATIENCE_S = 10.0  # for the request of a connection
WAITING = Message("watch.waiting", "Waiting for the first run")
NOTHING = Message("watch.nothing-runs", "Nothing runs now; new runs appear here by themselves.")
PRIVATE = Message(
    "watch.private", "The address is for you alone, and new each time. Ctrl-C ends it."
)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RunningCell:
    """A cell that is being measured. setting: what tells it from the sweep's other cells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.setting = setting_of(folder)
        self._board = BoardCopy(folder)
        self._bar: ProgressBar | None = None
        self._board_id = 0
        # time and steps when training was first seen
        self._first: tuple[float, float] | None = None

    def look(self, now_s: float) -> dict[str, Any]:
        """What a page shows of it: names, the `share` of its steps
        that is done (None before training), and `facts`.
        """
        shown = {"sweep": self.folder.parent.name, "setting": self.setting}
        done: dict[str, Any] = {}
        # files that are being written, or gone: the board as it was last read
        with suppress(Exception):
            self._open()
        with suppress(Exception):  # whatever stands in them
            done = self._bar.fields(now_s) if self._bar is not None else {}
        if not done:
            return shown | {"share": None, "facts": ["starting"]}
        share = done["completed"] / done["total"]
        steps = done["completed"]
        first_s, first = self._first = self._first or (now_s, steps)
        facts = [done["description"], f"{100 * share:.0f} %", *done["figures"].split("  ")]
        if steps > first:
            facts.append(
                f"{in_hours((done['total'] - steps) * (now_s - first_s) / (steps - first))} left"
            )
        return shown | {"share": share, "facts": [fact for fact in facts if fact]}

    def _open(self) -> None:
        """Read the board of its ranks, a new one where the run has started again."""
        self._board.read_again()
        board_id = self._board.path.stat().st_ino
        if board_id == self._board_id:
            return
        config = msgspec.yaml.decode((self.folder / "config.yaml").read_bytes(), type=dict)
        units = (
            work.unit
            for work in WORKLOADS
            if config.keys() <= {each.name for each in fields(work.schema)}
        )
        ranks = config["gpus"] * config["nodes"]
        self._bar = ProgressBar(self._board, ranks, config["epochs"], next(units, "samples"))
        self._board_id = board_id
        self._first = None


class Onlooker:
    """The runs under some folders, which need not exist yet: `results` by folder (inode and change
    time), the cells that are `running`, and those `cut_off`, without a record though nobody
    measures them any more.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.results: dict[Path, tuple[int, int]] = {}
        self.running: dict[Path, RunningCell] = {}
        self.cut_off: list[Path] = []
        # when, and whether somebody measures into a folder
        self._asked: dict[Path, tuple[float, bool]] = {}

    def scan(self) -> None:
        found = list(load.run_folders([folder for folder in self.folders if folder.is_dir()]))
        results: dict[Path, os.stat_result] = {}
        for folder in (folder for folder, written in found if written):
            with suppress(FileNotFoundError):
                results[folder] = (folder / RESULT).stat()
        unfinished = [folder for folder, written in found if not written]
        running = [folder for folder in unfinished if self._is_measured(folder)]
        self.running = {
            folder: self.running.get(folder) or RunningCell(folder) for folder in running
        }
        self.cut_off = [folder for folder in unfinished if folder not in self.running]
        self.results = {
            folder: (status.st_ino, status.st_mtime_ns) for folder, status in results.items()
        }

    def _is_measured(self, folder: Path) -> bool:
        asked_s, measured = self._asked.get(folder, (-inf, False))
        if clock_s() - asked_s > OWNER_S:
            asked_s = clock_s()
            measured = ownership.owner(folder) is not None
        self._asked[folder] = asked_s, measured
        return measured


def setting_of(folder: Path) -> str:
    """The settings of a cell that the command of its sweep does not set for all;
    all of the only cell.
    """
    words = settings_of(folder.name)
    same = rerun_commands.set_once(folder.parent)
    return " ".join([word for word in words if word.partition("=")[0] not in same] or words)


class Watch:
    """The page about the runs under some folders, and the cells that are being measured there.

    build: makes the report. waiting: makes one without runs, from the reason.
    """

    def __init__(
        self, folders: Sequence[Path], build: Callable[[], Report], waiting: Callable[[str], Report]
    ) -> None:
        self._build = build
        self._waiting = waiting
        self._onlooker = Onlooker(folders)
        self._page = page.html(waiting(Message("watch.reading", "Reading the runs")), 0)
        self._version = 0
        self._problem: Message | None = None
        self._results: Any = None  # of which the page is; None before the first
        # until the next look; when the page may be made again
        self._pause_s = LEAST_S
        self._next_s = 0.0
        self._asked = Event()
        self._asked.set()

    def keep_up(self) -> None:
        while self._asked.wait():
            self._asked.clear()
            try:
                self._look()
            # a folder may vanish meanwhile; the page says it, and the next look may go well
            except Exception as error:
                problem = f"This page could not be brought up to date: {error}"
                self._problem = Message("watch.not-up-to-date", problem, reason=str(error))
            pause(self._pause_s)

    def _look(self) -> None:
        began_s = clock_s()
        self._onlooker.scan()
        scanned_s = clock_s()
        self._pause_s = max(LEAST_S, (scanned_s - began_s) * PAUSES)
        results = self._onlooker.results
        if results == self._results:
            self._problem = None
        elif scanned_s >= self._next_s:
            before_s = process_time()
            try:
                report = self._build() if results else self._waiting(WAITING)
                self._page = page.html(report, self._version + 1)
                self._version += 1
                self._results = results
                self._problem = None
            finally:
                self._next_s = clock_s() + (process_time() - before_s) * PAUSES

    def html(self) -> str:
        """The newest page; one that says that runs are being read before the first is made."""
        self._asked.set()
        return self._page

    def state(self) -> str:
        """JSON for the page: the `version` of the newest one, the `running` cells,
        and what is `said` of them.
        """
        self._asked.set()
        running = [cell.look(clock_s()) for cell in self._onlooker.running.values()]
        cut_off = [setting_of(folder) for folder in self._onlooker.cut_off]
        said = [
            (
                Message("watch.running", f"Running now: {len(running)}.", cells=len(running))
                if running
                else NOTHING
            )
        ]
        if self._problem is not None:
            said.append(self._problem)
        if cut_off:
            interrupted = f"Interrupted, without a record: {first_few(cut_off, 2)}."
            said.append(Message("watch.interrupted", interrupted, settings=cut_off))
        return json.dumps({"version": self._version, "running": running, "said": said})


class Server(ThreadingHTTPServer):
    """Answers at an address that its user alone knows;
    raises ValueError where it cannot listen at the port.
    """

    daemon_threads = True

    def __init__(self, port: int, watch: Watch) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            not_free = f"--port {port}: {error}; leave it out for a free one"
            raise Refusal(
                "watch.port", not_free, key="--port", value=port, reason=str(error)
            ) from None
        self.token = secrets.token_urlsafe(24)
        self.address = f"http://{LOOPBACK}:{self.server_port}/{self.token}/"
        self.answers = {"": ("text/html", watch.html), "state": ("application/json", watch.state)}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a reader that has gone is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "multicard"
    sys_version = ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        token, _, name = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if known and self._is_local() and name in self.server.answers:
            kind, answer = self.server.answers[name]
            self._answer(200, kind, answer().encode())
        else:
            self._answer(404, "text/plain", b"")

    def _is_local(self) -> bool:
        """True where it is asked by a name of this machine;
        a tunnel of ssh may end at another port.
        """
        with suppress(ValueError):
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in (LOOPBACK, "localhost")
        return False

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        about = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for key, value in (HEADERS | about).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the terminal is the user's."""


def serve(watch: Watch, port: int) -> None:
    """Serve the page at a port (0: a free one) until a signal;
    raises ValueError where it cannot listen there.
    """
    with suppress(KeyboardInterrupt), Server(port, watch) as server:
        lines = [server.address, PRIVATE]
        if "SSH_CONNECTION" in os.environ:
            tunnel = (
                "ssh -N -L"
                f" {server.server_port}:{LOOPBACK}:{server.server_port} {os.uname().nodename}"
            )
            lines.append(
                Message(
                    "watch.tunnel",
                    f"On the machine of your browser, first: `{tunnel}`",
                    command=tunnel,
                )
            )
        print("\n".join(lines), flush=True)
        os.nice(NICE)  # the whole process: its threads wait for one another
        Thread(target=watch.keep_up, daemon=True).start()
        server.serve_forever()
