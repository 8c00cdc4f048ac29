"""A tensor made from a device tensor: a copy where PyTorch copies, the same memory where it does not."""

import pytest
import torch

COPIES = {"tensor": torch.tensor, "tensor, device": lambda x: torch.tensor(x, device="cuda"),
          "tensor, data": lambda x: torch.tensor(data=x), "tensor, dtype": lambda x: torch.tensor(x, dtype=x.dtype),
          "new_tensor": lambda x: x.new_tensor(x), "asarray, copy": lambda x: torch.asarray(x, copy=True)}
SHARED = {"as_tensor": torch.as_tensor, "asarray": torch.asarray}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy(gpu, make):
    x = torch.arange(4.0, device="cuda")
    made = make(x)
    assert made.device == x.device and made.data_ptr() != x.data_ptr()
    x.fill_(9)
    assert made.tolist() == [0, 1, 2, 3] and not gpu.hazards


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_the_same_memory(gpu, make):
    x = torch.arange(4.0, device="cuda")
    made = make(x)
    x.fill_(9)
    assert made.tolist() == [9] * 4
