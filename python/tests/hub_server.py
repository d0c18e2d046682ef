"""A server on loopback that speaks the routes of the Hugging Face Hub, for tests."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A hub with files by repository, such as `models/org/name`, and a log of its requests."""

    def __init__(self):
        self.repos, self.log = {}, []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                hub.log.append((self.path, dict(self.headers)))
                path = self.path.split("?")[0].lstrip("/")
                if path.startswith("api/"):
                    repo = path.removeprefix("api/").split("/revision/")[0]
                    if repo not in hub.repos:
                        return self.answer(401, X_Error_Code="RepoNotFound")
                    files = hub.repos[repo].items()
                    siblings = [dict(rfilename=name, size=len(body), **hub.hash(name, body)) for name, body in files]
                    return self.answer(200, json.dumps(dict(sha=COMMIT, siblings=siblings)).encode())
                repo, _, name = path.partition(f"/resolve/{COMMIT}/")
                repo = repo if repo.startswith("datasets/") else f"models/{repo}"
                body = hub.repos.get(repo, {}).get(name)
                return self.answer(404) if body is None else self.answer(200, body)

            do_HEAD = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def hash(name, body):
        if name.endswith((".safetensors", ".gguf")):
            return dict(lfs=dict(sha256=hashlib.sha256(body).hexdigest(), size=len(body)))
        return dict(blobId=hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest())

    def add_folder(self, repo, folder):
        self.repos[repo] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
