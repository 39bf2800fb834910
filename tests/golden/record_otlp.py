"""Records what an exporter sends: each request as a file, with what its headers say beside it.

    python -m tests.golden.record_otlp tests/golden/otlp/go --grpc 14317 --http 14318

Runs until its standard input ends. Over HTTP a body is kept as it came, compressed or not; over
gRPC a message as gRPC has unpacked it: whether it was compressed is for `--grpc-compression` to say.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc

from tests.otlp_door import SERVICES

EXTENSIONS = {"application/x-protobuf": "pb", "application/json": "json"}


class Recording:
    """The files of one directory, and its list of them. Safe to share between threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._list = directory / "requests.json"
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        self._requests = json.loads(self._list.read_text()) if self._list.exists() else []
        self._counts = Counter(each["file"].split("-")[0] for each in self._requests)

    def add(self, body: bytes, *, signal: str, extension: str, **about: str) -> None:
        with self._lock:
            self._counts[signal] += 1
            name = f"{signal}-{self._counts[signal]}.{extension}"
            (self._directory / name).write_bytes(body)
            self._requests.append({"file": name, "signal": signal, **about})
            self._list.write_text(json.dumps(self._requests, indent=1) + "\n")


def over_grpc(recording: Recording, port: int, compression: str) -> Any:
    def export(signal: str, body: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        recording.add(
            body,
            signal=signal,
            extension="pb",
            transport="grpc",
            compression=compression,
            user_agent=metadata.get("user-agent", ""),
        )
        return b""

    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                service, {"Export": grpc.unary_unary_rpc_method_handler(partial(export, signal))}
            )
            for signal, service in SERVICES.items()
        ]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server


def over_http(recording: Recording, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            kind = self.headers["Content-Type"]
            compression = self.headers.get("Content-Encoding", "none")
            suffix = ".gz" if compression == "gzip" else ""
            recording.add(
                self._body(),
                signal=self.path.removeprefix("/v1/"),
                extension=EXTENSIONS[kind.partition(";")[0]] + suffix,
                transport="http",
                content_type=kind,
                compression=compression,
                user_agent=self.headers.get("User-Agent", ""),
            )
            answer = b"{}" if "json" in kind else b""
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers["Content-Length"]))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--grpc", type=int, default=4317)
    parser.add_argument("--http", type=int, default=4318)
    parser.add_argument("--grpc-compression", choices=("none", "gzip"), default="none")
    arguments = parser.parse_args()
    recording = Recording(arguments.directory)
    grpc_server = over_grpc(recording, arguments.grpc, arguments.grpc_compression)
    http_server = over_http(recording, arguments.http)
    print("ready", flush=True)
    sys.stdin.read()
    http_server.shutdown()
    grpc_server.stop(2).wait()


if __name__ == "__main__":
    main()
