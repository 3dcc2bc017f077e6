"""Planning of jobs of this runtime: processes on hosts, rather than workloads on accelerators.

- `needs`: memory that a job's processes take, and the operator's constraints.
- `hosts`: turn the regions' hosts into devices of the planner, with one problem per region of the trainer.
- `refusals`: conflicts that can be named without a search.
- `spare_workers`: give the best placement every worker that does not lengthen the step.
- `host_memory`: leave out workers for which a host has no memory.
- `static_layout`: closed-form layout for models whose architecture is not visible to the coordinator.

`planner.solve.plan_job` combines them. The package reads no files and talks to no agents.
"""
