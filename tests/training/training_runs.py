"""Real runs of the worker under torchrun, small enough for two cores."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from packing.config import DataConfig, PackingConfig, SourceConfig
from packing.prepare import plan_preparation, prepare
from packing.tokenizer import train_byte_bpe
from training.checkpoint_manifest import CheckpointManifest, read_manifest
from training.rundir import Inputs, RunDir

REPOSITORY = Path(__file__).resolve().parents[2]
SEQ_LEN = 32
VOCAB_SIZE = 512
ARCHITECTURE = {
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
TOTAL_ROWS, TOTAL_STEPS = 92, 12
"""More than one epoch, and a last step of half the size."""
TRAINING = {
    "total_tokens": TOTAL_ROWS * SEQ_LEN,
    "global_batch_rows": 8,
    "micro_batch_rows": 2,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "compute_dtype": "float32",
    "seed": 7,
    "collective_timeout_s": 60,
    "threads_per_process": 1,
}
DEADLINE_S = 120


@dataclass(frozen=True)
class Data:
    """A prepared dataset and its tokenizer."""

    dataset: Path
    dataset_id: str
    tokenizer: Path
    num_rows: int


def make_data(folder: Path, *, num_documents: int = 100) -> Data:
    """A dataset of made-up documents, packed so that rows hold very different numbers of tokens and documents."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefgh"), size=3)) for _ in range(200)]
    sizes = random.integers(1, 25, size=num_documents)
    texts = [" ".join(random.choice(words, size=size)) for size in sizes]
    source = folder / "text.jsonl"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = folder / "tokenizer"
    train_byte_bpe(texts, tokenizer, vocab_size=VOCAB_SIZE)
    plan = plan_preparation(
        DataConfig(sources=[SourceConfig(name="words", uri=[str(source)])], held_out_fraction=0),
        PackingConfig(seq_len=SEQ_LEN, buckets=2, strategy="best_fit"),
        tokenizer_folder=str(tokenizer),
        root=str(folder / "datasets"),
    )
    manifest = prepare(plan)
    return Data(Path(plan.dataset), manifest.dataset_id, tokenizer, manifest.rows)


def make_run(
    folder: Path,
    data: Data,
    *,
    training: dict[str, Any] | None = None,
    checkpoint: dict[str, Any] | None = None,
    architecture: dict[str, Any] | None = None,
    model: Path | None = None,
    job_hash: str = "job-1",
) -> RunDir:
    """A run directory as the launcher hands it to the worker."""
    folder.mkdir(parents=True)
    job = {
        "name": "tiny",
        "model": {"architecture": {**ARCHITECTURE, **(architecture or {})}, "tokenizer": str(data.tokenizer)},
        "training": {**TRAINING, **(training or {})},
        "checkpoint": checkpoint or {},
    }
    run = RunDir(folder)
    run.job_file.write_text(yaml.safe_dump(job))
    run.write_inputs(
        Inputs(
            dataset=str(data.dataset),
            dataset_id=data.dataset_id,
            model=str(model) if model else None,
            tokenizer=str(data.tokenizer),
            job_hash=job_hash,
        )
    )
    return run


@dataclass
class Launched:
    """An attempt that is under way."""

    run: RunDir
    number: int
    agent: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> int:
        """Wait for the end; returns torchrun's exit code."""
        return self.agent.wait(DEADLINE_S)

    def kill(self) -> None:
        """End everything that is left."""
        if self.agent.poll() is None:
            os.killpg(self.agent.pid, signal.SIGKILL)
            self.agent.wait(DEADLINE_S)


def launch(run: RunDir, *, ranks: int, attempt: int = 1, disturb: str | None = None) -> Launched:
    """Start an attempt under torchrun, undisturbed or with a disturbance named in disturbed_worker.py."""
    run.attempt(attempt).mkdir(parents=True, exist_ok=True)
    log = run.attempt(attempt) / "torchrun.log"
    what = [str(Path(__file__).with_name("disturbed_worker.py"))] if disturb else ["-m", "training.worker"]
    port = str(_free_port())
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", "0"]
    torchrun += ["--monitor-interval", "0.1", "--master-addr", "127.0.0.1", "--master-port", port]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # one rank needs no agent, which takes seconds to start
    command = [sys.executable, *(torchrun if ranks > 1 else []), *what, str(run.path)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "STAYER_ATTEMPT": f"mark-{attempt}",
        "STAYER_ATTEMPT_NUMBER": str(attempt),
        "OMP_NUM_THREADS": "1",
        "DISTURB": disturb or "",
        **(alone if ranks == 1 else {}),
    }
    with log.open("wb") as output:
        agent = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=REPOSITORY, start_new_session=True
        )
    return Launched(run, attempt, agent, log)


def finish(
    run: RunDir, *, ranks: int, attempt: int = 1, disturb: str | None = None, expect: str | None = "completed"
) -> RunDir:
    """Run an attempt to its end and make sure that it ended as expected; None: that it left no word."""
    launched = launch(run, ranks=ranks, attempt=attempt, disturb=disturb)
    try:
        launched.wait()
    finally:
        launched.kill()
    record = run.exit_record(attempt)
    log = launched.log.read_text()[-6000:]
    assert (record.reason if record else None) == expect, f"{record}\n{log}"
    return run


def wait_until(condition: Callable[[], Any]) -> None:
    """Poll until something is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def newest(run: RunDir) -> tuple[Path, CheckpointManifest]:
    """The newest checkpoint and its manifest."""
    folder = sorted(run.checkpoints.glob("step-*"))[-1]
    return folder, read_manifest(folder)


def tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a checkpoint, unsharded."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = dcp.FileSystemReader(folder)
    state = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in reader.read_metadata().state_dict_metadata.items()
        if isinstance(meta, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about being alone even where told so
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def same_tensors(first: Path, second: Path) -> bool:
    """Whether two checkpoints hold the same tensors, bit for bit."""
    import torch

    a, b = tensors(first), tensors(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def series(run: RunDir, key: str) -> list[Any]:
    """One column of the metrics, by step."""
    return [row[key] for row in run.metrics()]


def ledger(run: RunDir) -> list[tuple[int, int, str]]:
    """(step, position, head) of each step, as it was run last."""
    lines = (run.path / "ledger.jsonl").read_text().splitlines()
    rows = {row["step"]: (row["step"], row["position"], row["head"]) for row in map(json.loads, lines)}
    return [rows[step] for step in sorted(rows)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
