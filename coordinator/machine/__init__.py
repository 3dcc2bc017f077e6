"""All decisions of the coordinator, as one pure state machine: `step.step(state, event, now_s) -> (state, effects)`.

step            dispatches an event, and does what follows from the new state: orders of plans, probes and tasks
sessions        who serves a region, and which tasks it has
reports         what agents report of tasks, records, keys and bytes
desired         which tasks each region should run, as the placed jobs say
jobs            what operators, the planner and the ends of trainers mean for a job
reservations    which devices and how much memory are held by which jobs
shares          which free devices of which machine each process of a placement gets
moves           other devices for tasks whose machine or devices are gone
growth          more workers for running jobs, where devices have come or come free
links           which links are probed when, and which a job waits for
relays          by way of which region one is reached that cannot be dialled
certificates    which trainer gets a certificate
draft           the state and the effects that one step builds
"""
