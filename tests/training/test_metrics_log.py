from training.metrics_log import MetricsFollower


def test_each_line_is_handed_out_once_and_a_line_being_written_waits(tmp_path):
    file = tmp_path / "metrics.jsonl"
    follower = MetricsFollower(file)
    assert follower.new_rows() == []
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert follower.new_rows() == [{"step": 1}, {"step": 2}]
    assert follower.new_rows() == []
    with file.open("a") as writer:
        writer.write('ep": 3}\n')
    assert follower.new_rows() == [{"step": 3}]


def test_a_torn_line_of_a_dead_writer_is_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    assert MetricsFollower(file).new_rows() == [{"step": 1}, {"step": 2}]
