"""`vllm serve` with a tiny model of dummy weights: what it logs about its memory, and one
completion.

The server and its engine are separate processes, so the allocator comes from the environment.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from ferro_alloc import _top
from tests.python.client_program import measure
from tests.python.real_clients.client_vllm_engine import MODEL, set_up

PATIENCE_S = 240
NEW_TOKENS = 8


def write_tokenizer(folder):
    """A word for each token, so that nothing has to be downloaded."""
    vocabulary = {f"w{number}": number for number in range(MODEL["vocab_size"])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask(url, content=None):
    """The answer of the server; None while it does not listen yet."""
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read().decode()) from error
    except (urllib.error.URLError, ConnectionError):
        return None


def wait_for(server, url, log):
    deadline = time.monotonic() + PATIENCE_S
    while ask(f"{url}/health") is None:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.2)


def serve(folder):
    port, log = free_port(), folder / "server.log"
    url = f"http://127.0.0.1:{port}"
    options = {
        "--load-format": "dummy",
        "--max-model-len": "256",
        "--max-num-seqs": "8",
        "--gpu-memory-utilization": "0.5",
        "--compilation-config": json.dumps({"cudagraph_capture_sizes": [1, 2, 4]}),
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *words]
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_for(server, url, log)
        asked = {
            "model": str(folder),
            "prompt": "w5 w6 w7",
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = json.loads(ask(f"{url}/v1/completions", asked))
        metrics = ask(f"{url}/metrics")
        pools = reserved_by_pools(server.pid)
    finally:
        server.terminate()
        server.wait()
    took = re.findall(r"Graph capturing finished .* took ([\d.]+) GiB", log.read_text())
    return {
        "tokens": answer["usage"]["completion_tokens"],
        "blocks": int(re.search(r'num_gpu_blocks="(\d+)"', metrics)[1]),
        # The first number is of a trial before the KV cache exists, the second of the real capture.
        "graphs_gib": [float(size) for size in took],
        "pools": pools,
        "status": server.returncode,
    }


def reserved_by_pools(server):
    """Bytes in private pools of the engine, as `top` sees it; None if `top` does not see the
    engine."""
    for process in _top.look():
        status = Path(f"/proc/{process.pid}/status").read_text()
        if f"PPid:\t{server}\n" in status and process.devices:
            return sum(size for _, size in process.devices[0].pools)
    return None


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        set_up(folder, "process")
        write_tokenizer(folder)
        measure(lambda: serve(folder))


if __name__ == "__main__":
    main()
