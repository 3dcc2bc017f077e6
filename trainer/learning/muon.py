"""Muon for the matrices inside a model's layers, and AdamW for all else, as one optimizer with one state.

*Source*: torch's Muon (Jordan et al. 2024). Its updates are scaled to the root mean square of AdamW's (Liu et al. 2025,
arXiv 2502.16982, section 2.2), so that both use one rate.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

OUTSIDE = ("embed", "lm_head", "wte", "wpe", "score", "value_head")
"""Parts of the names of matrices that Muon is not meant for: embeddings and outputs."""


class MuonWithAdamW(torch.optim.Optimizer):
    """Optimizes `named` parameters; `betas` are AdamW's, `momentum` is Muon's."""

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        *,
        lr: float,
        betas: tuple[float, float],
        momentum: float,
        weight_decay: float,
    ) -> None:
        matrices = [each for name, each in named if _is_inside(name, each)]
        rest = [each for name, each in named if not _is_inside(name, each)]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(
                torch.optim.Muon(
                    matrices, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
                )
            )
        if rest:
            self._parts.append(torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=weight_decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss is returned
        """Apply the gradients that the parameters hold."""
        assert closure is None
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        # The parts keep the groups and the state of the whole, so that it is saved, and given its rate, as one.
        at = 0
        for part in self._parts:
            part.param_groups = self.param_groups[at : at + len(part.param_groups)]
            at += len(part.param_groups)
            part.state = self.state


def _is_inside(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim == 2 and not any(word in name for word in OUTSIDE)
