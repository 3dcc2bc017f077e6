"""Entry point of a worker's measuring process: `python -m rollout_worker.profile FILE [--skip N]`."""

from periplus.process.measuring import measuring_command
from rollout_worker.profile.measurement import measure

if __name__ == "__main__":
    measuring_command(measure)()
