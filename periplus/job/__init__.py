"""A job as its files say it: the job file, its algorithm section, what it reads, and the directory of its run.

`job_file` has every key, `algorithm` the algorithms' keys and defaults, `inputs` checks model and data without torch,
`run_directory` names the files of a run, `resumption` says how a run goes on, `unsupported` answers keys that other
trainers have. Nothing here runs a job.
"""
