"""Packed attention on a GPU: flash attention against the blocks, whose results are tested on every device."""

import numpy as np
import pytest
import torch

from trainer.learning.forward import attention
from trainer.learning.forward.packing import TokenSequence, pack

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("width", [16, 64, 128])
def test_flash_attention_gives_the_results_of_the_blocks(
    heads: tuple[int, int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cuda")
    ids = np.ones(400, np.int32)
    # Two of them have the same prompt.
    sizes = (1, 30, 31, 31, 90, 250)
    packed = pack([TokenSequence(prompt_ids=ids[:n], completion_ids=ids[:7]) for n in sizes], 7, device)
    torch.manual_seed(0)
    num_tokens = packed.ids_1N.shape[1]
    values = [
        torch.randn(1, each, num_tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
        for each in (heads[0], heads[1], heads[1])
    ]
    query, key, value = values
    assert attention.fits_flash(value)
    weights = torch.randn(1, num_tokens, heads[0], width, device=device)

    def result() -> list[torch.Tensor]:
        out, _ = attention.packed_attention(torch.nn.Module(), query, key, value, None, packed=packed)
        return [out, *torch.autograd.grad((out.float() * weights).sum(), values)]

    with_flash = result()
    monkeypatch.setattr(attention, "fits_flash", lambda value: False)
    for got, expected in zip(with_flash, result(), strict=True):
        assert (got - expected).norm() <= 0.01 * expected.norm()
