"""The region agent: one daemon per region, which starts workers, measures links and runs the region's gateway.

`control` holds the session with the coordinator, `launchers` starts processes, `gateway` carries trajectories and
leases, and `weights` caches published weights. `app` builds the agent, `stores` opens and closes what a job has on the
gateway's disk, and `state_directory` says where. In come the tasks that the coordinator wants here, and streams of
workers, trainers and other regions' gateways; out go processes, reports and forwarded streams. The agent imports no
torch and no other service, and it never decodes a trajectory.
"""
