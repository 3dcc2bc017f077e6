"""A fleet on one machine: a coordinator, an agent for each region and, on request, the WAN emulator.

Names of regions and a directory come in; processes run, and an address goes out. `services` starts and stops the
processes, `fleet` starts them in order and waits for the regions, `records` says to other programs of the same user
where a fleet listens, and `directory` keeps a second fleet out of a directory. `up` is the command `periplus up`, with
`commands` as its command line; `periplus demo` uses `fleet` and `services` too. The room uses only what an operator
has: commands and gRPC calls. It must not reach into a service, and it knows no job.
"""
