import numpy as np

from packing.ledger import GENESIS, extend


def chain(*steps):
    head = GENESIS
    for number, ids in enumerate(steps, start=1):
        head = extend(head, number, np.array(ids))
    return head


def test_equal_histories_have_equal_heads():
    assert chain([1, 2], [3, 4]) == chain([1, 2], [3, 4])


def test_a_swap_a_skip_a_repeat_and_another_step_border_all_show():
    good = chain([1, 2], [3, 4])
    others = [chain([2, 1], [3, 4]), chain([1, 2]), chain([1, 2], [3, 4], [3, 4]), chain([1, 2, 3], [4])]
    assert good not in others


def test_the_number_of_the_step_counts():
    assert extend(GENESIS, 1, np.array([1])) != extend(GENESIS, 2, np.array([1]))


def test_the_width_of_the_integers_does_not_matter():
    assert extend("", 1, np.array([5], dtype=np.int32)) == extend("", 1, np.array([5], dtype=np.int64))
