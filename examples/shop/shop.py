"""A web shop without anything of lmosd: an HTTP API, which shop.openapi.yaml describes."""
import http.server
import json
import sys
import urllib.parse

GOODS = {"apple": 0.4, "bread": 3.2, "milk": 1.1}
orders = []


class Shop(http.server.BaseHTTPRequestHandler):
    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        most = float(urllib.parse.parse_qs(url.query).get("max_price", ["inf"])[0])
        self.answer(200, [{"name": n, "price": p} for n, p in GOODS.items() if p <= most])

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if order["item"] not in GOODS:
            return self.answer(404, {"error": "there is no " + order["item"]})
        orders.append(order)
        self.answer(201, {"order": len(orders), "total": round(GOODS[order["item"]] * order.get("count", 1), 2)})

    def log_message(self, *_):
        pass


address, _, port = sys.argv[1].partition(":")
http.server.ThreadingHTTPServer((address, int(port)), Shop).serve_forever()
