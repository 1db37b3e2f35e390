"""Values on their way from a rank to the notebook."""

from __future__ import annotations

import pickle
from typing import Any


def carried(name: str, names: dict[str, Any]) -> bytes:
    """One returned value, pickled without torch, so that the notebook need not load it."""
    if name not in names:
        raise NameError(f"name {name!r} is to be returned but the program does not define it")
    try:
        return pickle.dumps(_plain(names[name], name))
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise TypeError(f"{name} cannot be returned to the notebook: {problem}") from None


def _plain(value: Any, name: str) -> Any:
    """Tensors as NumPy arrays, 0-dimensional ones as numbers; containers keep their type."""
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        raise TypeError(f"{name} is a DTensor; return .to_local() or .full_tensor()")
    if isinstance(value, torch.Tensor):
        local = value.detach().cpu()
        if local.dim() == 0:
            return local.item()
        return (local.float() if local.dtype == torch.bfloat16 else local).numpy()
    if isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return tuple(value) if isinstance(value, torch.Size) else str(value)
    if type(value) is dict:
        return {key: _plain(item, name) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, name) for item in value)
    return value
