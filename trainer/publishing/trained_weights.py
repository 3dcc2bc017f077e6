"""Chooses how versions of the trained weights are taken: on the host, on an accelerator, or on several ranks."""

from typing import Any

from trainer.distributed.collectives import HostCollectives
from trainer.publishing.local_rows import is_sharded
from trainer.publishing.sharded_snapshot import ShardedWeights
from trainer.publishing.snapshot import DeviceWeights, HostWeights, Weights


def weights_of(model: Any, ranks: HostCollectives | None = None) -> Weights:
    """Return the weights of a model as rank 0 publishes them.

    `ranks` are the processes that share the model, on a process group that nothing else uses. They are needed if FSDP2
    has divided the model, also if there is only one of them.
    """
    if is_sharded(model):
        assert ranks is not None, "a model that is divided has ranks"
        return ShardedWeights(model, ranks)
    is_on_host = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return HostWeights(model) if is_on_host else DeviceWeights(model)
