import numpy as np
import pytest
import torch
from training_runs import ARCHITECTURE

from infra.errors import InputError
from packing.rows import Rows, model_inputs
from training.model import PackedCausalLM, build_model
from training.model_limits import ModelLimits, check_fit

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "tie_word_embeddings": False,
}


def build(architecture: dict, *, vocab_size: int = 512, seq_len: int = 16) -> PackedCausalLM:
    return build_model(folder=None, architecture=architecture, seed=1, vocab_size=vocab_size, seq_len=seq_len)


def tensors(*documents: list[int], seq_len: int = 16) -> tuple[torch.Tensor, ...]:
    """One row that packs the documents."""
    ids = np.zeros((1, seq_len), dtype=np.int64)
    flat = [token for document in documents for token in document]
    ids[0, : len(flat)] = flat
    inputs = model_inputs(Rows(ids, [np.array([len(d) for d in documents])]))
    return tuple(map(torch.from_numpy, (inputs.input_ids, inputs.position_ids, inputs.labels)))


@pytest.fixture(params=[ARCHITECTURE, LLAMA], ids=["qwen3, tied", "llama, untied"])
def model(request: pytest.FixtureRequest) -> PackedCausalLM:
    return build(request.param)


@pytest.mark.parametrize("training", [True, False])
def test_a_document_does_not_see_its_neighbours(model, training):
    model.train(training)
    before, after, document = [5, 6, 7, 8, 9], [11, 12, 13], [101, 102, 103, 104, 105, 106]
    with_one = model.token_losses(*tensors(before, document, after))
    with_another = model.token_losses(*tensors([400, 300, 200, 100, 50], document, [1, 2, 3]))
    alone = model.token_losses(*tensors(document))
    assert torch.equal(with_one[0, 5:11], with_another[0, 5:11])
    torch.testing.assert_close(with_one[0, 5:10], alone[0, :5])


def test_the_summed_loss_is_the_sum_over_tokens_with_a_target(model):
    row = tensors([5, 6, 7, 8, 9], [11, 12, 13], [101, 102, 103])
    losses_BT = model.token_losses(*row)
    assert int((losses_BT > 0).sum()) == 4 + 2 + 2
    torch.testing.assert_close(model(*row).detach(), losses_BT.sum())


def test_equal_seeds_give_equal_random_weights_and_leave_the_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    first = build(ARCHITECTURE)
    assert torch.rand(()) == expected
    second = build(ARCHITECTURE)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_token_that_is_also_the_padding_token_still_learns():
    model = build({**LLAMA, "pad_token_id": 7})
    model(*tensors([7, 8, 9])).backward()
    assert model.lm.get_input_embeddings().weight.grad[7].any()


def test_an_architecture_without_vocabulary_takes_the_tokenizers():
    assert build(LLAMA, vocab_size=300).lm.config.vocab_size == 300


def test_a_model_whose_logits_are_capped_is_refused():
    gemma = {**LLAMA, "model_type": "gemma2", "head_dim": 16, "num_key_value_heads": 1}
    with pytest.raises(InputError, match="final_logit_softcapping"):
        build(gemma)


@pytest.mark.parametrize(
    "architecture", [{"model_type": "no-such-model"}, {"model_type": "qwen3", "num_hidden_layers": "x"}]
)
def test_an_unusable_architecture_is_an_input_error(architecture):
    with pytest.raises(InputError, match=r"model\.architecture"):
        build(architecture)


def test_a_dataset_that_does_not_fit_the_model_is_refused_with_the_numbers():
    limits = ModelLimits(embedding_rows=512, max_positions=128)
    check_fit(limits, vocab_size=512, seq_len=128)
    with pytest.raises(InputError, match=r"513 entries .* only 512"):
        check_fit(limits, vocab_size=513, seq_len=128)
    with pytest.raises(InputError, match=r"129 tokens long .* 128 positions"):
        check_fit(limits, vocab_size=512, seq_len=129)
    check_fit(ModelLimits(None, None), vocab_size=10**6, seq_len=10**6)
