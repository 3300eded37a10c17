import pytest
import torch
from torch.nn.functional import cross_entropy

from training import objective
from training.objective import summed_cross_entropy, token_losses


@pytest.fixture(autouse=True)
def many_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "_MIN_CHUNK_TOKENS", 7)
    monkeypatch.setattr(objective, "_CHUNK_ELEMENTS", {"cpu": 1})


def example(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden_ND = torch.randn(23, 16).to(dtype).requires_grad_()
    weight_VD = torch.randn(50, 16).to(dtype).requires_grad_()
    labels_N = torch.randint(0, 50, (23,))
    labels_N[[0, 6, 7, 22]] = -100
    return hidden_ND, weight_VD, labels_N


def gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss * 0.25, inputs))


def test_value_and_gradients_are_those_of_cross_entropy_over_all_logits():
    hidden_ND, weight_VD, labels_N = example()
    expected = cross_entropy(hidden_ND @ weight_VD.t(), labels_N, reduction="sum", ignore_index=-100)
    loss = summed_cross_entropy(hidden_ND, weight_VD, labels_N)
    torch.testing.assert_close(loss, expected)
    expected_gradients = gradients(expected, hidden_ND, weight_VD)
    torch.testing.assert_close(gradients(loss, hidden_ND, weight_VD), expected_gradients)


def test_a_projection_tied_to_the_embedding_collects_both_gradients():
    _, weight_VD, labels_N = example()
    ids_N = torch.arange(23) % 50
    expected = cross_entropy(weight_VD[ids_N].tanh() @ weight_VD.t(), labels_N, reduction="sum")
    loss = summed_cross_entropy(weight_VD[ids_N].tanh(), weight_VD, labels_N)
    torch.testing.assert_close(gradients(loss, weight_VD), gradients(expected, weight_VD))


def test_bfloat16_inputs_give_a_float32_loss_and_bfloat16_gradients():
    hidden_ND, weight_VD, labels_N = example(torch.bfloat16)
    expected = cross_entropy((hidden_ND @ weight_VD.t()).float(), labels_N, reduction="sum")
    loss = summed_cross_entropy(hidden_ND, weight_VD, labels_N)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        gradients(loss, hidden_ND, weight_VD), gradients(expected, hidden_ND, weight_VD), strict=True
    ):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def test_rows_without_any_target_have_loss_zero_and_no_gradient():
    hidden_ND, weight_VD, labels_N = example()
    loss = summed_cross_entropy(hidden_ND, weight_VD, torch.full_like(labels_N, -100))
    assert loss.item() == 0
    assert not any(g.any() for g in gradients(loss, hidden_ND, weight_VD))


def test_losses_of_single_tokens_sum_up_to_the_loss():
    hidden_ND, weight_VD, labels_N = example()
    losses_N = token_losses(hidden_ND, weight_VD, labels_N)
    expected_N = cross_entropy(hidden_ND @ weight_VD.t(), labels_N, reduction="none")
    torch.testing.assert_close(losses_N, expected_N.detach())
    assert (losses_N[labels_N == -100] == 0).all()


def test_without_gradients_only_the_loss_is_computed():
    hidden_ND, weight_VD, labels_N = example()
    with torch.no_grad():
        assert not summed_cross_entropy(hidden_ND, weight_VD, labels_N).requires_grad
