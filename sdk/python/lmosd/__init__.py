"""Agents for lmosd in Python: serve actions to the mesh, and call other agents, through the node of this machine.

    from lmosd import Agent
    agent = Agent("weather", capabilities=["urn:example:weather"])
    @agent.action
    def get_weather(question: str) -> str:
        "Answers weather questions."
        return "sunny"
    agent.run()

    import lmosd
    lmosd.call("weather", "get_weather", question="Rain in Bonn?")

One file for Python 3.9 or later, without dependencies: install the package, or copy this file beside your program as lmosd.py.
The agent connects to the node (one WebSocket, RFC 6455), so it needs no port. Schemas come from type hints, descriptions from docstrings.

Limits: inputs, outputs, values and events are JSON of at most 4 MiB. Other text arrives as a string, other data in base64. A
function that takes Chunks receives input without a limit. A response stream that is 1000 parts ahead of its reader is cut off.
Each request runs in a thread; coroutines run in one event loop.

Apache-2.0.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import collections.abc
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import http.client
import inspect
import json
import logging
import math
import os
import queue
import random
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import types
import typing
import urllib.parse
import uuid

__all__ = ["Agent", "Caller", "Chunks", "Context", "Error", "Event", "Mesh", "NotRunning", "State", "Task", "call", "find", "find_all",
           "read", "start", "stream", "task", "watch", "write"]

F = typing.TypeVar("F", bound=typing.Callable[..., typing.Any])
T = typing.TypeVar("T")
JSON = typing.Dict[str, typing.Any]  # an object
Function = typing.Callable[..., typing.Any]
Events = typing.Iterator[typing.Tuple[str, str, typing.Any]]  # name, id and value of each

MAX_MESSAGE = 4 << 20  # bytes of one WebSocket message, the limit of the node
WINDOW = 256 << 10  # unread bytes of a request stream, with the headers of the frames
MAX_CHUNK = 64 << 10  # bytes of a request stream in one frame
CHUNK, END, ABORT, CREDIT, STOP = 1, 2, 3, 4, 5  # the kinds of binary frames: docs/sdk.md
ABSENCE = 60  # seconds for which watch tries to reach a node that was lost
FIRST_PAUSE, MAX_PAUSE = 0.1, 5  # seconds before a new connection; the pause doubles
LASTING = 5  # seconds after which a connection without events counts as established
RETRYABLE = {"LMOS-1429", "LMOS-1503", "LMOS-1504", "LMOS-1529", "LMOS-1531", "LMOS-3001", "LMOS-3002", "LMOS-3021", "LMOS-3030", "LMOS-3031"}
LISTEN = {"observeProperty": "propertyReading", "subscribeEvent": "event"}  # the messages of each kind of subscription
LEAVE = {"unobserveProperty": "propertyReading", "unsubscribeEvent": "event"}
log = logging.getLogger("lmosd")


class Error(Exception):
    """An error of the node or of an agent (RFC 9457). An agent raises it to choose the text: title is the cause, hint the remedy.
    The steps that can help are in next, a list of {"kind", "args"}; the defects of an input are in problem["validationErrors"].
    The command lmosd errors ls lists the codes."""

    def __init__(self, title: str, code: str = "LMOS-1502", hint: str = "", problem: JSON | None = None) -> None:
        super().__init__(title)
        self.title, self.code, self.hint, self.problem = title, code, hint, problem or {}
        self.next: list[JSON] = self.problem.get("next") or []
        self.retryable = code in RETRYABLE  # the same request may succeed later
        self.one_line = False  # see one_line

    def __str__(self) -> str:
        steps = ", ".join(" ".join([s["kind"], *s.get("args", [])]) for s in self.next)
        return "; ".join(filter(None, ["%s (%s)" % (self.title, self.code), self.hint, steps and "next: " + steps]))


class NotRunning(Error):
    """No node answers (LMOS-3001). If it ends the program, Python prints one line instead of a traceback, and exits with 3."""

    def __init__(self, title: str) -> None:
        super().__init__(title, "LMOS-3001", "start one: lmosd run")
        one_line(self)


_former: list[typing.Callable[..., typing.Any]] = []  # the hook for uncaught errors that one_line has replaced


def one_line(e: Error) -> None:
    """Marks e: if it ends the program, one line is printed instead of a traceback, which would show frames of this file only."""
    e.one_line = True
    if not _former:
        _former.append(sys.excepthook)
        sys.excepthook = uncaught


def uncaught(kind: type[BaseException], value: BaseException, trace: types.TracebackType | None) -> None:
    if not isinstance(value, Error) or not value.one_line:
        _former[0](kind, value, trace)
        return
    print("lmosd: %s" % value, file=sys.stderr)
    sys.exit(3 if isinstance(value, NotRunning) else 1)


def from_problem(p: object) -> Error:
    """The error of a problem document, or of an error message of the WebSocket."""
    p = p if isinstance(p, dict) else {}
    return Error(p.get("detail") or p.get("title") or "the node refused", p.get("code") or "LMOS-1500", p.get("hint") or "", p)


# --- address of the node -------------------------------------------------------------------------------------------------


def local() -> tuple[str, str]:
    """The node of this machine and its token: LMOSD_NODE and LMOSD_TOKEN, else the socket in the data folder, else the
    default port."""
    token = os.environ.get("LMOSD_TOKEN", "")
    if os.environ.get("LMOSD_NODE"):
        return os.environ["LMOSD_NODE"], token
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    folder = os.environ.get("LMOSD_DATA_DIR") or os.path.join(home, "lmosd")
    path = os.path.join(folder, "lmosd.sock")
    if os.path.exists(path):
        return path, token
    if not token:
        with contextlib.suppress(OSError):  # the node refuses the request if it requires one
            with open(os.path.join(folder, "api.token"), encoding="ascii") as f:
                token = f.read().strip()
    return "http://127.0.0.1:4668", token


class Connection(http.client.HTTPConnection):
    """HTTP to a node: to a URL, or to the path of a unix socket, with or without "unix:"."""

    def __init__(self, node: str, timeout: float) -> None:
        self.stream: typing.Any = None  # the socket; the response takes it over
        self.path = node[5:] if node.startswith("unix:") else node if node.startswith("/") else ""
        try:
            self.url = urllib.parse.urlsplit("http://localhost" if self.path else node)
            port = self.url.port or {"http": 80, "https": 443}[self.url.scheme]
            super().__init__(self.url.hostname or "", port, timeout=timeout)
        except (KeyError, ValueError, http.client.HTTPException):
            raise Error("expected the URL or the socket of a node, got %r" % node, "LMOS-2000", "for example http://127.0.0.1:4668") from None

    def connect(self) -> None:
        if self.path:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self.path)
            return
        super().connect()
        if self.url.scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.url.hostname)


# --- consumer ----------------------------------------------------------------------------------------------------------


class Mesh:
    """Finds, calls, reads, writes and watches agents through one node. It may be used by many threads. The option delegation of
    a method is a delegation, by which the node uses the right of another caller: the token that lmosd delegate prints."""

    def __init__(self, node: str | None = None, token: str | None = None) -> None:
        at, key = local()
        self.node, self.token = node or at, key if token is None else token

    def open(self, method: str, path: str, body: bytes | Upload | None = None, headers: dict[str, str] | None = None,
             timeout: float = 60) -> tuple[http.client.HTTPResponse, Connection]:
        """Sends one request. Returns the response, which the caller reads, and its connection, which the caller closes. A body
        that is an Upload is sent while the response is read."""
        headers = dict(headers or {})
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        upload = body if isinstance(body, Upload) else None
        if upload:
            headers["Transfer-Encoding"], headers["Content-Type"] = "chunked", upload.content_type
        elif body is not None:
            headers["Content-Type"] = "application/json"
        c = Connection(self.node, timeout)
        try:
            c.request(method, path, None if isinstance(body, Upload) else body, headers)
            c.stream = c.sock
            if upload:
                upload.start(c.sock)
            r = c.getresponse()
            if r.status < 400:
                return r, c
            raw = r.read()
        except (OSError, http.client.HTTPException) as e:
            c.close()
            if upload and upload.error:
                raise upload.error from e
            raise self.lost(e) from None  # the error has the cause
        c.close()
        try:
            problem = json.loads(raw)
        except ValueError:
            problem = {"detail": "the server at %s is not a node: status %d" % (self.node, r.status), "code": "LMOS-3002"}
        raise from_problem(problem)

    def lost(self, e: Exception) -> Error:
        """The error for a connection that failed with e."""
        if isinstance(e, socket.timeout):
            return Error("the node at %s did not answer in time" % self.node, "LMOS-1504", "check it: lmosd status")
        return NotRunning("no node answers at %s: %s" % (self.node, reason(e)))

    def json(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> typing.Any:
        """Sends one request and decodes the response: JSON as its value, text as str, other types as bytes, no content as None."""
        r, c = self.open(method, path, body, headers)
        with contextlib.closing(c):
            try:
                raw = r.read()
            except (OSError, http.client.HTTPException) as e:
                raise self.lost(e) from None
        kind = (r.getheader("Content-Type") or "").split(";")[0]
        if not raw:
            return None
        if kind == "application/json" or kind.endswith("+json"):
            return json.loads(raw)
        return raw.decode() if kind.startswith("text/") else raw

    def events(self, r: http.client.HTTPResponse, c: Connection, until: float | None = None) -> Events:
        """Yields name, id and value of each server-sent event of a response. An event with a problem is raised. Until is the
        monotonic time of the error LMOS-1504."""
        rest: list[bytes] = []
        data: list[str] = []
        name = ident = ""
        with contextlib.closing(c):
            while True:
                try:
                    if until is not None:
                        c.stream.settimeout(max(0.001, until - time.monotonic()))
                    more = r.read1(1 << 16)  # readline would report a broken connection as the end
                except (OSError, http.client.HTTPException) as e:
                    if isinstance(e, socket.timeout) and until is not None:
                        raise Error("the time is over", "LMOS-1504") from None
                    raise Lost("the connection to the node broke") from e
                if not more:
                    return
                rest.append(more)
                if b"\n" not in more:
                    continue
                lines = b"".join(rest).split(b"\n")
                rest = [lines.pop()]
                for line in lines:
                    field, _, value = line.decode("utf-8", "replace").rstrip("\r").partition(":")
                    value = value[1:] if value.startswith(" ") else value
                    if field == "event":
                        name = value
                    elif field == "id":
                        ident = value
                    elif field == "data":
                        data.append(value)
                    elif len(line) < 2:  # the end of an event, and not a comment
                        decoded = json.loads("\n".join(data)) if data else None
                        if name == "lmosd:problem":
                            raise from_problem(decoded)
                        if data:
                            yield name, ident, decoded
                        name, ident, data = "", "", []

    def find(self, text: str = "", **query: typing.Any) -> list[JSON]:
        """Returns the best matching agents, at most limit (32), as dicts with id and name: find("weather"),
        find(capability="urn:example:weather")."""
        return next(self._pages(text, query))

    def find_all(self, text: str = "", **query: typing.Any) -> typing.Iterator[JSON]:
        """Yields all matching agents, the best first, page by page."""
        for items in self._pages(text, query):
            yield from items

    def _pages(self, text: str, query: JSON | None) -> typing.Iterator[list[JSON]]:
        if text and query is not None:
            query["q"] = text
        while query is not None:
            page = self.json("GET", "/v1/find?" + urllib.parse.urlencode(query, doseq=True))
            yield page["items"]
            query = {"page": page["next"]} if page.get("next") else None

    def call(self, agent: str, action: str, *input: typing.Any, timeout: float = 30, delegation: str = "",
             **members: typing.Any) -> typing.Any:
        """Calls an action and returns its output, or None. The input is the one positional argument, or an object of the keyword
        arguments. The parts of a response stream are joined: texts as one text, others as a list. After timeout seconds, at most
        600, the error is LMOS-1504; an action that is not synchronous continues. Bytes, a file or an iterator of bytes are sent
        unchanged while they are read, with content_type="audio/wav" for example. An input with a member that has the name of an
        option is given as a dict."""
        parts = []
        for final, output in self._run(agent, action, input, members, timeout, delegation):
            if final and output is not None:
                return output
            if not final:
                parts.append(output)
        if len(parts) > 1:
            return "".join(parts) if all(isinstance(p, str) for p in parts) else parts
        return parts[0] if parts else None

    def stream(self, agent: str, action: str, *input: typing.Any, timeout: float = 30, delegation: str = "",
               **members: typing.Any) -> typing.Generator[typing.Any, None, None]:
        """Calls an action like call, and yields the parts of its output as they arrive. Closing the generator cancels the call."""
        parts = 0
        for final, output in self._run(agent, action, input, members, timeout, delegation):
            if output is not None and not (final and parts):
                parts += 1
                yield output

    def start(self, agent: str, action: str, *input: typing.Any, delegation: str = "", **members: typing.Any) -> Task:
        """Starts an action with an input like that of call, and returns its Task, which continues without this program."""
        body, upload = content(input, members)
        headers = {"Prefer": "respond-async, lmos-input", "Idempotency-Key": str(uuid.uuid4()), **presented(delegation)}
        t = Task(self, agent, action, delegation)
        try:
            r, c = self.open("POST", affordance(agent, "actions", action), body, headers)
            with contextlib.closing(c):
                t._state(json.loads(r.read()))
        except (OSError, http.client.HTTPException) as e:
            raise self.lost(e) from None
        finally:
            if upload:
                upload.stop()
        return t

    def task(self, id: str) -> Task:
        """Returns a task of the node by its id, from another program for example (lmosd task ls)."""
        m = self.json("GET", "/v1/tasks/" + quote(id))
        t = Task(self, m["thing"], m["action"], "")
        t._state({**m, "href": m["id"], "lmosd:inputRequired": m.get("inputs")})
        return t

    def _run(self, agent: str, action: str, input: tuple[typing.Any, ...], members: JSON, timeout: float,
             delegation: str) -> typing.Iterator[tuple[bool, typing.Any]]:
        """Yields the output of an action: (False, part) for each part, and (True, output) at the end."""
        body, upload = content(input, members)
        headers = {"Accept": "text/event-stream", "Prefer": "wait=%d" % max(1, math.ceil(timeout)), **presented(delegation)}
        try:
            yield from self._states(action, *self.open("POST", affordance(agent, "actions", action), body, headers, max(60, timeout)))
        except Lost:
            if upload and upload.error:  # the cause
                raise upload.error from None
            raise
        finally:
            if upload:
                upload.stop()

    def _states(self, action: str, r: http.client.HTTPResponse, c: Connection) -> typing.Iterator[tuple[bool, typing.Any]]:
        for _, _, state in self.events(r, c):
            status, output = state.get("status"), state.get("output")
            if status == "failed":
                raise from_problem(state.get("error"))
            if status == "cancelled":
                raise Error("%s was cancelled" % action, "LMOS-1499")
            if status == "completed" or output is not None:
                yield status == "completed", output
            if status == "completed":
                return
        raise Error("%s ended without a result" % action, "LMOS-3002", "check the node: lmosd status")

    def read(self, agent: str, name: str = "", delegation: str = "") -> typing.Any:
        """Returns the value of a property; without a name, a dict of all readable properties."""
        return self.json("GET", affordance(agent, "properties", name), headers=presented(delegation))

    def write(self, agent: str, name: str, value: typing.Any, delegation: str = "") -> None:
        """Writes a property."""
        self.json("PUT", affordance(agent, "properties", name), encode(value), presented(delegation))

    def watch(self, agent: str, event: str = "", property: str = "", after: str = "",
              delegation: str = "") -> typing.Generator[tuple[str, typing.Any], None, None]:
        """Yields (name, value) of an event, of a property, of all events, or of all properties ("*"), until the generator is
        closed. After a lost connection it reconnects for up to 60 seconds and requests the missed events."""
        path = affordance(agent, "properties", property.strip("*")) if property else affordance(agent, "events", event)
        for name, _, value in self._follow(path, after, delegation):
            yield name, value

    def _follow(self, path: str, after: str, delegation: str, until: float | None = None) -> Events:
        """Yields the events at a path, as events does, and reconnects."""
        pause, seen, ever = FIRST_PAUSE, 0.0, False
        while True:
            headers, opened = {"Accept": "text/event-stream", **presented(delegation)}, None
            if after:
                headers["Last-Event-ID"] = after
            try:
                stream = self.open("GET", path, None, headers, 60 if until is None else max(0.001, until - time.monotonic()))
                opened = time.monotonic()
                for name, ident, value in self.events(*stream, until):
                    opened, after = 0, ident or after  # an event establishes the connection
                    yield name, ident, value
                return  # the stream is complete
            except Error as e:
                now = time.monotonic()
                if opened is not None and (not ever or now - opened > LASTING):  # the connection was established until now
                    pause, seen, ever = FIRST_PAUSE, now, True
                # A node that has just restarted may not know the agent yet.
                if not ever or now - seen > ABSENCE or not (e.retryable or e.code == "LMOS-1404"):
                    raise
                if until is not None and now + pause > until:
                    raise
            time.sleep(pause)
            pause = min(MAX_PAUSE, 2 * pause)


class Task:
    """A run of an action that continues without this program, from Mesh.start or Mesh.task. Its state is that of the last method:
    status is pending, running, input-required, completed, failed or cancelled; output is the result, error an Error or None, and
    inputs are the requests for input, by key, as dicts with kind, message and schema."""

    def __init__(self, mesh: Mesh, agent: str, action: str, delegation: str) -> None:
        self.mesh, self.agent, self.action, self.delegation = mesh, agent, action, delegation
        self.id = self.status = ""
        self.output: typing.Any = None
        self.error: Error | None = None
        self.inputs: dict[str, JSON] = {}

    def __repr__(self) -> str:
        return "<Task %s %s: %s>" % (self.action, self.id, self.status)

    def wait(self, timeout: float | None = None) -> typing.Any:
        """Waits for the output and returns it. It raises the error of the action; LMOS-1499 if the task was cancelled, LMOS-1428
        if it requires input (inputs, answer), and LMOS-1504 after timeout seconds, after which the task continues."""
        until = None if timeout is None else time.monotonic() + timeout
        for _, _, state in self.mesh._follow(self._path(), "", self.delegation, until):
            self._state(state)
            if self.error:
                raise self.error
            if self.status == "cancelled":
                raise Error("%s was cancelled" % self.action, "LMOS-1499")
            if self.status == "input-required":
                words = "; ".join(i.get("message") or key for key, i in self.inputs.items())
                raise Error("%s requires input: %s" % (self.action, words), "LMOS-1428", "answer it: Task.answer")
            if self.status == "completed":
                return self.output
        raise Error("%s ended without a result" % self.action, "LMOS-3002", "check the node: lmosd status")

    def refresh(self) -> str:
        """Reads the state, and returns the status."""
        self._state(self.mesh.json("GET", self._path(), headers=presented(self.delegation)))
        return self.status

    def answer(self, *content: typing.Any, **members: typing.Any) -> None:
        """Provides the input that the task requires: one argument, or the members of an object. If there are several requests, it
        is an object with the content of each, by key."""
        if len(content) > 1 or content and members:
            raise TypeError("expected one answer or keyword arguments, got both")
        given = content[0] if content else members
        keys = list(self.inputs) or ["answer"]
        self._provide({key: {"action": "accept", "content": given if len(keys) == 1 else given[key]} for key in keys})

    def decline(self) -> None:
        """Declines to provide the input that the task requires; the action decides how to continue."""
        self._provide({key: {"action": "decline"} for key in list(self.inputs) or ["answer"]})

    def cancel(self) -> None:
        """Cancels the run."""
        self.mesh.json("DELETE", self._path(), headers=presented(self.delegation))
        self.status = "cancelled"

    def _provide(self, answers: JSON) -> None:
        self.mesh.json("POST", self._path(), encode(answers), presented(self.delegation))
        self.status, self.inputs = "running", {}

    def _path(self) -> str:
        return affordance(self.agent, "actions", self.action) + "/" + quote(self.id)

    def _state(self, m: JSON) -> None:
        """Takes the state from its document."""
        self.id = urllib.parse.unquote(m.get("href", "").rpartition("/")[2]) or self.id
        self.status, self.output, self.inputs = m["status"], m.get("output"), m.get("lmosd:inputRequired") or {}
        self.error = from_problem(m.get("error")) if self.status == "failed" else None
        if self.inputs:
            self.status = "input-required"


def reason(e: Exception) -> str:
    """The cause of a failed connection, in words."""
    words = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or type(e).__name__
    return words[:1].lower() + words[1:]


def content(input: tuple[typing.Any, ...], members: JSON) -> tuple[bytes | Upload | None, Upload | None]:
    """The body of a call, and the same if it is an Upload."""
    upload = Upload(input[0], **members) if len(input) == 1 and Upload.fits(input[0]) else None
    if len(input) > 1 or input and members and not upload:
        raise TypeError("expected one input or keyword arguments, got both")
    return upload or (encode(input[0] if input else members) if input or members else None), upload


class Upload:
    """An input that a thread sends while it reads it. The response may start before the input ends."""

    def __init__(self, input: typing.Any, content_type: str = "application/octet-stream") -> None:
        self.source, self.content_type = input, content_type
        self.error: Exception | None = None
        self.sock: typing.Any = None

    @staticmethod
    def fits(input: object) -> bool:
        return isinstance(input, (bytes, bytearray, memoryview)) or hasattr(input, "read") or hasattr(input, "__next__")

    def chunks(self) -> typing.Iterator[typing.Any]:
        if hasattr(self.source, "read"):
            read = getattr(self.source, "read1", self.source.read)  # the available bytes
            return iter(functools.partial(read, MAX_CHUNK), b"")
        return iter([self.source] if not hasattr(self.source, "__next__") else self.source)

    def start(self, sock: socket.socket) -> None:
        self.sock = sock
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        chunks = self.chunks()
        while True:
            try:
                chunk = next(chunks, None)
                chunk = None if chunk is None else bytes(chunk)
            except Exception as e:  # open raises it
                self.error = e
                self.stop()
                return
            try:
                if chunk is None:
                    self.sock.sendall(b"0\r\n\r\n")
                    return
                if len(chunk):
                    self.sock.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            except OSError:  # the node has closed the connection
                return

    def stop(self) -> None:
        """Ends the thread."""
        if self.sock:
            with contextlib.suppress(OSError):  # the node has closed it
                self.sock.shutdown(socket.SHUT_RDWR)


def affordance(agent: str, kind: str, name: str) -> str:
    return "/".join(["/things", quote(agent), kind] + ([quote(name)] if name else []))


def presented(delegation: str) -> dict[str, str]:
    """The header of a request by a delegation; a token that was read from a file may have a line end."""
    return {"Lmos-Capability": delegation.strip()} if delegation else {}


def quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")


# The methods of Mesh, through the node of this machine.


def find(text: str = "", **query: typing.Any) -> list[JSON]:
    """Finds agents: Mesh.find."""
    return Mesh().find(text, **query)


def find_all(text: str = "", **query: typing.Any) -> typing.Iterator[JSON]:
    """Finds agents, page by page: Mesh.find_all."""
    return Mesh().find_all(text, **query)


def call(agent: str, action: str, *input: typing.Any, **members: typing.Any) -> typing.Any:
    """Calls an action: Mesh.call."""
    return Mesh().call(agent, action, *input, **members)


def stream(agent: str, action: str, *input: typing.Any, **members: typing.Any) -> typing.Generator[typing.Any, None, None]:
    """Calls an action and yields the parts of its output: Mesh.stream."""
    return Mesh().stream(agent, action, *input, **members)


def start(agent: str, action: str, *input: typing.Any, **members: typing.Any) -> Task:
    """Starts an action: Mesh.start."""
    return Mesh().start(agent, action, *input, **members)


def task(id: str) -> Task:
    """Returns a task by its id: Mesh.task."""
    return Mesh().task(id)


def read(agent: str, name: str = "", delegation: str = "") -> typing.Any:
    """Reads a property: Mesh.read."""
    return Mesh().read(agent, name, delegation)


def write(agent: str, name: str, value: typing.Any, delegation: str = "") -> None:
    """Writes a property: Mesh.write."""
    Mesh().write(agent, name, value, delegation)


def watch(agent: str, event: str = "", property: str = "", after: str = "",
          delegation: str = "") -> typing.Generator[tuple[str, typing.Any], None, None]:
    """Watches an agent: Mesh.watch."""
    return Mesh().watch(agent, event, property, after, delegation)


# --- agent -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Caller:
    """The caller, as the node has verified it. The id identifies the caller over several requests: "local" or "local#name" on this
    machine, else the DID of a node, with #name for a consumer behind that node, which only that node vouches for. Via is the
    proof: peer, socket, token, loopback, process or unproven. Did and node are empty on this machine; name may be empty.
    Organization is the DID of the organization that a credential proves, or empty. Roles are the roles there, or those of an access
    token of the agent's node. Lent_by is the id of the delegator whose right a call by a delegation uses, or empty."""

    id: str
    did: str = ""
    node: str = ""
    name: str = ""
    via: str = ""
    organization: str = ""
    roles: tuple[str, ...] = ()
    lent_by: str = ""

    @classmethod
    def _of(cls, m: JSON) -> Caller:
        texts = {k: m.get(k, "") for k in ("id", "did", "node", "name", "via", "organization")}
        return cls(**texts, roles=tuple(m.get("roles", ())), lent_by=m.get("lentBy", ""))


class Context:
    """One call of an action, or one request to read or write a property, for functions with a parameter of this type. It has the
    caller, the deadline (seconds since the epoch, or None), and whether the request was cancelled."""

    def __init__(self, m: JSON | None = None) -> None:
        caller, left = (m or {}).get("caller"), (m or {}).get("timeLeft")
        self.caller = Caller._of(caller) if isinstance(caller, dict) else None
        self.deadline = time.time() + left / 1000 if left else None
        self._over, self._answered = threading.Event(), threading.Event()
        self.task: typing.Any = None
        self.chunks: Chunks | None = None
        self._asking: typing.Callable[[JSON], None] | None = None
        self._answer: JSON = {}

    def ask(self, message: str, kind: type[T]) -> T | None:
        """Requests input of the type kind, such as a dataclass, from the caller, and waits for it. Returns None if the caller
        declines. In a coroutine: await asyncio.to_thread(call.ask, message, kind)."""
        self._answer = {}
        self._answered.clear()
        if self._asking is None or self.cancelled:
            raise Error("no caller is available to provide input", "LMOS-1499")
        self._asking({"answer": {"kind": "form", "message": message, "schema": schema(kind)}})
        self._answered.wait()
        if self.cancelled:
            raise Error("the caller has cancelled the request", "LMOS-1499")
        if self._answer.get("action") != "accept":
            return None
        given: T = build(kind, self._answer.get("content") or {})
        return given

    def _provide(self, answers: object) -> bool:
        """Sets the input from the caller, and returns whether the call waited for it."""
        waited = not self._answered.is_set()
        self._answer = answers.get("answer") or {} if isinstance(answers, dict) else {}
        self._answered.set()
        return waited

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled the request, or the connection to the node has ended."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits for seconds, or until the call is cancelled, and returns whether it is cancelled."""
        return self._over.wait(seconds)

    def cancel(self) -> None:
        self._over.set()
        self._answered.set()
        if self.chunks:
            self.chunks._end(Error("the caller has cancelled the request", "LMOS-1499"))
        if self.task:
            self.task.cancel()


class Chunks:
    """A request stream, such as audio or a file, for functions with a parameter of this type. It is read once: for chunk in audio,
    or async for in a coroutine. A chunk is bytes of at most 64 KiB; an input that is not a stream is one chunk. The caller is
    paused while the chunks are not read. A stream that breaks off raises an Error."""

    def __init__(self, content_type: str, whole: bytes = b"", send: typing.Callable[[int, bytes], None] | None = None) -> None:
        self.content_type = content_type  # as the caller declares it, such as "audio/wav"
        self._send, self._over = send or (lambda kind, body: None), send is None
        self._error: Error | None = None
        self._queue, self._used, self._owed, self._credit = collections.deque([whole] if whole else []), 0, WINDOW, 0
        self._changed = threading.Condition()
        self._waiter: typing.Callable[[], object] | None = None

    def __iter__(self) -> Chunks:
        return self

    def __next__(self) -> bytes:
        while True:
            chunk = self._step()
            if chunk is None:
                raise StopIteration
            if chunk:
                return chunk
            with self._changed:
                self._changed.wait_for(self._ready)

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> bytes:
        while True:
            chunk = self._step()
            if chunk is None:
                raise StopAsyncIteration
            if chunk:
                return chunk
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def settle(future: asyncio.Future[None] = future) -> None:
                if not future.done():
                    future.set_result(None)

            with self._changed:
                if self._ready():
                    continue
                self._waiter = functools.partial(loop.call_soon_threadsafe, settle)
            await future

    def close(self) -> None:
        """Stops the request stream, for a function that continues without the rest."""
        with self._changed:
            more = not self._ended()
        self._end(Error("the stream was closed", "LMOS-1499"))
        if more:  # the caller may still send
            self._send(STOP, b"")

    def _ended(self) -> bool:
        return self._over or self._error is not None

    def _ready(self) -> bool:
        return bool(self._queue) or self._ended()

    def _step(self) -> bytes | None:
        """The next chunk, b"" if none has arrived yet, None at the end. It returns the credit of the chunks that were read."""
        with self._changed:
            self._owed, self._used, grant = self._owed + self._used, 0, 0
            if self._owed >= WINDOW // 2 and not self._ended():
                grant, self._owed = self._owed, 0
                self._credit += grant
            chunk: bytes | None = b""
            if self._queue:
                chunk = self._queue.popleft()
                self._used = 5 + len(chunk or b"")
            elif self._error:
                raise self._error
            elif self._over:
                chunk = None
        if grant:
            self._send(CREDIT, struct.pack(">I", grant))
        return chunk

    def _take(self, kind: int, body: bytes) -> None:
        """Handles a frame from the node."""
        with self._changed:
            if self._ended():
                return
            if kind == CHUNK and 0 < len(body) <= MAX_CHUNK and self._credit > 0:
                self._queue.append(body)
                self._credit -= 5 + len(body)
                self._wake()
                return
            if kind == END:
                self._over = True
                self._wake()
                return
        if kind == ABORT:
            self._end(Error("the caller ended the request stream early: " + body.decode("utf-8", "replace"), "LMOS-1499"))
        elif kind == CHUNK:
            self._send(STOP, b"the chunks exceed the credit")
            self._end(Error("the chunks of the request stream exceed the credit", "LMOS-1400"))

    def _end(self, error: Error) -> None:
        with self._changed:
            if not self._ended():
                self._error = error
                self._queue.clear()
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiter:
            self._waiter()
            self._waiter = None


class Event(typing.Generic[T]):
    """An event of an agent, from Agent.event."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.agent, self.name = agent, name

    def emit(self, value: T | None = None) -> None:
        """Sends the event to all subscribers."""
        self.agent._notify("event", self.name, value)


class State(typing.Generic[T]):
    """A property whose value the library stores: consumers read, write and observe it. It is from Agent.state."""

    def __init__(self, agent: Agent, name: str, value: T) -> None:
        self.agent, self.name, self._value, self._lock = agent, name, value, threading.Lock()

    @property
    def value(self) -> T:
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        with self._lock:  # observers receive changes in order
            self._value = value
            self.agent._notify("propertyReading", self.name, value)


class Agent:
    """An agent. Only the name is required. Without an id, the node creates one. Capabilities are ids for search. At most limit
    requests run at once. After ping seconds without a message, the agent pings the node."""

    def __init__(self, name: str, description: str = "", capabilities: typing.Sequence[str | JSON] = (), id: str = "",
                 version: str = "", tool: bool = False, node: str | None = None, token: str | None = None, limit: int = 256,
                 ping: float = 20) -> None:
        if not name:
            raise Error("the agent has no name", "LMOS-2011", 'lmosd.Agent("weather")')
        self.about: JSON = {"title": name, "@type": "lmos:Tool" if tool else "lmos:Agent"}
        for key, value in (("id", id), ("description", description), ("version", version and {"instance": version})):
            if value:
                self.about[key] = value
        if capabilities:
            self.about["lmos:capabilities"] = [c if isinstance(c, dict) else {"id": c, "name": c} for c in capabilities]
        self.node, self.token, self.limit, self.ping = node, token, limit, ping
        self.id = ""  # from the node, once the agent is registered
        self.ready = threading.Event()  # set while the agent is registered
        self._actions: dict[str, Function] = {}
        self._reads: dict[str, Function] = {}
        self._writes: dict[str, Function | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: WebSocket | None = None
        self._stop, self._settled, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._queue: queue.SimpleQueue[typing.Any] = queue.SimpleQueue()  # requests
        self._idle = threading.Semaphore(0)  # idle threads
        self._running: dict[str, Context] = {}
        self._listening: dict[tuple[str, str], tuple[WebSocket, JSON]] = {}
        self._streams: dict[int, Chunks] = {}
        self._quiet = threading.Condition(self._lock)  # notified when a request ends
        self._asked: dict[str, Context] = {}  # calls that may request input, by their id

    # affordances

    def _put(self, kind: str, name: str, schema: JSON, words: str | None, about: JSON) -> None:
        if not name or name in self.about.get(kind, {}):
            raise Error("the name %r is empty or used twice in %s" % (name, kind), "LMOS-2011", "use a different name for each")
        if words:
            schema["description"] = inspect.cleandoc(words)
        schema.update(about)
        self.about.setdefault(kind, {})[name] = schema

    @typing.overload
    def action(self, f: F) -> F: ...

    @typing.overload
    def action(self, *, name: str = "", safe: bool = False, idempotent: bool = False, synchronous: bool = True,
               requires_input: bool = False, **about: typing.Any) -> typing.Callable[[F], F]: ...

    def action(self, f: F | None = None, *, name: str = "", safe: bool = False, idempotent: bool = False, synchronous: bool = True,
               requires_input: bool = False, **about: typing.Any) -> F | typing.Callable[[F], F]:
        """Decorates a function: its parameters are the input, its result the output, its docstring the description. A single
        parameter named input is the whole input; one of type Context is the call; one of type Chunks is the request stream. A
        generator sends a response stream, one part for each yield. Coroutines and asynchronous generators are supported. Safe:
        it changes no state. Idempotent: it may be repeated. Not synchronous: it takes long, and continues when the caller
        disconnects. With requires_input, it may request input (Context.ask). About has further members of the description
        (TD 1.1 §5.3.1.4)."""

        def add(f: F) -> F:
            words: JSON
            hints, words = typing.get_type_hints(f, include_extras=True), {"synchronous": synchronous}
            words.update({w: True for w, on in (("safe", safe), ("idempotent", idempotent or safe), ("lmosd:requiresInput", requires_input)) if on})
            given = parameters(f)
            if given is not None:
                words["input"] = given
            parts = inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f)
            if hints.get("return") not in (None, type(None)) and not parts:
                words["output"] = schema(hints["return"])
            self._put("actions", name or f.__name__, words, f.__doc__, about)
            self._actions[name or f.__name__] = f
            return f

        return add(f) if f else add

    @typing.overload
    def property(self, f: F) -> F: ...

    @typing.overload
    def property(self, *, name: str = "", write: Function | None = None, **about: typing.Any) -> typing.Callable[[F], F]: ...

    def property(self, f: F | None = None, *, name: str = "", write: Function | None = None,
                 **about: typing.Any) -> F | typing.Callable[[F], F]:
        """Decorates a function that returns the value; write is a function that takes a new value. In both, a parameter of type
        Context is the request."""

        def add(f: F) -> F:
            words = schema(typing.get_type_hints(f, include_extras=True).get("return", typing.Any))
            if not write:
                words["readOnly"] = True
            self._put("properties", name or f.__name__, words, f.__doc__, about)
            self._reads[name or f.__name__], self._writes[name or f.__name__] = f, write
            return f

        return add(f) if f else add

    def state(self, name: str, value: T, kind: typing.Any = None, **about: typing.Any) -> State[T]:
        """Returns a property that consumers read, write and observe; set its value to change it. Its type is kind, or that of the
        first value. About has further members of the description: state("level", 0, minimum=0), or readOnly=True."""
        s = State(self, name, value)
        self._put("properties", name, schema(kind or type(value)), "", {"observable": True, **about})
        self._reads[name] = lambda: s.value
        self._writes[name] = None if about.get("readOnly") else lambda v: setattr(s, "value", build(kind or type(value), v))
        return s

    @typing.overload
    def event(self, name: str, kind: type[T], **about: typing.Any) -> Event[T]: ...

    @typing.overload
    def event(self, name: str, kind: typing.Any = typing.Any, **about: typing.Any) -> Event[typing.Any]: ...

    def event(self, name: str, kind: typing.Any = typing.Any, **about: typing.Any) -> Event[typing.Any]:
        """Returns an event, with the method emit(value)."""
        data = schema(kind)
        self._put("events", name, {"data": data} if data else {}, "", about)
        return Event(self, name)

    # the connection

    def run(self) -> None:
        """Serves until stop is called, or the process receives SIGINT or SIGTERM. It raises an error if the first connection to the
        node fails: NotRunning, or that of the node; if it ends the program, Python prints one line. After a lost connection it
        reconnects, with pauses of up to 5 seconds."""
        before: dict[signal.Signals, typing.Any] = {}
        if threading.current_thread() is threading.main_thread():
            for n in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler):
                    # In a thread: the signal may arrive while this one sends.
                    before[n] = signal.signal(n, lambda *_: threading.Thread(target=self.stop).start())
        try:
            self._keep()
        except Error as e:
            one_line(e)
            raise
        finally:
            self._settled.set()
            for n, handler in before.items():
                signal.signal(n, handler)

    def start(self, timeout: float = 10) -> None:
        """Serves in a new thread, and returns when the agent is registered."""
        failed: list[Exception] = []

        def work() -> None:
            try:
                self.run()
            except Exception as e:  # start raises it
                failed.append(e)
                if self.id:
                    log.error("agent stopped: %s", e)

        threading.Thread(target=work, daemon=True).start()
        self._settled.wait(timeout)
        if failed:
            raise failed[0]
        if not self._settled.is_set():
            raise Error("the node did not register the agent within %g s" % timeout, "LMOS-1504")

    def stop(self, wait: float = 8) -> None:
        """Refuses new requests, waits at most wait seconds for running ones, unregisters the agent and ends run."""
        self._stop.set()
        s = self._socket
        if s is None:
            return
        with self._quiet:
            self._quiet.wait_for(lambda: not self._running, wait)
        with contextlib.suppress(Error):  # the connection has ended
            if self.ready.is_set():
                s.send({"messageType": "unregisterThing", "messageId": str(uuid.uuid4()), "thingId": self.id})
            s.frame(8, struct.pack(">H", 1000))
            s.closed.wait(1)  # the node answers when the agent is unregistered
        s.close()

    def _keep(self) -> None:
        pause: float = FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._serve()
            except Error as e:
                if self._stop.is_set():
                    return
                if not self.id or not e.retryable:
                    raise
                log.info("agent reconnects: %s", e)
            finally:
                pause = FIRST_PAUSE if self.ready.is_set() else min(MAX_PAUSE, 2 * pause)
                self.ready.clear()
            self._stop.wait(pause * (0.5 + random.random()))

    def _serve(self) -> None:
        """Serves over one connection until it ends."""
        self._socket = s = WebSocket(Mesh(self.node, self.token), self.ping)
        try:
            if self._stop.is_set():
                return
            s.send({"messageType": "registerThing", "messageId": "register", "streams": True, "data": self.about})
            while True:
                m = s.receive()
                if m is None:
                    return
                if isinstance(m, bytes):
                    self._packet(m)
                else:
                    self._take(s, m)
        finally:
            s.close()
            with self._lock:
                running, self._running, self._listening, self._streams = self._running, {}, {}, {}
                self._quiet.notify_all()
            for call in running.values():
                call.cancel()

    def _packet(self, data: bytes) -> None:
        """Passes a binary frame to its request stream. A frame without one is ignored."""
        if len(data) >= 5:
            kind, number = struct.unpack(">BI", data[:5])
            with self._lock:
                chunks = self._streams.get(number)
            if chunks:
                chunks._take(kind, data[5:])

    def _take(self, s: WebSocket, m: JSON) -> None:
        """Handles a message of the node. Cancellations run at once, requests in a thread."""
        kind, name, ident = m.get("messageType", ""), m.get("action") or m.get("event") or m.get("name") or "", m.get("messageId", "")
        if kind == "thingRegistered":
            self.id = m["thingId"]
            self.ready.set()
            self._settled.set()
        elif kind == "error" and m.get("correlationId") == "register":
            raise from_problem(m)
        elif kind in ("error", "acknowledgement"):
            pass  # the response to unregisterThing
        elif kind in LISTEN:
            with self._lock:  # one for each affordance: the node distributes to its subscribers
                self._listening[LISTEN[kind], name] = s, m
            s.send(reply(m, "acknowledgement", message=kind))
        elif kind in LEAVE:
            with self._lock:
                self._listening.pop((LEAVE[kind], name), None)
            s.send(reply(m, "acknowledgement", message=kind))
        elif kind == "continueAction":
            with self._lock:
                call = self._asked.get(m.get("actionId") or m.get("actionID") or "")
            if call and call._provide(m.get("input")):
                s.send(reply(m, "acknowledgement", message=kind))
            else:
                s.send(failure(m, Error("no call waits for this input", "LMOS-1410", "it may have ended already")))
        elif kind == "cancelAction":
            with self._lock:
                call = self._running.get(m.get("correlationId", ""))
            if call:
                call.cancel()
            s.send(reply(m, "actionStatus", action=name, status="failed", state="cancelled"))
        else:
            call = Context(m)
            with self._lock:
                stopping = self._stop.is_set()
                room = len(self._running) < self.limit
                if room and not stopping:
                    self._running[ident] = call
                    if m.get("stream"):
                        call.chunks = Chunks(m.get("contentType") or "application/octet-stream", send=functools.partial(
                            s.packet, m["stream"]))
                        self._streams[m["stream"]] = call.chunks
            if stopping:
                s.send(failure(m, Error("the agent is shutting down", "LMOS-3030", "try again later, or at another host")))
                return
            if not room:
                busy = Error("the agent runs %d requests already" % self.limit, "LMOS-1529", "try again later")
                s.send(failure(m, busy))
                return
            self._queue.put((s, m, kind, name, call))
            if not self._idle.acquire(blocking=False):
                threading.Thread(target=self._worker, daemon=True).start()

    def _notify(self, kind: str, name: str, value: object) -> None:
        """Sends a value to the node, if it has subscribed."""
        with self._lock:
            listening = self._listening.get((kind, name))
        if listening is None:
            return
        s, m = listening
        message = encode(reply(m, kind, data=value, timestamp=now(), **{"event" if kind == "event" else "name": name}))
        with contextlib.suppress(Lost):  # the node subscribes again after the agent reconnects
            s.text(message)

    def _worker(self) -> None:
        """Runs one request after another. Threads are started when needed, and stay."""
        while True:
            self._work(*self._queue.get())
            self._idle.release()

    def _work(self, s: WebSocket, m: JSON, kind: str, name: str, call: Context) -> None:
        """Runs one request and sends its response."""
        try:
            try:
                self._answer(s, m, kind, name, call)
            except (Lost, concurrent.futures.CancelledError):
                pass  # the request was cancelled
            except Error as e:
                s.send(failure(m, e))
            except (Exception, SystemExit) as e:  # the agent's own code
                log.exception("%s %s", kind, name)
                s.send(failure(m, Error("%s: %s" % (type(e).__name__, e), hint="see the agent's log")))
        except Lost:
            pass  # the connection has ended
        finally:
            with self._lock:
                self._running.pop(m.get("messageId", ""), None)
                self._quiet.notify_all()
                if call.chunks and self._streams.get(m.get("stream", 0)) is call.chunks:
                    self._streams.pop(m["stream"])
            if call.chunks:
                call.chunks._end(Error("the call has ended", "LMOS-1499"))

    def _answer(self, s: WebSocket, m: JSON, kind: str, name: str, call: Context) -> None:
        write = self._writes.get(name)
        if kind == "invokeAction" and name in self._actions:
            self._invoke(s, m, name, call)
        elif kind == "readProperty" and name in self._reads:
            data = self._await(given(self._reads[name], call), call)
            s.send(reply(m, "propertyReading", name=name, data=data, timestamp=now()))
        elif kind == "writeProperty" and write:
            self._await(given(write, call, m.get("data")), call)
            s.send(reply(m, "acknowledgement", message=kind))
        else:
            raise Error("%s of %r is not supported" % (kind, name), "LMOS-1406")

    def _invoke(self, s: WebSocket, m: JSON, name: str, call: Context) -> None:
        f = self._actions[name]
        if taken(f)[2]:
            call.chunks = call.chunks or whole(m)
        elif call.chunks:
            raise Error("%s does not accept a request stream" % name, "LMOS-1406", "send the data as one input")
        ident = str(uuid.uuid4())  # unguessable: it authorizes the answer

        def request_input(inputs: JSON) -> None:
            with self._lock:
                self._asked[ident] = call
            s.send(reply(m, "actionStatus", action=name, status="pending", state="input-required", actionId=ident, output=inputs))

        call._asking = request_input
        try:
            self._run(s, m, name, call, f)
        finally:
            with self._lock:
                self._asked.pop(ident, None)

    def _run(self, s: WebSocket, m: JSON, name: str, call: Context, f: Function) -> None:
        """Runs the function of an action, and sends its result."""
        output = self._await(f(**arguments(f, m.get("input"), call)), call)
        if inspect.isasyncgen(output):
            output = self._drain(output, call)
        if inspect.isgenerator(output):
            with contextlib.closing(output):
                for part in output:
                    if call.cancelled:
                        return
                    s.send(reply(m, "actionStatus", action=name, status="running", **put(part)))
            output = None
        if not call.cancelled:
            s.send(reply(m, "actionStatus", action=name, status="completed", **put(output)))

    # coroutines

    def _await(self, value: typing.Any, call: Context) -> typing.Any:
        """Returns the result of a coroutine, and any other value unchanged."""
        if not inspect.isawaitable(value):
            return value

        async def wait() -> typing.Any:
            return await value

        call.task = self._begin(wait())
        if call.cancelled:
            call.task.cancel()
        return call.task.result()

    def _begin(self, work: typing.Any) -> concurrent.futures.Future[typing.Any]:
        """Runs a coroutine in the event loop of the agent."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _drain(self, parts: typing.AsyncGenerator[typing.Any, None], call: Context) -> typing.Iterator[typing.Any]:
        """Yields the values of an asynchronous generator."""
        try:
            while True:
                try:
                    yield self._await(parts.__anext__(), call)
                except StopAsyncIteration:
                    return
        finally:
            self._begin(parts.aclose())


def reply(m: JSON, kind: str, **members: typing.Any) -> JSON:
    """Returns a response to m. Members that are None are left out, except data."""
    out = {"messageType": kind, "thingId": m.get("thingId"), "messageId": str(uuid.uuid4()),
           "correlationId": m.get("correlationId") or m.get("messageId")}
    out.update({k: v for k, v in members.items() if v is not None or k == "data"})
    return out


def put(output: typing.Any) -> JSON:
    """Returns the members of an output. Bytes are in base64."""
    if isinstance(output, (bytes, bytearray)):
        return {"output": base64.b64encode(output).decode(), "base64": True, "contentType": "application/octet-stream"}
    return {"output": output}


def whole(m: JSON) -> Chunks:
    """Returns the input of m, which is not a stream, as Chunks."""
    value, kind = m.get("input"), m.get("contentType") or "application/json"
    if m.get("base64"):
        return Chunks(m.get("contentType") or "application/octet-stream", base64.b64decode(value or ""))
    if value is None:
        return Chunks(kind)
    json_ = kind.split(";")[0].endswith(("/json", "+json"))
    return Chunks(kind, encode(value) if json_ else value.encode())


def failure(m: JSON, e: Error) -> JSON:
    base = "https://eclipse.dev/lmos/protocol/v1/errors"
    return reply(m, "error", type=base + "#internal-server-error", title="Internal Server Error", status="500",
                 detail=e.title[:4096], instance=base + "/" + str(uuid.uuid4()), code=e.code, hint=e.hint or None)


def now() -> str:
    t = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(t)) + ".%03dZ" % (t % 1 * 1000)


def encode(value: typing.Any) -> bytes:
    """Returns a value as JSON; dataclasses become objects."""
    try:
        raw = json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise Error("the value cannot be encoded as JSON: %s" % e) from e
    if len(raw) > MAX_MESSAGE:
        raise Error("the message has %d bytes, the limit is %d" % (len(raw), MAX_MESSAGE), "LMOS-1413", "send it in parts")
    return raw


def plain(value: typing.Any) -> typing.Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError("%s cannot be encoded as JSON" % type(value).__name__)


# --- types -------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def taken(f: Function) -> tuple[list[tuple[str, typing.Any, bool]], list[str], list[str]]:
    """Returns the parameters of a function: those of the input, each with its type hint and whether it is required; those of type
    Context; and those of type Chunks."""
    hints, some, contexts, streams = typing.get_type_hints(f, include_extras=True), [], [], []
    for n, p in inspect.signature(f).parameters.items():
        if hints.get(n) is Context:
            contexts.append(n)
        elif hints.get(n) is Chunks:
            streams.append(n)
        elif p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            some.append((n, hints.get(n, typing.Any), p.default is p.empty))
    if len(streams) > 1 or streams and some:
        raise TypeError("%s takes Chunks and other input: Chunks are the whole input" % f.__name__)
    return some, contexts, streams


def parameters(f: Function) -> JSON | None:
    """Returns the input schema of a function: an object of its parameters, the schema of a single parameter named input, or None."""
    some, _, _ = taken(f)
    if [n for n, _, _ in some] == ["input"]:
        return schema(some[0][1])
    return members([(n, schema(hint), required) for n, hint, required in some]) if some else None


def arguments(f: Function, value: typing.Any, call: Context) -> JSON:
    """Returns the arguments of a function for an input."""
    some, contexts, streams = taken(f)
    given = {n: call for n in contexts}
    if streams:
        return {streams[0]: call.chunks, **given}
    if [n for n, _, _ in some] == ["input"]:
        return {"input": build(some[0][1], value), **given}
    if not isinstance(value, dict) and value is not None:
        raise Error("the input must be an object", "LMOS-1400")
    value = value or {}
    missing = [n for n, _, required in some if required and n not in value]
    if missing:
        raise Error("the input lacks " + ", ".join(missing), "LMOS-1400")
    return {**{n: build(hint, value[n]) for n, hint, _ in some if n in value}, **given}


def given(f: Function, call: Context, *values: typing.Any) -> typing.Any:
    """Calls the function of a property with values, and with the Context if it has such a parameter."""
    try:
        contexts = [n for n, hint in typing.get_type_hints(f).items() if hint is Context]
    except (TypeError, NameError):  # functools.partial has no type hints
        contexts = []
    if not contexts:
        return f(*values)
    others = [n for n in inspect.signature(f).parameters if n not in contexts]
    return f(**dict(zip(others, values)), **{n: call for n in contexts})


def members(some: typing.Sequence[tuple[str, JSON, bool]]) -> JSON:
    s: JSON = {"type": "object", "properties": {n: about for n, about, _ in some}}
    required = [n for n, _, must in some if must]
    return {**s, "required": required} if required else s


def schema(kind: typing.Any, depth: int = 0) -> JSON:
    """Returns the data schema of a type hint (TD 1.1 §5.3.2); an empty one accepts any value. Annotated[str, "text"] adds a
    description."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    base = origin or kind
    if depth > 12:
        return {}
    if hasattr(kind, "__metadata__"):
        words = " ".join(w for w in kind.__metadata__ if isinstance(w, str))
        return {**schema(args[0], depth), **({"description": words} if words else {})}
    if kind in (str, int, float, bool, type(None)):
        return {"type": {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}[kind]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if is_union(origin):
        some = [schema(a, depth + 1) for a in args if not (a is int and float in args)]
        names = [s.get("type") for s in some]  # oneOf: exactly one matches
        return {"oneOf": some} if None not in names and len(set(names)) == len(names) else {}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        none = dataclasses.MISSING
        return members([(f.name, schema(hints[f.name], depth + 1), f.default is none and f.default_factory is none)
                        for f in dataclasses.fields(kind)])
    if isinstance(base, type) and issubclass(base, collections.abc.Mapping):
        return {"type": "object"}
    if isinstance(base, type) and issubclass(base, (collections.abc.Sequence, collections.abc.Set)) and base is not bytes:
        one = len(args) == 1 or args[1:] == (...,)
        return {"type": "array", "items": schema(args[0], depth + 1)} if one else {"type": "array"}
    return {}


def is_union(origin: object) -> bool:
    return origin is typing.Union or origin is getattr(types, "UnionType", typing.Union)  # int | None, from Python 3.10 on


def build(kind: typing.Any, value: typing.Any) -> typing.Any:
    """Converts a JSON value to the type of a hint: objects become dataclasses."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__metadata__") or is_union(origin):
        for a in args if is_union(origin) else args[:1]:
            built = build(a, value)
            if built is not value:
                return built
        return value
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{n: build(hints[n], v) for n, v in value.items() if n in hints})
    if isinstance(value, list) and len(args) == 1:
        return [build(args[0], v) for v in value]
    return value


# --- WebSocket (RFC 6455), client side ---------------------------------------------------------------------------------


class Lost(Error):
    """The connection to the node has ended."""

    def __init__(self, title: str) -> None:
        super().__init__(title, "LMOS-3002", "check the node: lmosd status")


class WebSocket:
    """A connection with JSON messages and binary frames of request streams. Many threads may send, one receives."""

    def __init__(self, mesh: Mesh, ping: float) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        r, self.connection = mesh.open("GET", "/ws", None, {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Protocol": "lmosprotocol"}, 10)
        want = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        if r.status != 101 or r.getheader("Sec-WebSocket-Accept") != want:
            self.connection.close()
            raise Error("the server at %s is not a node" % mesh.node, "LMOS-3002", "check the node: lmosd status")
        self.s: socket.socket = self.connection.stream
        self.lock, self.closed, self.buffer = threading.Lock(), threading.Event(), bytearray()
        self.left = False  # a close frame was sent
        self.s.settimeout(ping)

    def send(self, message: JSON) -> None:
        self.text(encode(message))

    def text(self, raw: bytes) -> None:
        self.frame(1, raw)

    def packet(self, number: int, kind: int, body: bytes) -> None:
        """Sends a frame of a request stream. The receiving thread reports a lost connection."""
        with contextlib.suppress(Lost):
            self.frame(2, struct.pack(">BI", kind, number) + body)

    def receive(self) -> typing.Any:
        """Returns the next message, bytes for a binary one, or None when the node has closed the connection."""
        text, message = False, b""
        while True:
            head, size = self._take(2)
            if size == 126:
                size = struct.unpack(">H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._take(8))[0]
            if size + len(message) > MAX_MESSAGE:
                raise Lost("the node sent more than %d bytes" % MAX_MESSAGE)
            op, data = head & 0x0F, self._take(size)
            if op == 8:
                with contextlib.suppress(Lost):  # the node has closed it
                    self.frame(8, data[:2])
                if data[:2] in (b"", struct.pack(">H", 1000)):
                    return None
                raise Lost("the node closed the connection: " + data[2:].decode("utf-8", "replace"))
            if op == 9:
                self.frame(10, data)
            elif op < 3:
                text, message = text or op == 1, message + data
                if head & 0x80:
                    return json.loads(message) if text else bytes(message)

    def _take(self, n: int) -> bytes:
        """Returns the next n bytes. It pings a silent node once."""
        pinged = False
        while len(self.buffer) < n:
            try:
                more = self.s.recv(1 << 16)
            except socket.timeout:
                if pinged:
                    raise Lost("the node does not answer") from None
                pinged = True
                self.frame(9, b"")
                continue
            except OSError as e:
                raise Lost("the connection to the node broke: %s" % e) from e
            if not more:
                raise Lost("the node closed the connection")
            pinged = False
            self.buffer += more
        data = bytes(self.buffer[:n])
        del self.buffer[:n]
        return data

    def frame(self, op: int, data: bytes) -> None:
        n, mask = len(data), os.urandom(4)
        size = bytes([0x80 | n]) if n < 126 else struct.pack(">BH", 0xFE, n) if n < 65536 else struct.pack(">BQ", 0xFF, n)
        # One large number masks all bytes at once, the fastest way in Python.
        body = (int.from_bytes(data, "big") ^ int.from_bytes((mask * (n // 4 + 1))[:n], "big")).to_bytes(n, "big")
        with self.lock:
            if self.left:
                raise Lost("the connection to the node is being closed")
            self.left = op == 8
            try:
                self.s.sendall(bytes([0x80 | op]) + size + mask + body)
            except OSError as e:  # a part of the frame may be sent
                self.close()
                raise Lost("the connection to the node broke: %s" % e) from e

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the node has closed it
            self.s.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self.closed.set()
