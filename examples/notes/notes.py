"""An MCP server on standard input and output, with the standard library only: tools that keep notes."""
import json
import sys

notes = []
TOOLS = [
    {"name": "add_note", "description": "Keeps a note.",
     "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    {"name": "list_notes", "description": "Lists the notes.", "inputSchema": {"type": "object"},
     "annotations": {"readOnlyHint": True}},
]


def text(value, error=False):
    return {"content": [{"type": "text", "text": value}], "isError": error}


def call(name, arguments):
    if name == "add_note":
        notes.append(arguments["text"])
        return text("note %d" % len(notes))
    if name == "list_notes":
        return text("\n".join(notes) or "no notes")
    return text("there is no tool " + name, True)


def result(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "notes", "version": "1.0.0"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return call(params["name"], params.get("arguments", {}))
    if method == "ping":
        return {}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    value = result(request["method"], request.get("params", {}))
    if value is None:
        answer["error"] = {"code": -32601, "message": "unknown method " + request["method"]}
    else:
        answer["result"] = value
    print(json.dumps(answer), flush=True)
