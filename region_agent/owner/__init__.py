"""What the owner of a region allows there, whatever the coordinator wants.

In: the owner's file (`periplus agent --policy FILE`), tasks that the coordinator assigns, counters of sent bytes, the
time. Out: the devices and engines that the agent tells of, the tasks that may run, reports of those that are refused,
and secrets for the environment of processes. It must not know sessions, gateways or processes.
"""
