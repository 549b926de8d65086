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

One file for Python 3.9 or later, without dependencies: copy it beside your program. The agent connects to the node (one
WebSocket, RFC 6455), so it needs no port. Schemas come from type hints, descriptions from docstrings.

Limits: inputs, outputs, values and events are JSON of at most 4 MiB. Other text arrives as a string, other data in base64. A
function that takes Chunks receives input without a limit. A response stream that is 1000 parts ahead of its reader is cut off.
Each request runs in a thread; coroutines run in one event loop.

Apache-2.0.
"""

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
import threading
import time
import types
import typing
import urllib.parse
import uuid

__all__ = ["Agent", "Caller", "Chunks", "Context", "Error", "Event", "Mesh", "State", "call", "find", "read", "stream", "watch", "write"]

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

    def __init__(self, title, code="LMOS-1502", hint="", problem=None):
        super().__init__(title)
        self.title, self.code, self.hint, self.problem = title, code, hint, problem or {}
        self.next = self.problem.get("next") or []
        self.retryable = code in RETRYABLE  # the same request may succeed later

    def __str__(self):
        steps = ", ".join(" ".join([s["kind"], *s.get("args", [])]) for s in self.next)
        return "; ".join(filter(None, ["%s (%s)" % (self.title, self.code), self.hint, steps and "next: " + steps]))


def from_problem(p):
    """The error of a problem document, or of an error message of the WebSocket."""
    p = p if isinstance(p, dict) else {}
    return Error(p.get("detail") or p.get("title") or "the node refused", p.get("code") or "LMOS-1500", p.get("hint") or "", p)


# --- address of the node -------------------------------------------------------------------------------------------------


def local():
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

    def __init__(self, node, timeout):
        self.path = node[5:] if node.startswith("unix:") else node if node.startswith("/") else ""
        try:
            self.url = urllib.parse.urlsplit("http://localhost" if self.path else node)
            port = self.url.port or {"http": 80, "https": 443}[self.url.scheme]
            super().__init__(self.url.hostname or "", port, timeout=timeout)
        except (KeyError, ValueError, http.client.HTTPException):
            raise Error("expected the URL or the socket of a node, got %r" % node, "LMOS-2000", "for example http://127.0.0.1:4668") from None

    def connect(self):
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

    def __init__(self, node=None, token=None):
        at, key = local()
        self.node, self.token = node or at, key if token is None else token

    def open(self, method, path, body=None, headers=None, timeout=60):
        """Sends one request. Returns the response, which the caller reads, and its connection, which the caller closes. A body
        that is an Upload is sent while the response is read."""
        headers = dict(headers or {})
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        upload = body if isinstance(body, Upload) else None
        if upload:
            body, headers["Transfer-Encoding"], headers["Content-Type"] = None, "chunked", upload.content_type
        elif body is not None:
            headers["Content-Type"] = "application/json"
        c = Connection(self.node, timeout)
        try:
            c.request(method, path, body, headers, encode_chunked=False)
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
            raise self.lost(e) from e
        c.close()
        try:
            problem = json.loads(raw)
        except ValueError:
            problem = {"detail": "the server at %s is not a node: status %d" % (self.node, r.status), "code": "LMOS-3002"}
        raise from_problem(problem)

    def lost(self, e):
        """The error for a connection that failed with e."""
        if isinstance(e, socket.timeout):
            return Error("the node at %s did not answer in time" % self.node, "LMOS-1504", "check it: lmosd status")
        return Error("no node answers at %s: %s" % (self.node, e or type(e).__name__), "LMOS-3001", "start one: lmosd run")

    def json(self, method, path, body=None, headers=None):
        """Sends one request and decodes the response: JSON as its value, text as str, other types as bytes, no content as None."""
        r, c = self.open(method, path, body, headers)
        with contextlib.closing(c):
            try:
                raw = r.read()
            except (OSError, http.client.HTTPException) as e:
                raise self.lost(e) from e
        kind = (r.getheader("Content-Type") or "").split(";")[0]
        if not raw:
            return None
        if kind == "application/json" or kind.endswith("+json"):
            return json.loads(raw)
        return raw.decode() if kind.startswith("text/") else raw

    def events(self, r, c):
        """Yields name, id and value of each server-sent event of a response. An event with a problem is raised."""
        rest, name, ident, data = [], "", "", []
        with contextlib.closing(c):
            while True:
                try:
                    more = r.read1(1 << 16)  # readline would report a broken connection as the end
                except (OSError, http.client.HTTPException) as e:
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
                        value = json.loads("\n".join(data)) if data else None
                        if name == "lmosd:problem":
                            raise from_problem(value)
                        if data:
                            yield name, ident, value
                        name, ident, data = "", "", []

    def find(self, text="", **query):
        """Returns the best matching agents, at most limit (32), as dicts with id and name: find("weather"),
        find(capability="urn:example:weather")."""
        return next(self._pages(text, query))

    def find_all(self, text="", **query):
        """Yields all matching agents, the best first, page by page."""
        for items in self._pages(text, query):
            yield from items

    def _pages(self, text, query):
        if text:
            query["q"] = text
        while query is not None:
            page = self.json("GET", "/v1/find?" + urllib.parse.urlencode(query, doseq=True))
            yield page["items"]
            query = {"page": page["next"]} if page.get("next") else None

    def call(self, agent, action, *input, timeout=30, delegation="", **members):
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

    def stream(self, agent, action, *input, timeout=30, delegation="", **members):
        """Calls an action like call, and yields the parts of its output as they arrive. Closing the generator cancels the call."""
        parts = 0
        for final, output in self._run(agent, action, input, members, timeout, delegation):
            if output is not None and not (final and parts):
                parts += 1
                yield output

    def _run(self, agent, action, input, members, timeout, delegation):
        """Yields the output of an action: (False, part) for each part, and (True, output) at the end."""
        upload = Upload.of(input[0], **members) if len(input) == 1 and Upload.fits(input[0]) else None
        if len(input) > 1 or input and members and not upload:
            raise TypeError("expected one input or keyword arguments, got both")
        body = upload or (encode(input[0] if input else members) if input or members else None)
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

    def _states(self, action, r, c):
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

    def read(self, agent, name="", delegation=""):
        """Returns the value of a property; without a name, a dict of all readable properties."""
        return self.json("GET", affordance(agent, "properties", name), headers=presented(delegation))

    def write(self, agent, name, value, delegation=""):
        """Writes a property."""
        self.json("PUT", affordance(agent, "properties", name), encode(value), presented(delegation))

    def watch(self, agent, event="", property="", after="", delegation=""):
        """Yields (name, value) of an event, of a property, of all events, or of all properties ("*"), until the generator is
        closed. After a lost connection it reconnects for up to 60 seconds and requests the missed events."""
        path = affordance(agent, "properties", property.strip("*")) if property else affordance(agent, "events", event)
        pause, seen, ever = FIRST_PAUSE, 0, False
        while True:
            headers, opened = {"Accept": "text/event-stream", **presented(delegation)}, None
            if after:
                headers["Last-Event-ID"] = after
            try:
                stream = self.open("GET", path, None, headers)
                opened = time.monotonic()
                for name, ident, value in self.events(*stream):
                    opened, after = 0, ident or after  # an event establishes the connection
                    yield name, value
                return  # the stream is complete
            except Error as e:
                now = time.monotonic()
                if opened is not None and (not ever or now - opened > LASTING):  # the connection was established until now
                    pause, seen, ever = FIRST_PAUSE, now, True
                # A node that has just restarted may not know the agent yet.
                if not ever or now - seen > ABSENCE or not (e.retryable or e.code == "LMOS-1404"):
                    raise
            time.sleep(pause)
            pause = min(MAX_PAUSE, 2 * pause)


class Upload:
    """An input that a thread sends while it reads it. The response may start before the input ends."""

    @staticmethod
    def fits(input):
        return isinstance(input, (bytes, bytearray, memoryview)) or hasattr(input, "read") or hasattr(input, "__next__")

    @classmethod
    def of(cls, input, content_type="application/octet-stream"):
        u = cls()
        u.source, u.content_type, u.error, u.sock = input, content_type, None, None
        return u

    def chunks(self):
        if hasattr(self.source, "read"):
            read = getattr(self.source, "read1", self.source.read)  # the available bytes
            return iter(lambda: read(MAX_CHUNK), b"")
        return iter([self.source] if not hasattr(self.source, "__next__") else self.source)

    def start(self, sock):
        self.sock = sock
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self):
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

    def stop(self):
        """Ends the thread."""
        if self.sock:
            with contextlib.suppress(OSError):  # the node has closed it
                self.sock.shutdown(socket.SHUT_RDWR)


def affordance(agent, kind, name):
    return "/".join(["/things", quote(agent), kind] + ([quote(name)] if name else []))


def presented(delegation):
    """The header of a request by a delegation; a token that was read from a file may have a line end."""
    return {"Lmos-Capability": delegation.strip()} if delegation else {}


def quote(text):
    return urllib.parse.quote(text, safe="")


def find(text="", **query):
    """Finds agents through the node of this machine: Mesh.find."""
    return Mesh().find(text, **query)


def call(agent, action, *input, **members):
    """Calls an action through the node of this machine, see Mesh.call."""
    return Mesh().call(agent, action, *input, **members)


def stream(agent, action, *input, **members):
    """Calls an action through the node of this machine and yields the parts of its output, see Mesh.stream."""
    return Mesh().stream(agent, action, *input, **members)


def read(agent, name="", delegation=""):
    """Reads a property through the node of this machine, see Mesh.read."""
    return Mesh().read(agent, name, delegation)


def write(agent, name, value, delegation=""):
    """Writes a property through the node of this machine, see Mesh.write."""
    Mesh().write(agent, name, value, delegation)


def watch(agent, event="", property="", after="", delegation=""):
    """Watches an agent through the node of this machine, see Mesh.watch."""
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
    def _of(cls, m):
        texts = (m.get(k, "") for k in ("id", "did", "node", "name", "via", "organization"))
        return cls(*texts, tuple(m.get("roles", ())), m.get("lentBy", ""))


class Context:
    """One call of an action, or one request to read or write a property, for functions with a parameter of this type. It has the
    caller, the deadline (seconds since the epoch, or None), and whether the request was cancelled."""

    def __init__(self, m=None):
        caller, left = (m or {}).get("caller"), (m or {}).get("timeLeft")
        self.caller = Caller._of(caller) if isinstance(caller, dict) else None
        self.deadline = time.time() + left / 1000 if left else None
        self._over, self.task, self.chunks = threading.Event(), None, None
        self._asking, self._answer, self._answered = None, None, threading.Event()

    def ask(self, message, kind):
        """Requests input of the type kind, such as a dataclass, from the caller, and waits for it. Returns None if the caller
        declines. In a coroutine: await asyncio.to_thread(call.ask, message, kind)."""
        self._answer = None
        self._answered.clear()
        if self._asking is None or self.cancelled:
            raise Error("no caller is available to provide input", "LMOS-1499")
        self._asking({"answer": {"kind": "form", "message": message, "schema": schema(kind)}})
        self._answered.wait()
        if self.cancelled:
            raise Error("the caller has cancelled the request", "LMOS-1499")
        answer = self._answer or {}
        return build(kind, answer.get("content") or {}) if answer.get("action") == "accept" else None

    def _provide(self, answers):
        """Sets the input from the caller, and returns whether the call waited for it."""
        waited = not self._answered.is_set()
        self._answer = answers.get("answer") if isinstance(answers, dict) else None
        self._answered.set()
        return waited

    @property
    def cancelled(self):
        """Whether the caller has cancelled the request, or the connection to the node has ended."""
        return self._over.is_set()

    def wait(self, seconds):
        """Waits for seconds, or until the call is cancelled, and returns whether it is cancelled."""
        return self._over.wait(seconds)

    def cancel(self):
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

    def __init__(self, content_type, whole=b"", send=None):
        self.content_type = content_type  # as the caller declares it, such as "audio/wav"
        self._send, self._over, self._error = send, send is None, None
        self._queue, self._used, self._owed, self._credit = collections.deque([whole] if whole else []), 0, WINDOW, 0
        self._changed, self._waiter = threading.Condition(), None

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            chunk = self._step()
            if chunk is None:
                raise StopIteration
            if chunk:
                return chunk
            with self._changed:
                self._changed.wait_for(self._ready)

    def __aiter__(self):
        return self

    async def __anext__(self):
        while True:
            chunk = self._step()
            if chunk is None:
                raise StopAsyncIteration
            if chunk:
                return chunk
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            with self._changed:
                if self._ready():
                    continue
                self._waiter = lambda: loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))
            await future

    def close(self):
        """Stops the request stream, for a function that continues without the rest."""
        with self._changed:
            more = not self._ended()
        self._end(Error("the stream was closed", "LMOS-1499"))
        if more:  # the caller may still send
            self._send(STOP, b"")

    def _ended(self):
        return self._over or self._error

    def _ready(self):
        return self._queue or self._ended()

    def _step(self):
        """The next chunk, b"" if none has arrived yet, None at the end. It returns the credit of the chunks that were read."""
        with self._changed:
            self._owed, self._used, grant = self._owed + self._used, 0, 0
            if self._owed >= WINDOW // 2 and not self._ended():
                grant, self._owed = self._owed, 0
                self._credit += grant
            chunk = b""
            if self._queue:
                chunk = self._queue.popleft()
                self._used = 5 + len(chunk)
            elif self._error:
                raise self._error
            elif self._over:
                chunk = None
        if grant:
            self._send(CREDIT, struct.pack(">I", grant))
        return chunk

    def _take(self, kind, body):
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

    def _end(self, error):
        with self._changed:
            if not self._ended():
                self._error = error
                self._queue.clear()
            self._wake()

    def _wake(self):
        self._changed.notify_all()
        if self._waiter:
            self._waiter()
            self._waiter = None


class Event:
    """An event of an agent, from Agent.event."""

    def __init__(self, agent, name):
        self.agent, self.name = agent, name

    def emit(self, value=None):
        """Sends the event to all subscribers."""
        self.agent._notify("event", self.name, value)


class State:
    """A property whose value the library stores: consumers read, write and observe it. It is from Agent.state."""

    def __init__(self, agent, name, value):
        self.agent, self.name, self._value, self._lock = agent, name, value, threading.Lock()

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, value):
        with self._lock:  # observers receive changes in order
            self._value = value
            self.agent._notify("propertyReading", self.name, value)


class Agent:
    """An agent. Only the name is required. Without an id, the node creates one. Capabilities are ids for search. At most limit
    requests run at once. After ping seconds without a message, the agent pings the node."""

    def __init__(self, name, description="", capabilities=(), id="", version="", tool=False, node=None, token=None, limit=256,
                 ping=20):
        if not name:
            raise Error("the agent has no name", "LMOS-2011", 'lmosd.Agent("weather")')
        self.about = {"title": name, "@type": "lmos:Tool" if tool else "lmos:Agent"}
        for key, value in (("id", id), ("description", description), ("version", version and {"instance": version})):
            if value:
                self.about[key] = value
        if capabilities:
            self.about["lmos:capabilities"] = [c if isinstance(c, dict) else {"id": c, "name": c} for c in capabilities]
        self.node, self.token, self.limit, self.ping = node, token, limit, ping
        self.id = None  # from the node, once the agent is registered
        self.ready = threading.Event()  # set while the agent is registered
        self._actions, self._reads, self._writes, self._loop = {}, {}, {}, None
        self._stop, self._settled, self._socket = threading.Event(), threading.Event(), None
        self._queue, self._idle = queue.SimpleQueue(), threading.Semaphore(0)  # requests, and idle threads
        self._lock, self._running, self._listening, self._streams = threading.Lock(), {}, {}, {}
        self._quiet = threading.Condition(self._lock)  # notified when a request ends
        self._asked = {}  # calls that may request input, by their id

    # affordances

    def _put(self, kind, name, schema, words, about):
        if not name or name in self.about.get(kind, {}):
            raise Error("the name %r is empty or used twice in %s" % (name, kind), "LMOS-2011", "use a different name for each")
        if words:
            schema["description"] = inspect.cleandoc(words)
        schema.update(about)
        self.about.setdefault(kind, {})[name] = schema

    def action(self, f=None, *, name="", safe=False, idempotent=False, synchronous=True, requires_input=False, **about):
        """Decorates a function: its parameters are the input, its result the output, its docstring the description. A single
        parameter named input is the whole input; one of type Context is the call; one of type Chunks is the request stream. A
        generator sends a response stream, one part for each yield. Coroutines and asynchronous generators are supported. Safe:
        it changes no state. Idempotent: it may be repeated. Not synchronous: it takes long, and continues when the caller
        disconnects. With requires_input, it may request input (Context.ask). About has further members of the description
        (TD 1.1 §5.3.1.4)."""

        def add(f):
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

    def property(self, f=None, *, name="", write=None, **about):
        """Decorates a function that returns the value; write is a function that takes a new value. In both, a parameter of type
        Context is the request."""

        def add(f):
            words = schema(typing.get_type_hints(f, include_extras=True).get("return", typing.Any))
            if not write:
                words["readOnly"] = True
            self._put("properties", name or f.__name__, words, f.__doc__, about)
            self._reads[name or f.__name__], self._writes[name or f.__name__] = f, write
            return f

        return add(f) if f else add

    def state(self, name, value, kind=None, **about):
        """Returns a property that consumers read, write and observe; set its value to change it. Its type is kind, or that of the
        first value. About has further members of the description: state("level", 0, minimum=0), or readOnly=True."""
        s = State(self, name, value)
        self._put("properties", name, schema(kind or type(value)), "", {"observable": True, **about})
        self._reads[name] = lambda: s.value
        self._writes[name] = None if about.get("readOnly") else lambda v: setattr(s, "value", build(kind or type(value), v))
        return s

    def event(self, name, kind=typing.Any, **about):
        """Returns an event, with the method emit(value)."""
        data = schema(kind)
        self._put("events", name, {"data": data} if data else {}, "", about)
        return Event(self, name)

    # the connection

    def run(self):
        """Serves until stop is called, or the process receives SIGINT or SIGTERM. It raises an error if the first connection to the
        node fails. After a lost connection it reconnects, with pauses of up to 5 seconds."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for n in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler):
                    # In a thread: the signal may arrive while this one sends.
                    before[n] = signal.signal(n, lambda *_: threading.Thread(target=self.stop).start())
        try:
            self._keep()
        finally:
            self._settled.set()
            for n, handler in before.items():
                signal.signal(n, handler)

    def start(self, timeout=10):
        """Serves in a new thread, and returns when the agent is registered."""
        failed = []

        def work():
            try:
                self.run()
            except Exception as e:  # start raises it
                failed.append(e)
                log.error("agent stopped: %s", e)

        threading.Thread(target=work, daemon=True).start()
        self._settled.wait(timeout)
        if failed:
            raise failed[0]
        if not self._settled.is_set():
            raise Error("the node did not register the agent within %g s" % timeout, "LMOS-1504")

    def stop(self, wait=8):
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

    def _keep(self):
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._serve()
            except Error as e:
                if self._stop.is_set():
                    return
                if self.id is None or not e.retryable:
                    raise
                log.info("agent reconnects: %s", e)
            finally:
                pause = FIRST_PAUSE if self.ready.is_set() else min(MAX_PAUSE, 2 * pause)
                self.ready.clear()
            self._stop.wait(pause * (0.5 + random.random()))

    def _serve(self):
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

    def _packet(self, data):
        """Passes a binary frame to its request stream. A frame without one is ignored."""
        if len(data) >= 5:
            kind, number = struct.unpack(">BI", data[:5])
            with self._lock:
                chunks = self._streams.get(number)
            if chunks:
                chunks._take(kind, data[5:])

    def _take(self, s, m):
        """Handles a message of the node. Cancellations run at once, requests in a thread."""
        kind, name, ident = m.get("messageType"), m.get("action") or m.get("event") or m.get("name"), m.get("messageId")
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
                call = self._asked.get(m.get("actionId") or m.get("actionID"))
            if call and call._provide(m.get("input")):
                s.send(reply(m, "acknowledgement", message=kind))
            else:
                s.send(failure(m, Error("no call waits for this input", "LMOS-1410", "it may have ended already")))
        elif kind == "cancelAction":
            with self._lock:
                call = self._running.get(m.get("correlationId"))
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

    def _notify(self, kind, name, value):
        """Sends a value to the node, if it has subscribed."""
        with self._lock:
            s, m = self._listening.get((kind, name), (None, None))
        if s is None:
            return
        message = encode(reply(m, kind, data=value, timestamp=now(), **{"event" if kind == "event" else "name": name}))
        with contextlib.suppress(Lost):  # the node subscribes again after the agent reconnects
            s.text(message)

    def _worker(self):
        """Runs one request after another. Threads are started when needed, and stay."""
        while True:
            self._work(*self._queue.get())
            self._idle.release()

    def _work(self, s, m, kind, name, call):
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
                self._running.pop(m.get("messageId"), None)
                self._quiet.notify_all()
                if self._streams.get(m.get("stream")) is call.chunks:
                    self._streams.pop(m.get("stream"), None)
            if call.chunks:
                call.chunks._end(Error("the call has ended", "LMOS-1499"))

    def _answer(self, s, m, kind, name, call):
        if kind == "invokeAction" and name in self._actions:
            self._invoke(s, m, name, call)
        elif kind == "readProperty" and name in self._reads:
            data = self._await(given(self._reads[name], call), call)
            s.send(reply(m, "propertyReading", name=name, data=data, timestamp=now()))
        elif kind == "writeProperty" and self._writes.get(name):
            self._await(given(self._writes[name], call, m.get("data")), call)
            s.send(reply(m, "acknowledgement", message=kind))
        else:
            raise Error("%s of %r is not supported" % (kind, name), "LMOS-1406")

    def _invoke(self, s, m, name, call):
        f = self._actions[name]
        if taken(f)[2]:
            call.chunks = call.chunks or whole(m)
        elif call.chunks:
            raise Error("%s does not accept a request stream" % name, "LMOS-1406", "send the data as one input")
        ident = str(uuid.uuid4())  # unguessable: it authorizes the answer

        def request_input(inputs):
            with self._lock:
                self._asked[ident] = call
            s.send(reply(m, "actionStatus", action=name, status="pending", state="input-required", actionId=ident, output=inputs))

        call._asking = request_input
        try:
            self._run(s, m, name, call, f)
        finally:
            with self._lock:
                self._asked.pop(ident, None)

    def _run(self, s, m, name, call, f):
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

    def _await(self, value, call):
        """Returns the result of a coroutine, and any other value unchanged."""
        if not inspect.isawaitable(value):
            return value

        async def wait():
            return await value

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
        call.task = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        if call.cancelled:
            call.task.cancel()
        return call.task.result()

    def _drain(self, parts, call):
        """Yields the values of an asynchronous generator."""
        try:
            while True:
                try:
                    yield self._await(parts.__anext__(), call)
                except StopAsyncIteration:
                    return
        finally:
            asyncio.run_coroutine_threadsafe(parts.aclose(), self._loop)


def reply(m, kind, **members):
    """Returns a response to m. Members that are None are left out, except data."""
    out = {"messageType": kind, "thingId": m.get("thingId"), "messageId": str(uuid.uuid4()),
           "correlationId": m.get("correlationId") or m.get("messageId")}
    out.update({k: v for k, v in members.items() if v is not None or k == "data"})
    return out


def put(output):
    """Returns the members of an output. Bytes are in base64."""
    if isinstance(output, (bytes, bytearray)):
        return {"output": base64.b64encode(output).decode(), "base64": True, "contentType": "application/octet-stream"}
    return {"output": output}


def whole(m):
    """Returns the input of m, which is not a stream, as Chunks."""
    value, kind = m.get("input"), m.get("contentType") or "application/json"
    if m.get("base64"):
        return Chunks(m.get("contentType") or "application/octet-stream", base64.b64decode(value))
    if value is None:
        return Chunks(kind)
    json_ = kind.split(";")[0].endswith(("/json", "+json"))
    return Chunks(kind, encode(value) if json_ else value.encode())


def failure(m, e):
    base = "https://eclipse.dev/lmos/protocol/v1/errors"
    return reply(m, "error", type=base + "#internal-server-error", title="Internal Server Error", status="500",
                 detail=e.title[:4096], instance=base + "/" + str(uuid.uuid4()), code=e.code, hint=e.hint or None)


def now():
    t = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(t)) + ".%03dZ" % (t % 1 * 1000)


def encode(value):
    """Returns a value as JSON; dataclasses become objects."""
    try:
        raw = json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise Error("the value cannot be encoded as JSON: %s" % e) from e
    if len(raw) > MAX_MESSAGE:
        raise Error("the message has %d bytes, the limit is %d" % (len(raw), MAX_MESSAGE), "LMOS-1413", "send it in parts")
    return raw


def plain(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError("%s cannot be encoded as JSON" % type(value).__name__)


# --- types -------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def taken(f):
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


def parameters(f):
    """Returns the input schema of a function: an object of its parameters, the schema of a single parameter named input, or None."""
    some, _, _ = taken(f)
    if [n for n, _, _ in some] == ["input"]:
        return schema(some[0][1])
    return members([(n, schema(hint), required) for n, hint, required in some]) if some else None


def arguments(f, value, call):
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


def given(f, call, *values):
    """Calls the function of a property with values, and with the Context if it has such a parameter."""
    try:
        contexts = [n for n, hint in typing.get_type_hints(f).items() if hint is Context]
    except (TypeError, NameError):  # functools.partial has no type hints
        contexts = []
    if not contexts:
        return f(*values)
    others = [n for n in inspect.signature(f).parameters if n not in contexts]
    return f(**dict(zip(others, values)), **{n: call for n in contexts})


def members(some):
    s = {"type": "object", "properties": {n: about for n, about, _ in some}}
    required = [n for n, _, must in some if must]
    return {**s, "required": required} if required else s


def schema(kind, depth=0):
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


def is_union(origin):
    return origin is typing.Union or origin is getattr(types, "UnionType", typing.Union)  # int | None, from Python 3.10 on


def build(kind, value):
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

    def __init__(self, title):
        super().__init__(title, "LMOS-3002", "check the node: lmosd status")


class WebSocket:
    """A connection with JSON messages and binary frames of request streams. Many threads may send, one receives."""

    def __init__(self, mesh, ping):
        key = base64.b64encode(os.urandom(16)).decode()
        r, self.connection = mesh.open("GET", "/ws", None, {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Protocol": "lmosprotocol"}, 10)
        want = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        if r.status != 101 or r.getheader("Sec-WebSocket-Accept") != want:
            self.connection.close()
            raise Error("the server at %s is not a node" % mesh.node, "LMOS-3002", "check the node: lmosd status")
        self.s, self.lock, self.closed, self.buffer = self.connection.sock, threading.Lock(), threading.Event(), bytearray()
        self.left = False  # a close frame was sent
        self.s.settimeout(ping)

    def send(self, message):
        self.text(encode(message))

    def text(self, raw):
        self.frame(1, raw)

    def packet(self, number, kind, body):
        """Sends a frame of a request stream. The receiving thread reports a lost connection."""
        with contextlib.suppress(Lost):
            self.frame(2, struct.pack(">BI", kind, number) + body)

    def receive(self):
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

    def _take(self, n):
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

    def frame(self, op, data):
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

    def close(self):
        with contextlib.suppress(OSError):  # the node has closed it
            self.s.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self.closed.set()
