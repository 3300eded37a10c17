from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from infra.errors import StayerError
from packing.dataset import PackedDataset
from packing.shards import open_shard, smallest_dtype, to_dtype


@pytest.mark.parametrize(("vocab_size", "dtype"), [(500, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_token_type_follows_from_the_largest_id(vocab_size, dtype):
    assert smallest_dtype(vocab_size) == dtype


def test_an_id_that_does_not_fit_is_an_error_and_never_wrapped():
    assert to_dtype(np.array([65_535], dtype=np.uint32), "uint16").tolist() == [65_535]
    with pytest.raises(StayerError, match="65536 does not fit uint16"):
        to_dtype(np.array([65_536], dtype=np.uint32), "uint16")


@pytest.mark.parametrize(("num_words", "dtype"), [(70_000, np.uint32), (500, np.uint16)])
def test_ids_beyond_16_bits_come_back_exactly(make_dataset, word_tokenizer, num_words, dtype):
    ids = [n for n in (0, 65_535, 65_536, 69_999) if n < num_words] + [num_words - 1]
    texts = [" ".join(f"w{n}" for n in ids)]
    folder, manifest = make_dataset(texts, tokenizer=word_tokenizer(num_words))
    dataset = PackedDataset(folder)
    row = dataset.rows(np.array([0])).input_ids[0]
    assert row[: len(ids) + 1].tolist() == [*ids, num_words]
    assert manifest.token_dtype == np.dtype(dtype).name
    assert manifest.vocab_size == num_words + 1


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_a_shard_is_the_documented_uncompressed_arrow_file(make_dataset, texts, strategy):
    folder, manifest = make_dataset(texts, strategy=strategy)
    for shard in manifest.shards:
        reader = pa.ipc.open_file(pa.memory_map(f"{folder}/{shard.file}"))
        assert reader.schema.field("input_ids").type == pa.list_(pa.uint16(), 32)
        assert reader.schema.field("document_lengths").type == pa.list_(pa.int32())
        assert reader.schema.field("effective_tokens").type == pa.int32()
        metadata = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
        assert metadata["dataset_id"] == manifest.dataset_id
        assert metadata["tokenizer_sha256"] == manifest.tokenizer_sha256
        assert metadata["seq_len"] == "32"
        table = reader.read_all()
        lengths = table["document_lengths"].to_pylist()
        assert [sum(row) for row in lengths] == table["effective_tokens"].to_pylist()
        assert (table.num_rows, sum(map(len, lengths))) == (shard.rows, shard.documents)


def test_shards_hold_no_more_rows_than_configured(make_dataset, texts):
    _, manifest = make_dataset(texts, rows_per_shard=3)
    assert max(Counter(shard.rows for shard in manifest.shards)) == 3


def test_a_shard_with_other_rows_than_listed_is_refused(make_dataset, texts, tmp_path):
    folder, manifest = make_dataset(texts)
    shard = manifest.shards[0]
    with pytest.raises(StayerError, match="the manifest lists 99"):
        open_shard(tmp_path / folder / shard.file, shard.model_copy(update={"rows": 99}))


def test_a_file_that_is_no_shard_is_refused(make_dataset, texts, tmp_path):
    _, manifest = make_dataset(texts)
    (tmp_path / "x.arrow").write_bytes(b"ARROW1 no more")
    with pytest.raises(StayerError, match="not a readable shard"):
        open_shard(tmp_path / "x.arrow", manifest.shards[0])
