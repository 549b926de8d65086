"""Stands for a language model in the test: the OpenAI API, with one answer."""
import http.server
import json
import sys

address, _, port = sys.argv[1].partition(":")


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        poem = "You asked: " + asked + "\nRoses are red."
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": poem}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer((address, int(port)), Model).serve_forever()
