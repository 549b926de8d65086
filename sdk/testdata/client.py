"""Reads requests, one JSON object a line, and writes the responses, one a line, with the id of the request."""

import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
sys.dont_write_bytecode = True
import lmosd  # noqa: E402

lock = threading.Lock()


def say(ident, **members):
    with lock:
        print(json.dumps({"id": ident, **members}), flush=True)


def limit(items, count):
    for item in items:
        yield item
        count -= 1
        if count == 0:
            return


def upload(chunks, size, fail=False):
    for _ in range(chunks):
        yield b"x" * size
    if fail:
        raise OSError("the microphone fell")


def steps(t, all):
    """Calls methods of a task, and yields the result or the code of each, with the status after it."""
    for method, *args in all:
        try:
            result = getattr(t, method)(*args)
        except lmosd.Error as e:
            result = e.code
        yield [result, t.status]


def do(op, agent=None, name=None, input=None, timeout=30, count=0, ident=None, **more):
    args = [] if input is None else [input]
    by = {"delegation": more["delegation"]} if "delegation" in more else {}
    if op == "upload":
        return lmosd.call(agent, name, upload(**input), content_type="audio/wav", timeout=timeout)
    if op == "bytes":
        return lmosd.call(agent, name, input.encode())
    if op == "file":
        with open(__file__, "rb") as f:
            return lmosd.call(agent, name, f)
    if op == "call" and isinstance(input, dict):
        return lmosd.call(agent, name, timeout=timeout, **by, **input)
    if op == "call":
        return lmosd.call(agent, name, *args, timeout=timeout, **by)
    if op == "stream":
        return list(limit(lmosd.stream(agent, name, *args, timeout=timeout, **by), count))
    if op == "watch":
        for name, value in limit(lmosd.watch(agent, **more), count):
            say(ident, item=[name, value])
        return None
    if op == "later":  # sets the clock forward
        now = time.monotonic
        time.monotonic = lambda: now() + input
        return None
    if op == "task":
        t = lmosd.start(agent, name, *args)
        return [*steps(t, more["steps"]), *steps(lmosd.task(t.id), [["refresh"]])]
    if op == "read":
        return lmosd.read(agent, name or "", **by)
    if op == "write":
        return lmosd.write(agent, name, input, **by)
    if op == "find":
        return [a["name"] for a in lmosd.find(name or "", **more)]
    raise ValueError(op)


def work(request):
    ident = request.pop("id")
    try:
        result = do(ident=ident, **request)
    except lmosd.Error as e:
        say(ident, error={"message": e.title, "code": e.code, "hint": e.hint, "next": e.next,
                         "issues": e.problem.get("validationErrors", [])})
    except Exception as e:
        say(ident, error={"message": repr(e), "code": "", "hint": ""})
    else:
        say(ident, result=result)


for line in sys.stdin:
    threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()
