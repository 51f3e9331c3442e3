"""Loading of an optimizer's state in another way than torch's, between the hooks that torch calls."""

from collections.abc import Callable
from typing import Any

import torch


def load_between_hooks(
    optimizer: torch.optim.Optimizer,
    load_options: Callable[[dict[str, Any]], None],
    state_dict: dict[str, Any],
    load: Callable[[dict[str, Any]], None],
    check: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Load what the pre-hooks make of a state: options as torch does, the rest by `load` before the post-hooks.

    Torch would move all state to the parameters' devices and round it to their dtypes.

    Args:
        load_options: the optimizer's `load_state_dict` of `torch.optim.Optimizer`, which gets no state.
        check: raises what `load` would, before anything changes.
    """
    whole: dict[str, Any] = {}

    def take(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        check(given)
        whole.update(given)
        return given | {"state": {}}

    take_last = optimizer.register_load_state_dict_pre_hook(take)
    load_first = optimizer.register_load_state_dict_post_hook(lambda _: load(whole), prepend=True)
    try:
        load_options(state_dict)
    finally:
        take_last.remove()
        load_first.remove()
