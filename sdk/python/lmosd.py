"""Agents for lmosd in Python: serve actions to the mesh, and call others, through the node of this machine.

    from lmosd import Agent
    agent = Agent("weather", capabilities=["urn:example:weather"])
    @agent.action
    def get_weather(question: str) -> str:
        "Answers weather questions."
        return "sunny"
    agent.run()

    import lmosd
    lmosd.call("weather", "get_weather", question="Rain in Bonn?")

One file, Python 3.9 or later, nothing but the standard library. The agent dials the node (one WebSocket, RFC 6455), so it
needs no port of its own. Schemas come from type hints, descriptions from docstrings. Apache-2.0.
"""

import base64
import dataclasses
import hashlib
import http.client
import inspect
import json
import os
import random
import socket
import ssl
import struct
import threading
import time
import typing
import urllib.parse
import uuid
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Agent", "Error", "Mesh", "call", "find", "read", "watch", "write"]

MAX_MESSAGE = 16 << 20  # bytes of one WebSocket message
PING_EVERY = 20  # seconds without a word from the node, after which it is asked whether it is there


class Error(Exception):
    """What went wrong, as the node or an agent says it (RFC 9457). Raise it in an action to choose code, title and hint."""

    def __init__(self, title, code="LMOS-1502", status=500, hint="", problem=None):
        super().__init__(title)
        self.title, self.code, self.status, self.hint, self.problem = title, code, status, hint, problem or {}


# --- where the node is -------------------------------------------------------------------------------------------------


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
        try:
            with open(os.path.join(folder, "api.token"), encoding="ascii") as f:
                token = f.read().strip()
        except OSError:
            pass  # the node says so if it needs one
    return "http://127.0.0.1:4668", token


def dial(node, timeout):
    """A connected socket to the node, and the Host header."""
    if node.startswith("unix:") or node.startswith("/"):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(timeout)
        s.connect(node[5:] if node.startswith("unix:") else node)
        return s, "localhost"
    url = urllib.parse.urlsplit(node)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise Error("%r is neither the URL nor the socket of a node" % node, "LMOS-2000", hint="http://127.0.0.1:4668")
    s = socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), timeout)
    if url.scheme == "https":
        s = ssl.create_default_context().wrap_socket(s, server_hostname=url.hostname)
    return s, url.netloc


class _Connection(http.client.HTTPConnection):
    """HTTP over whatever dial gives."""

    def __init__(self, node, timeout):
        super().__init__("localhost", timeout=timeout)
        self.node = node

    def connect(self):
        self.sock, self.host = dial(self.node, self.timeout)


# --- asking ------------------------------------------------------------------------------------------------------------


class Mesh:
    """Finds, calls, reads, writes and watches agents through one node. It may be used by many threads."""

    def __init__(self, node=None, token=None):
        at, key = local()
        self.node, self.token = node or at, token if token is not None else key

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Sends one request. Returns the response, which the caller reads, and its connection, which the caller closes."""
        headers = dict(headers or {})
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        c = _Connection(self.node, timeout)
        try:
            c.request(method, path, body=body, headers=headers)
            r = c.getresponse()
        except OSError as e:
            c.close()
            raise Error("no node answers at %s: %s" % (self.node, e), "LMOS-3001", hint="lmosd run") from e
        if r.status >= 400:
            raw = r.read()
            c.close()
            raise problem(raw, r.status)
        return r, c

    def json(self, method, path, body=None, headers=None, timeout=60):
        """Sends one request and decodes the answer: JSON as its value, text as str, anything else as bytes, none as None."""
        headers = dict(headers or {})
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        r, c = self.request(method, path, data, headers, timeout)
        try:
            raw, kind = r.read(), (r.getheader("Content-Type") or "").split(";")[0]
        finally:
            c.close()
        if not raw:
            return None
        if kind == "application/json" or kind.endswith("+json"):
            return json.loads(raw)
        return raw.decode() if kind.startswith("text/") else raw

    def find(self, words="", **query):
        """The agents that fit: find("weather"), find(capability="urn:example:weather"). A list of dicts."""
        if words:
            query["q"] = words
        return self.json("GET", "/v1/find?" + urllib.parse.urlencode(query, doseq=True))["items"]

    def call(self, agent, action, *args, timeout=30, **members):
        """Calls an action. Its input is the one positional argument, or an object of the keyword arguments."""
        if len(args) > 1 or args and members:
            raise TypeError("give one input, or keyword arguments")
        body = args[0] if args else members or None
        return self.json("POST", "%s/actions/%s" % (thing(agent), quote(action)), body,
                         {"Prefer": "wait=%d" % max(1, int(timeout))}, timeout + 5)

    def read(self, agent, name=None):
        """The value of a property; without a name, a dict of all that can be read."""
        return self.json("GET", thing(agent) + "/properties" + ("/" + quote(name) if name else ""))

    def write(self, agent, name, value):
        """Sets a property."""
        self.json("PUT", "%s/properties/%s" % (thing(agent), quote(name)), value)

    def watch(self, agent, event=None, property=None, after=""):
        """Yields (name, value) of an event, of a property, or of all events, until the generator is closed. A connection that
        breaks is made again, and what came meanwhile is asked for."""
        path = thing(agent) + ("/properties/" + quote(property) if property else "/events" + ("/" + quote(event) if event else ""))
        pause = 0.1
        while True:
            headers = {"Accept": "text/event-stream"}
            if after:
                headers["Last-Event-ID"] = after
            try:
                r, c = self.request("GET", path, headers=headers, timeout=60)
            except Error as e:
                if not after or e.code != "LMOS-3001":
                    raise
                time.sleep(pause)
                pause = min(5, 2 * pause)
                continue
            try:
                for name, ident, data in sse(r):
                    after, pause = ident or after, 0.1
                    if name == "error":
                        raise problem(data.encode(), 500)
                    yield name, json.loads(data) if data else None
            except (OSError, http.client.HTTPException):
                pass  # asked for again
            finally:
                c.close()
            after = after or "0"
            time.sleep(pause)


def sse(response):
    """The events of a stream (HTML, Server-sent events): name, id, data."""
    name, ident, data = "", "", []
    for raw in response:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield name, ident, "\n".join(data)
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "event":
            name = value
        elif field == "id":
            ident = value
        elif field == "data":
            data.append(value)


def problem(raw, status):
    try:
        p = json.loads(raw)
    except ValueError:
        p = {}
    if not isinstance(p, dict):
        p = {}
    return Error(p.get("detail") or p.get("title") or "status %d" % status, p.get("code", "LMOS-1500"), status, p.get("hint", ""), p)


def quote(text):
    return urllib.parse.quote(text, safe="")


def thing(agent):
    return "/things/" + quote(agent)


def find(words="", **query):
    """Finds agents through the node of this machine, see Mesh.find."""
    return Mesh().find(words, **query)


def call(agent, action, *args, **members):
    """Calls an action through the node of this machine, see Mesh.call."""
    return Mesh().call(agent, action, *args, **members)


def read(agent, name=None):
    """Reads a property through the node of this machine."""
    return Mesh().read(agent, name)


def write(agent, name, value):
    """Writes a property through the node of this machine."""
    Mesh().write(agent, name, value)


def watch(agent, event=None, property=None):
    """Watches an agent through the node of this machine, see Mesh.watch."""
    return Mesh().watch(agent, event, property)


# --- serving -----------------------------------------------------------------------------------------------------------


class Event:
    """An event of an agent: emit tells everybody who has subscribed."""

    def __init__(self, name):
        self.name, self.listeners, self.lock = name, {}, threading.Lock()

    def emit(self, value=None):
        with self.lock:
            listeners = list(self.listeners.values())
        for tell in listeners:
            tell(self.name, value)


class State:
    """A property that the agent holds: others read, write and observe it."""

    def __init__(self, name, value):
        self.changes, self._value = Event(name), value

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, value):
        self._value = value
        self.changes.emit(value)


class Agent:
    """What an agent offers. Name is what others call it; everything else may be left out."""

    def __init__(self, name, description="", capabilities=(), id=None, version=None, tool=False, node=None, token=None, workers=16):
        self.about = {"title": name, "@type": "lmos:Tool" if tool else "lmos:Agent"}
        for key, value in (("id", id), ("description", description), ("version", version and {"instance": version})):
            if value:
                self.about[key] = value
        if capabilities:
            self.about["lmos:capabilities"] = [{"id": c, "name": c} for c in capabilities]
        self.node, self.token, self.workers = node, token, workers
        self.actions, self.reads, self.writes, self.events, self.states = {}, {}, {}, {}, {}
        self.ready = threading.Event()  # set while the node knows the agent
        self.id = None  # what the node calls it
        self._stop, self._socket = threading.Event(), None

    # what it offers

    def action(self, f=None, *, name=None, safe=False, idempotent=False, synchronous=True):
        """Decorates a function: its parameters are the input, what it returns is the output, its docstring the description. A
        generator answers in parts, one for each yield."""

        def add(f):
            title = name or f.__name__
            about = {"synchronous": synchronous, "input": parameters(f)}
            hints = typing.get_type_hints(f)
            if inspect.getdoc(f):
                about["description"] = inspect.getdoc(f)
            if "return" in hints and not inspect.isgeneratorfunction(f):
                about["output"] = schema(hints["return"])
            for word, on in (("safe", safe), ("idempotent", idempotent or safe)):
                if on:
                    about[word] = True
            self.about.setdefault("actions", {})[title] = about
            self.actions[title] = f
            return f

        return add(f) if f else add

    def property(self, f=None, *, name=None, write=None):
        """Decorates a function that returns the value; write is a function that takes a new one."""

        def add(f):
            title = name or f.__name__
            about = schema(typing.get_type_hints(f).get("return", typing.Any))
            if inspect.getdoc(f):
                about["description"] = inspect.getdoc(f)
            if not write:
                about["readOnly"] = True
            self.about.setdefault("properties", {})[title] = about
            self.reads[title], self.writes[title] = f, write
            return f

        return add(f) if f else add

    def state(self, name, value, kind=None):
        """A property that others read, write and observe. Set its .value."""
        s = State(name, value)
        about = schema(kind or type(value))
        about["observable"] = True
        self.about.setdefault("properties", {})[name] = about
        self.states[name] = s
        self.reads[name] = lambda: s.value
        self.writes[name] = lambda v: setattr(s, "value", v)
        return s

    def event(self, name, kind=typing.Any):
        """An event; call its emit(value)."""
        self.events[name] = e = Event(name)
        data = schema(kind)
        self.about.setdefault("events", {})[name] = {"data": data} if data else {}
        return e

    # the connection

    def run(self):
        """Serves until stop is called or the process is interrupted. The first attempt to reach the node must work; a
        connection that breaks later is made again, with pauses up to five seconds."""
        pause, known = 0.1, False
        try:
            while not self._stop.is_set():
                try:
                    self._serve()
                except (OSError, Closed) as e:
                    if not known and not self.id:
                        raise Error("the node at %s cannot be reached: %s" % (self.node or local()[0], e), "LMOS-3001", hint="lmosd run") from e
                    known = True
                    pause = 0.1 if self.ready.is_set() else min(5, 2 * pause)
                finally:
                    self.ready.clear()
                self._stop.wait(pause * (0.5 + random.random()))
        except KeyboardInterrupt:
            self.stop()

    def start(self, timeout=10):
        """Serves in a thread of its own, and returns when the node knows the agent."""
        failed = []

        def work():
            try:
                self.run()
            except Exception as e:  # told to who waits
                failed.append(e)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        end = time.monotonic() + timeout
        while not self.ready.wait(0.02):
            if failed:
                raise failed[0]
            if time.monotonic() > end:
                raise Error("the node did not take the agent within %g s" % timeout, "LMOS-1504")
        return thread

    def stop(self):
        """Withdraws the agent and ends run."""
        self._stop.set()
        s = self._socket
        if s:
            try:
                if self.id:
                    s.send({"messageType": "unregisterThing", "messageId": str(uuid.uuid4()), "thingId": self.id})
                s.close()
            except OSError:
                pass  # it is gone already

    def _serve(self):
        at, key = local()
        s = WebSocket(self.node or at, self.token if self.token is not None else key)
        self._socket = s
        pool = ThreadPoolExecutor(self.workers)
        running = {}
        try:
            s.send({"messageType": "registerThing", "messageId": "register", "data": self.about})
            while True:
                m = s.receive()
                if m is None:
                    return
                kind = m.get("messageType")
                if kind == "thingRegistered":
                    self.id = member(m, "thingID")
                    self.ready.set()
                elif kind == "error" and member(m, "correlationID") == "register":
                    raise Error(m.get("detail") or m.get("title"), status=int(m.get("status") or 500), problem=m)
                elif kind not in ("error", "acknowledgement", None):
                    self._take(s, pool, running, m)
        finally:
            for r in list(running.values()):
                r.end()
            s.close()
            pool.shutdown(wait=False)

    def _take(self, s, pool, running, m):
        """Begins what the node asks for. What ends something is done at once, the rest by a worker."""
        key = member(m, "messageID") or ""
        kind = m["messageType"].lower()
        if kind in ("cancelaction", "unobserveproperty", "unsubscribeevent"):
            names = [member(m, n) for n in ("actionID", "correlationID", "messageID") if member(m, n)]
            for r in [running[n] for n in names if n in running] or [r for r in running.values() if r.is_for(kind, m)]:
                r.end()
            s.send(reply(m, "acknowledgement", message=m["messageType"]))
            return
        request = Request(self, s, m)
        running[key] = request
        if member(m, "correlationID"):
            running[member(m, "correlationID")] = request

        def work():
            try:
                if request.run():
                    return  # it goes on until somebody ends it
            finally:
                if not request.lasting:
                    for k in [k for k, r in list(running.items()) if r is request]:
                        running.pop(k, None)

        pool.submit(work)


class Request:
    """One thing that the node asks."""

    def __init__(self, agent, socket, m):
        self.agent, self.s, self.m, self.ended = agent, socket, m, threading.Event()
        self.name = m.get("name") or m.get("property") or m.get("action") or m.get("event")
        self.lasting, self.leave = False, None

    def is_for(self, kind, m):
        mine = self.m["messageType"].lower()
        name = m.get("name") or m.get("property") or m.get("action") or m.get("event")
        return name == self.name and mine == {"cancelaction": "invokeaction", "unobserveproperty": "observeproperty",
                                              "unsubscribeevent": "subscribeevent"}[kind]

    def end(self):
        self.ended.set()
        if self.leave:
            self.leave()

    def run(self):
        """Answers. True if it goes on: a subscription."""
        try:
            return self.answer(self.m["messageType"].lower())
        except Error as e:
            self.fail(e.title, e.status)
        except (OSError, Closed):
            pass  # nobody hears it
        except TypeError as e:
            self.fail(str(e), 400)
        except Exception as e:  # the agent's own code
            self.fail("%s: %s" % (type(e).__name__, e), 500)

    def fail(self, text, status):
        base = "https://eclipse.dev/lmos/protocol/v1/errors"
        word = {400: "bad-request", 404: "not-found", 405: "operation-not-allowed"}.get(status, "internal-server-error")
        try:
            self.s.send(reply(self.m, "error", type=base + "#" + word, title=text, status=str(status), detail=text,
                              instance=base + "/" + str(uuid.uuid4())))
        except (OSError, Closed):
            pass  # nobody hears it

    def answer(self, kind):
        a, m, name = self.agent, self.m, self.name
        if kind == "invokeaction" and name in a.actions:
            return self.invoke(a.actions[name])
        if kind == "readproperty" and name in a.reads:
            return self.reading(name, a.reads[name]())
        if kind == "writeproperty" and a.writes.get(name):
            value = m["data"] if "data" in m else m.get("value")
            a.writes[name](value)
            return self.reading(name, value)
        if kind == "observeproperty" and name in a.states:
            return self.listen(a.states[name].changes, self.reading)
        if kind == "subscribeevent" and name in a.events:
            self.s.send(reply(m, "acknowledgement", message=m["messageType"]))
            return self.listen(a.events[name], lambda name, value: self.s.send(
                reply(m, "event", event=name, name=name, data=value, timestamp=now())))
        raise Error("%s of %r is not offered" % (m["messageType"], name), status=404)

    def reading(self, name, value):
        self.s.send(reply(self.m, "propertyReading", property=name, name=name, data=value, value=value, timestamp=now()))

    def listen(self, event, tell):
        def told(name, value):
            try:
                tell(name, value)
            except (OSError, Closed):
                self.end()

        def leave():
            with event.lock:
                event.listeners.pop(self, None)

        self.lasting, self.leave = True, leave
        with event.lock:
            event.listeners[self] = told
        if self.ended.is_set():
            leave()
        return True

    def invoke(self, f):
        output = f(**arguments(f, self.m.get("input", self.m.get("data"))))
        if inspect.isgenerator(output):
            for part in output:
                if self.ended.is_set():
                    output.close()
                    return None
                self.status("running", part)
            output = None
        self.status("completed", output)

    def status(self, word, output):
        extra = {} if output is None else {"output": plain(output)}
        self.s.send(reply(self.m, "actionStatus", action=self.name, name=self.name, status=word, **extra))


def reply(m, kind, **members):
    out = {"messageType": kind, "thingId": member(m, "thingID"), "messageId": str(uuid.uuid4()),
           "correlationId": member(m, "correlationID") or member(m, "messageID")}
    if kind == "actionStatus" and member(m, "actionID"):
        out["actionID"] = member(m, "actionID")
    out.update(members)
    return out


def member(m, name):
    """A member whose name ends in ID, in either spelling."""
    return m.get(name, m.get(name[:-2] + "Id"))


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + ".%03dZ" % (time.time() % 1 * 1000)


# --- types -------------------------------------------------------------------------------------------------------------


def parameters(f):
    """The input schema of a function: an object of its parameters, or that of its only one if that is called input."""
    hints, ps = typing.get_type_hints(f), inspect.signature(f).parameters
    if list(ps) == ["input"]:
        return schema(hints.get("input", typing.Any))
    s = {"type": "object", "properties": {n: schema(hints.get(n, typing.Any)) for n in ps}}
    required = [n for n, p in ps.items() if p.default is inspect.Parameter.empty]
    if required:
        s["required"] = required
    return s


def arguments(f, value):
    ps = inspect.signature(f).parameters
    if list(ps) == ["input"]:
        return {"input": value}
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise Error("the input must be an object", status=400)
    hints = typing.get_type_hints(f)
    return {n: dataclass_of(hints.get(n), v) for n, v in value.items() if n in ps}


def dataclass_of(kind, value):
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        names = {f.name for f in dataclasses.fields(kind)}
        return kind(**{n: v for n, v in value.items() if n in names})
    return value


def plain(value):
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def schema(kind):
    """The data schema of a type hint (TD 1.1 §5.3.2); an empty one takes anything."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (str, int, float, bool):
        return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}
    if kind is type(None):
        return {"type": "null"}
    if kind is dict or origin is dict:
        return {"type": "object"}
    if kind in (list, tuple, set) or origin in (list, tuple, set):
        return {"type": "array", "items": schema(args[0])} if args else {"type": "array"}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin is typing.Union or args and str(origin) == "<class 'types.UnionType'>":
        return {"oneOf": [schema(a) for a in args]}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        required = [f.name for f in dataclasses.fields(kind)
                    if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
        s = {"type": "object", "properties": {n: schema(h) for n, h in hints.items()}}
        if required:
            s["required"] = required
        return s
    return {}


# --- WebSocket (RFC 6455), the client's side ---------------------------------------------------------------------------


class Closed(Exception):
    """The connection has ended."""


class WebSocket:
    """One connection with text messages of JSON. send may be called by many threads, receive by one."""

    def __init__(self, node, token):
        self.lock = threading.Lock()
        self.s, host = dial(node, 10)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET /ws HTTP/1.1", "Host: " + host, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: " + key,
                 "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: lmosprotocol"]
        if token:
            lines.append("Authorization: Bearer " + token)
        self.s.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.f = self.s.makefile("rb")
        status = self.f.readline(4096).decode("latin-1").split(" ", 2)
        headers = {}
        while True:
            line = self.f.readline(65536).decode("latin-1").strip()
            if not line:
                break
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if len(status) < 2 or status[1] != "101":
            body = self.f.read(min(65536, int(headers.get("content-length") or 0)))
            self.close()
            raise problem(body, int(status[1]) if len(status) > 1 and status[1].isdigit() else 500)
        want = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        if headers.get("sec-websocket-accept") != want:
            self.close()
            raise Closed("what answers is no WebSocket server")
        self.s.settimeout(PING_EVERY)

    def send(self, message):
        self._frame(1, json.dumps(message, separators=(",", ":")).encode())

    def receive(self):
        """The next message, or None at the end."""
        parts = []
        while True:
            head = self._exactly(2, idle=True)
            final, op, size = head[0] & 0x80, head[0] & 0x0F, head[1] & 0x7F
            if size == 126:
                size = struct.unpack(">H", self._exactly(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._exactly(8))[0]
            if size + sum(map(len, parts)) > MAX_MESSAGE:
                raise Closed("a message of more than %d bytes" % MAX_MESSAGE)
            mask = self._exactly(4) if head[1] & 0x80 else None
            data = self._exactly(size)
            if mask:
                data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
            if op == 8:
                try:
                    self._frame(8, data[:2])
                except OSError:
                    pass  # it is closed there
                if len(data) > 2 and data[:2] != struct.pack(">H", 1000):
                    raise Closed(data[2:].decode("utf-8", "replace"))
                return None
            if op == 9:
                self._frame(10, data)
            elif op in (0, 1, 2):
                parts.append(data)
                if final:
                    if op == 2:
                        parts = []
                        continue
                    value = json.loads(b"".join(parts))
                    if isinstance(value, dict):
                        return value
                    parts = []

    def _exactly(self, n, idle=False):
        data, asked = b"", False
        while len(data) < n:
            try:
                more = self.f.read1(n - len(data)) if hasattr(self.f, "read1") else self.f.read(n - len(data))
            except socket.timeout:
                if asked or not idle:
                    raise Closed("the node does not answer") from None
                asked = True
                self.f = self.s.makefile("rb")
                self._frame(9, b"")
                continue
            if not more:
                raise Closed("the node closed the connection")
            data += more
        return data

    def _frame(self, op, data):
        mask = os.urandom(4)
        n = len(data)
        head = bytes([0x80 | op]) + (bytes([0x80 | n]) if n < 126 else
                                     struct.pack(">BH", 0x80 | 126, n) if n < 65536 else struct.pack(">BQ", 0x80 | 127, n))
        body = bytes(a ^ b for a, b in zip(data, (mask * (n // 4 + 1))[:n])) if n < 4096 else xor(data, mask)
        with self.lock:
            self.s.sendall(head + mask + body)

    def close(self):
        try:
            self.s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed there
        self.s.close()


def xor(data, mask):
    """The mask over many bytes, as one large number: Python has no faster way."""
    n = len(data)
    return (int.from_bytes(data, "big") ^ int.from_bytes((mask * (n // 4 + 1))[:n], "big")).to_bytes(n, "big")
