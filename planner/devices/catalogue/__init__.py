"""Built-in knowledge: accelerator types with their efficiencies, and shapes of published models.

Everything comes from the packaged tables of `planner/data`. Fleet and workload files refer to entries by name.
"""

from planner.devices.catalogue.architectures import architecture, architectures
from planner.devices.catalogue.gpus import CPU, gpu_name, gpu_types, is_whole, type_of

__all__ = ["CPU", "architecture", "architectures", "gpu_name", "gpu_types", "is_whole", "type_of"]
