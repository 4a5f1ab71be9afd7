"""mlx-lm's own commands, each in a process of its own, as people run them."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import mlx.core as mx

QUESTION = "Say it."
IDS = [[1, 2, 3, 4, 200, 7]]
LOGITS = """
import json, sys
import mlx.core as mx, mlx_lm
job = json.loads(sys.argv[1])
for name, (model, adapters) in job["models"].items():
    loaded = mlx_lm.utils.load(model, adapter_path=adapters)
    mx.savez(f"{job['folder']}/{name}.npz", logits=loaded[0](mx.array(job["ids"])))
"""


def run(*words: str | Path, **environment: str) -> str:
    """What the program says; it has no network and none of our libraries."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=_environment(**environment),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def mlx_lm_says(model: Path, *words: str | Path) -> str:
    """The greedy answer of `mlx_lm generate` to the question."""
    asked = ["--prompt", QUESTION, "--temp", "0", "--max-tokens", "8", "--verbose", "False"]
    return run("-m", "mlx_lm", "generate", "--model", model, *words, *asked).strip()


def mlx_lm_logits(folder: Path, **models: tuple[Path, Path | None]) -> dict[str, mx.array]:
    """Logits [T, V] of each (model, adapters), loaded in a fresh process."""
    jobs = {name: [str(path) if path else None for path in pair] for name, pair in models.items()}
    job = {"folder": str(folder), "models": jobs, "ids": IDS}
    run("-c", LOGITS, json.dumps(job))
    found: dict[str, Any] = {name: mx.load(str(folder / f"{name}.npz")) for name in models}
    return {name: arrays["logits"] for name, arrays in found.items()}


def mlx_lm_serves(model: Path, *words: str | Path) -> str:
    """The greedy answer of `mlx_lm server` to the question."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--model", model, *words, "--port", port]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlx_lm", "server", *map(str, options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    )
    message = {"role": "user", "content": QUESTION}
    asked = {"messages": [message], "temperature": 0, "max_tokens": 8}
    try:
        told = _post(f"http://127.0.0.1:{port}/v1/chat/completions", asked, server)
    finally:
        server.kill()
        server.wait()
    text: str = told["choices"][0]["message"]["content"]
    return text.strip()


def _post(url: str, content: dict[str, Any], server: "subprocess.Popen[bytes]") -> Any:
    """The JSON that a server says, once it listens."""
    request = urllib.request.Request(
        url, json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server never listens"
            time.sleep(0.05)


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", **more}
