import json

from infra import storage
from training.telemetry import Recorder


def test_lines_wait_for_a_full_disk_and_are_written_in_order(run_dir, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    recorder = Recorder(run_dir, enabled=True)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "append_json_line", full)
        recorder.metrics({"step": 1})
        recorder.ledger(step=1, position=8, rows=8, head="ab")
        recorder.event("first_step_done", step=1)
    assert not run_dir.metrics_file.exists()
    recorder.metrics({"step": 2})
    assert [row["step"] for row in run_dir.metrics()] == [1, 2]
    assert json.loads((run_dir.path / "ledger.jsonl").read_text()) == {
        "step": 1,
        "position": 8,
        "rows": 8,
        "head": "ab",
    }


def test_only_rank_0_writes(run_dir):
    recorder = Recorder(run_dir, enabled=False)
    recorder.metrics({"step": 1})
    recorder.event("first_step_done", step=1)
    assert not run_dir.metrics_file.exists() and not run_dir.events_file.exists()
