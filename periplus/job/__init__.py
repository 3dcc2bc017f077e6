"""A job as its files describe it: the job file, the files that it names, and the directory of its run.

Files and command-line overrides come in; a validated `JobFile` or a ConfigError comes out. `job_file` has every key,
`algorithm` the algorithm's keys and defaults, `inputs` checks model and data files, `run_directory` names and writes
the files of a run, `resumption` finds how a run can be resumed, and `unsupported` answers keys of other trainers.
Nothing here runs a job, imports torch or knows which regions exist.
"""
