"""pseudo_gradient: descent sign, in place, and no non-finite value goes unseen."""

import pytest
import torch
from loco_kernels.pseudo_gradient import pseudo_gradient, pseudo_gradient_reference


@pytest.mark.parametrize("size", [1, 127, 128, 129, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference_in_place(size, dtype):
    base, local = torch.randn(2, size, dtype=dtype).unbind()
    expected, finite = pseudo_gradient_reference(base, local)
    assert finite
    assert pseudo_gradient(base, local, out=local)
    assert torch.equal(local, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", [0, 77, 255])
def test_one_non_finite_value_is_seen_wherever_it_is(bad, where):
    base, local = torch.zeros(256), torch.randn(256)
    local[where] = bad
    assert not pseudo_gradient(base, local, out=local)


def test_overflow_of_the_difference_is_seen():
    huge = torch.full((4,), 3e38)
    assert not pseudo_gradient(huge, -huge, out=torch.empty(4))


def test_an_empty_buffer_is_finite():
    assert pseudo_gradient(torch.empty(0), torch.empty(0), out=torch.empty(0))


def test_a_buffer_of_another_dtype_is_named():
    with pytest.raises(ValueError, match="out and base must have one dtype"):
        pseudo_gradient(torch.zeros(4), torch.zeros(4), out=torch.zeros(4, dtype=torch.float64))
