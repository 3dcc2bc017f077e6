"""The operator's side: the commands `periplus job`, `periplus region` and `periplus links`.

Command lines and job files come in, gRPC calls go to a coordinator, and tables, JSON or YAML are printed.
`job_group` loads a command when it is called, `commands` has the commands, `connection` the calls, `preflight` and
`resuming` prepare a submission, `listing` and `fleet_file` format answers, and `audit`, `report`, `samples` and `runs`
read run directories without a coordinator. Nothing here knows how the coordinator decides; it shares only the names of
job states with it.
"""
