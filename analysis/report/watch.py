"""`report --watch`: serve the page on loopback, and update it as runs end.

It also shows the cells that run now: how far each is, and when it will be done. It learns this from
their folders alone.

The address contains a random token. A client without the token gets an empty 404. So does a foreign
web page whose own name resolves to this machine.

Watching must not disturb measurements on the same machine. Folders are read only while somebody
looks at the page, at a low priority and for at most a third of the time. Making pages takes at most
a third of a core.
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
LEAST_S = 2.0  # The shortest pause between two scans of the folders.
# The interval at which to ask whether a cell is still being measured. With SLURM, asking runs a
# command.
OWNER_S = 10.0
# A pause is this many times as long as the scan before it, or as the CPU time of making the page.
PAUSE_FACTOR = 2
# Next to a busy CPU rank, this leaves a tenth of a core. At 19, a page would take minutes there.
NICE = 10
PATIENCE_S = 10.0  # The time limit for the request of a connection.
WAITING = Message("watch.waiting", "Waiting for the first run")
NOTHING_RUNS = Message("watch.nothing-runs", "Nothing runs now; new runs will appear here.")
PRIVATE_ADDRESS = Message(
    "watch.private", "The address is for you alone, and new each time. Ctrl-C ends it."
)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RunningCell:
    """A cell that is being measured.

    setting: the settings that distinguish it from other cells of its sweep.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.setting = setting_of(folder)
        self._board = BoardCopy(folder)
        self._bar: ProgressBar | None = None
        self._board_id = 0
        # The time and the number of steps when training was first seen.
        self._first_seen: tuple[float, float] | None = None

    def look(self, now_s: float) -> dict[str, Any]:
        """Return what a page shows of the cell: its names, `share` and `facts`.

        `share` is the share of its steps that are done, or None before training.
        """
        names = {"sweep": self.folder.parent.name, "setting": self.setting}
        progress: dict[str, Any] = {}
        # Files may be incomplete or deleted. In that case, use the board as it was read last.
        with suppress(Exception):
            self._open()
        # The board may contain anything, so no error in it may stop the page.
        with suppress(Exception):
            progress = self._bar.fields(now_s) if self._bar is not None else {}
        if not progress:
            return names | {"share": None, "facts": ["starting"]}
        share = progress["completed"] / progress["total"]
        steps = progress["completed"]
        seen_s, seen = self._first_seen = self._first_seen or (now_s, steps)
        facts = [progress["description"], f"{100 * share:.0f} %", *progress["figures"].split("  ")]
        if steps > seen:
            facts.append(
                f"{in_hours((progress['total'] - steps) * (now_s - seen_s) / (steps - seen))} left"
            )
        return names | {"share": share, "facts": [fact for fact in facts if fact]}

    def _open(self) -> None:
        """Read the progress board of its ranks, or the new one if the run has started again."""
        self._board.read_again()
        board_id = self._board.path.stat().st_ino
        if board_id == self._board_id:
            return
        config = msgspec.yaml.decode((self.folder / "config.yaml").read_bytes(), type=dict)
        units = (
            workload.unit
            for workload in WORKLOADS
            if config.keys() <= {field.name for field in fields(workload.schema)}
        )
        ranks = config["gpus"] * config["nodes"]
        self._bar = ProgressBar(self._board, ranks, config["epochs"], next(units, "samples"))
        self._board_id = board_id
        self._first_seen = None


class Onlooker:
    """Follows the runs under some folders, which may not exist yet.

    results: the inode and change time of each folder's result.
    running: the cells that are being measured.
    cut_off: the folders without a record that are no longer being measured.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.results: dict[Path, tuple[int, int]] = {}
        self.running: dict[Path, RunningCell] = {}
        self.cut_off: list[Path] = []
        # When a folder was last asked for, and whether it was being measured then.
        self._last_asked: dict[Path, tuple[float, bool]] = {}

    def scan(self) -> None:
        """Read which runs have ended, which are running and which were interrupted."""
        folders_found = list(
            load.run_folders([folder for folder in self.folders if folder.is_dir()])
        )
        results: dict[Path, os.stat_result] = {}
        for folder in (folder for folder, has_record in folders_found if has_record):
            with suppress(FileNotFoundError):
                results[folder] = (folder / RESULT).stat()
        unfinished = [folder for folder, has_record in folders_found if not has_record]
        running = [folder for folder in unfinished if self._is_measured(folder)]
        self.running = {
            folder: self.running.get(folder) or RunningCell(folder) for folder in running
        }
        self.cut_off = [folder for folder in unfinished if folder not in self.running]
        self.results = {
            folder: (status.st_ino, status.st_mtime_ns) for folder, status in results.items()
        }

    def _is_measured(self, folder: Path) -> bool:
        """Return True if a process measures into the folder, asking at most every OWNER_S."""
        asked_s, is_measured = self._last_asked.get(folder, (-inf, False))
        if clock_s() - asked_s > OWNER_S:
            asked_s = clock_s()
            is_measured = ownership.owner(folder) is not None
        self._last_asked[folder] = asked_s, is_measured
        return is_measured


def setting_of(folder: Path) -> str:
    """Return the settings of a cell, without those that its sweep's command sets for all cells.

    If this leaves nothing, return all settings.
    """
    words = settings_of(folder.name)
    shared_keys = rerun_commands.set_once(folder.parent)
    return " ".join([word for word in words if word.partition("=")[0] not in shared_keys] or words)


class Watch:
    """The page about the runs under some folders, and the cells that are being measured there.

    build: builds the report.
    waiting: builds a report without runs, which says why there are none.
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
        # The results that the page shows; None before the first page.
        self._shown_results: Any = None
        # The pause until the next scan, and the time from which on the page may be made again.
        self._pause_s = LEAST_S
        self._next_page_s = 0.0
        self._asked = Event()
        self._asked.set()

    def keep_up(self) -> None:
        """Update the page as long as somebody asks for it. This is the loop of a thread."""
        while self._asked.wait():
            self._asked.clear()
            try:
                self._look()
            # A folder may vanish during a scan. The page says so, and the next scan may succeed.
            except Exception as error:
                text = f"This page could not be brought up to date: {error}"
                self._problem = Message("watch.not-up-to-date", text, reason=str(error))
            pause(self._pause_s)

    def _look(self) -> None:
        """Scan the folders, and make a new page if results have changed and it is time."""
        began_s = clock_s()
        self._onlooker.scan()
        scanned_s = clock_s()
        self._pause_s = max(LEAST_S, (scanned_s - began_s) * PAUSE_FACTOR)
        results = self._onlooker.results
        if results == self._shown_results:
            self._problem = None
        elif scanned_s >= self._next_page_s:
            cpu_before_s = process_time()
            try:
                report = self._build() if results else self._waiting(WAITING)
                self._page = page.html(report, self._version + 1)
                self._version += 1
                self._shown_results = results
                self._problem = None
            finally:
                self._next_page_s = clock_s() + (process_time() - cpu_before_s) * PAUSE_FACTOR

    def html(self) -> str:
        """Return the newest page. Before the first one, it says that runs are being read."""
        self._asked.set()
        return self._page

    def state(self) -> str:
        """Return JSON for the page's script.

        It has the `version` of the newest page, the `running` cells, and what is `said` about them.
        """
        self._asked.set()
        running = [cell.look(clock_s()) for cell in self._onlooker.running.values()]
        cut_off = [setting_of(folder) for folder in self._onlooker.cut_off]
        lines = [
            (
                Message("watch.running", f"Running now: {len(running)}.", cells=len(running))
                if running
                else NOTHING_RUNS
            )
        ]
        if self._problem is not None:
            lines.append(self._problem)
        if cut_off:
            text = f"Interrupted, without a record: {first_few(cut_off, 2)}."
            lines.append(Message("watch.interrupted", text, settings=cut_off))
        return json.dumps({"version": self._version, "running": running, "said": lines})


class Server(ThreadingHTTPServer):
    """A server whose address only its user knows.

    Raises:
        ValueError: it cannot listen at the port.
    """

    daemon_threads = True

    def __init__(self, port: int, watch: Watch) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            text = f"--port {port}: {error}; leave it out for a free one"
            raise Refusal("watch.port", text, key="--port", value=port, reason=str(error)) from None
        self.token = secrets.token_urlsafe(24)
        self.address = f"http://{LOOPBACK}:{self.server_port}/{self.token}/"
        self.answers = {"": ("text/html", watch.html), "state": ("application/json", watch.state)}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: it is no error if a reader has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "multicard"
    sys_version = ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        token, _, name = self.path.removeprefix("/").partition("/")
        knows_token = hmac.compare_digest(token.encode(), self.server.token.encode())
        if knows_token and self._is_local() and name in self.server.answers:
            content_type, make_answer = self.server.answers[name]
            self._send_response(200, content_type, make_answer().encode())
        else:
            self._send_response(404, "text/plain", b"")

    def _is_local(self) -> bool:
        """Return True if the client used a name of this machine.

        The port does not count, because a tunnel of ssh may end at another port.
        """
        with suppress(ValueError):
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in (LOOPBACK, "localhost")
        return False

    def _send_response(self, status: int, content_type: str, content: bytes) -> None:
        """Send a response with the headers of all responses."""
        self.send_response(status)
        content_headers = {
            "Content-Type": f"{content_type}; charset=utf-8",
            "Content-Length": str(len(content)),
        }
        for key, value in (HEADERS | content_headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing: the terminal belongs to the user."""


def serve(watch: Watch, port: int) -> None:
    """Serve the page at a port until a signal arrives. Port 0 is any free port.

    Raises:
        ValueError: the server cannot listen at the port.
    """
    with suppress(KeyboardInterrupt), Server(port, watch) as server:
        lines = [server.address, PRIVATE_ADDRESS]
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
        os.nice(NICE)  # This slows the whole process, because its threads wait for one another.
        Thread(target=watch.keep_up, daemon=True).start()
        server.serve_forever()
