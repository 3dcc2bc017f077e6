"""The command `periplus demo`: it runs the whole runtime on one machine over an emulated WAN.

`commands` reads the command line, `job` names the default job, `run` leads one demo from launch to summary, on a fleet
of this machine (`coordinator/local_fleet/`). The demo uses only what an operator has: commands and gRPC calls. It must
not reach into a service.
"""
