"""Trackers: the records of a run for TensorBoard, wandb and trackio, through the tracking classes of accelerate.

In come the records that go to metrics.jsonl. Out go each tracker's own files, in `trackers/` of the run directory.
Nothing here may fail, delay or decide anything about training: a tracker that fails or falls behind is a WARNING.

Each tracker runs in a process of its own. The trainer's process keeps its environment, its accelerate state and its
exit free of trackers, and a tracker that hangs can be ended.

    packages     refuses a job whose tracker is not installed
    opening      what a tracker's process is told first: files, names, the job's configuration
    rows         a record as a tracker gets it: names, values and step
    feeds        the trainer's side: starts the processes, hands them rows, ends them
    process      the tracker's side: reads rows and logs them
    backends     the tracking classes of accelerate, each opened as a run that can be resumed
"""
