"""An A2A agent with the standard library only: an Agent Card, and message/send over JSON-RPC (A2A 0.3)."""
import http.server
import json
import sys
import uuid

WORDS = {"good": "guten", "morning": "Morgen", "night": "Nacht", "bread": "Brot"}
address, _, port = sys.argv[1].partition(":")
CARD = {
    "protocolVersion": "0.3.0",
    "name": "Translator",
    "description": "Translates from English to German.",
    "url": "http://%s/" % sys.argv[1],
    "preferredTransport": "JSONRPC",
    "version": "1.0.0",
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "translate", "name": "translate", "description": "Translates words.", "tags": ["german"]}],
}


class Agent(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path != "/.well-known/agent-card.json":
            return self.send_error(404)
        self.answer(CARD)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["method"] != "message/send":
            return self.answer({"jsonrpc": "2.0", "id": request["id"],
                                "error": {"code": -32601, "message": "unknown method"}})
        message = request["params"]["message"]
        said = " ".join(p["text"] for p in message["parts"] if p["kind"] == "text")
        german = " ".join(WORDS.get(word.lower(), word) for word in said.split())
        self.answer({"jsonrpc": "2.0", "id": request["id"], "result": {
            "kind": "message", "role": "agent", "messageId": str(uuid.uuid4()), "contextId": message.get("contextId"),
            "parts": [{"kind": "text", "text": german}]}})

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer((address, int(port)), Agent).serve_forever()
