"""A pass written down by torch.export as a list of kernels."""

import contextlib
import io
import logging
import warnings
from typing import Any

import torch
from torch import fx, nn

from speclab.models.family import NoFastBackend
from speclab.system.errors import first_line

aten = torch.ops.aten


def export(one_pass: nn.Module, arguments: tuple, dynamic: tuple) -> fx.GraphModule:
    """What a pass runs, as a list of kernels. dynamic: the sizes that may differ."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch.export logs pages; one line of them is kept as the reason
    try:
        # It also prints what it has traced so far, and warns; both would reach standard error.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                one_pass,
                arguments,
                dynamic_shapes=dynamic,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,  # or torch 2.11 refuses grouped queries
            )
    except Exception as error:  # whatever the model's code does that cannot be written down
        raise NoFastBackend(f"torch.export gave up: {first_line(error)}") from None
    finally:
        logging.disable(before)
    graph = program.module(check_guards=False)
    for node in reversed(list(graph.graph.nodes)):
        if node.target is aten._assert_scalar.default:  # of sizes, which are right by construction
            graph.graph.erase_node(node)
    for node in list(graph.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default or _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    return graph


def _changes_nothing(node: fx.Node) -> bool:
    """A conversion to the type and device that a tensor already has, or a second name for it."""
    if node.target is aten.alias.default:
        return True
    if node.target not in (aten.to.dtype, aten.to.device, aten.to.dtype_layout):
        return False
    source: Any = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    return before.dtype == after.dtype and before.device == after.device
