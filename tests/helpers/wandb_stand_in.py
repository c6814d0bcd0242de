"""A small W&B server on this machine: it answers the few calls of an upload,
and keeps what it was sent.

Artifacts are answered as if they were known already, so that their files are not sent; all else is.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")
STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")
HISTORY, EVENTS, SUMMARY = "wandb-history.jsonl", "wandb-events.jsonl", "wandb-summary.json"


@dataclass
class Stored:
    """What the server has of one run."""

    variables: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, list[Any]] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.lines.get(HISTORY, [])

    @property
    def samples(self) -> list[dict[str, Any]]:
        return self.lines.get(EVENTS, [])

    @property
    def summary(self) -> dict[str, Any]:
        return next(iter(self.lines.get(SUMMARY, [])), {})


@dataclass
class Server:
    """The server's memory.

    projects: "entity/name" of those that a dashboard may go to. views: workspaces, by the server's
    id.
    refused_views: names of those that it does not take.
    calls: the names of the GraphQL operations, in their order.
    """

    url: str = ""
    runs: dict[str, Stored] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    projects: tuple[str, ...] = ("someone/multicard", "someone/my-node", "my-team/my-node")
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused_views: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        found = OPERATION.search(request["query"])
        name, variables = found[1] if found else "", request.get("variables") or {}
        self.calls.append(name)
        try:
            return {"data": self.answer(name, variables)}
        except PermissionError as error:
            return {"errors": [{"message": str(error)}]}

    def answer(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - one each
        """The data of an operation's answer, by its variables."""
        match operation:
            case "Viewer" | "GetDefaultEntity":
                teams = {"edges": [{"node": {"name": "someone"}}]}
                names = {"entity": "someone", "username": "someone"}
                return {"viewer": {"id": "u", **names, "flags": "{}", "teams": teams}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "RunResumeStatus":
                run = self.runs.get(given["name"])
                bucket = None if run is None else self.bucket(given["name"], run)
                entity = {"id": "e", "name": "someone"}
                return {
                    "model": {
                        "id": "p",
                        "name": given["project"],
                        "entity": entity,
                        "bucket": bucket,
                    }
                }
            case "UpsertBucket":
                inserted = given["name"] not in self.runs
                run = self.runs.setdefault(given["name"], Stored())
                run.variables |= {key: value for key, value in given.items() if value is not None}
                project = {
                    "id": "p",
                    "name": given["project"],
                    "entity": {"id": "e", "name": "someone"},
                }
                own = {"description": None, "sweepName": None, "project": project}
                return {
                    "upsertBucket": {
                        "bucket": self.bucket(given["name"], run) | own,
                        "inserted": inserted,
                    }
                }
            case "CreateRunFiles":
                files = [
                    {"name": name, "uploadUrl": f"{self.url}/put/{name}"} for name in given["files"]
                ]
                return {
                    "createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}
                }
            case "ArtifactType":  # of an artifact by its name: there is none
                return {"project": {"artifact": None}}
            case "CreateArtifact":
                made = given.get("input") or given
                self.artifacts.append(made)
                name = (
                    made.get("artifactCollectionName")
                    or (made.get("artifactCollectionNames") or [""])[0]
                )
                sequence = {"id": "s", "latestArtifact": {"id": "a", "versionIndex": 0}}
                artifact = {"id": name, "state": "COMMITTED", "artifactSequence": sequence}
                return {"createArtifact": {"artifact": artifact}}
            case "FindView":
                if f"{given['entityName']}/{given['projectName']}" not in self.projects:
                    return {"project": None}
                wanted = {name: given[name] for name in ("entityName", "projectName", "type")}
                wanted |= {"name": given["viewName"]}
                found = [view for view in self.views.values() if wanted.items() <= view.items()]
                nodes = [{"node": {"id": view["id"], "name": view["name"]}} for view in found]
                return {"project": {"allViews": {"edges": nodes}}}
            case "upsertView":
                if given["name"] in self.refused_views:
                    raise PermissionError("quota exceeded\nsee your plan")
                view = {**given, "id": given.get("id") or f"view{len(self.views)}"}
                inserted = view["id"] not in self.views
                self.views[view["id"]] = view
                return {"upsertView": {"view": view, "inserted": inserted}}
        self.unknown.append(operation)
        return {}

    def bucket(self, name: str, run: Stored) -> dict[str, Any]:
        """A run as W&B has it, to go on with."""
        return {
            "id": name,
            "name": name,
            "summaryMetrics": json.dumps(run.summary),
            "displayName": run.variables.get("displayName"),
            "logLineCount": 0,
            "historyLineCount": len(run.history),
            "eventsLineCount": len(run.samples),
            "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
            "eventsTail": json.dumps([json.dumps(row) for row in run.samples[-1:]]),
            "config": run.variables.get("config") or "{}",
            "tags": run.variables.get("tags") or [],
            "wandbConfig": json.dumps({"t": 1}),
        }

    def stream(self, run: str, request: dict[str, Any]) -> None:
        """Take a chunk of a run's files: lines at an offset, of which the summary is one."""
        stored = self.runs[run]
        for name, chunk in (request.get("files") or {}).items():
            lines, at = stored.lines.setdefault(name, []), chunk["offset"]
            lines[at : at + len(chunk["content"])] = [_parsed(line) for line in chunk["content"]]
        if request.get("complete"):
            stored.exit_code = request["exitcode"]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


@contextmanager
def running() -> Iterator[Server]:
    """The server, while it answers."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name
            pass

        def answer(self, content: Any = None, status: int = 200) -> None:
            body = json.dumps({} if content is None else content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        do_HEAD = do_GET = answer  # noqa: N815

        def do_PUT(self) -> None:
            self.body()
            self.answer()

        def do_POST(self) -> None:
            content = self.body()
            with state.lock:
                found = STREAM.fullmatch(self.path)
                if self.path == "/graphql":
                    self.answer(state.graphql(json.loads(content)))
                elif found is None:  # W&B's figures of its own work
                    self.close_connection = True
                    self.answer(status=404)
                else:
                    state.stream(found[3], json.loads(content))
                    self.answer()

    class Listener(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:  # a client that has gone
            pass

    server = Listener(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
