"""Measures what a model's work takes with a worker's engine on this machine: `python -m rollout_worker.profile FILE`.

It builds the job's engine as a worker does, from the model's configuration alone: speed does not depend on the values
of weights, and the checkpoint need not be on this machine. A stand-in takes the tokenizer's place. Out go the lines
that `periplus.process.measuring` describes, with these keys:

    num_rows              rows that a whole measurement has
    engine_start_s        seconds from the start of this process until the engine takes requests
    versions              versions of the software by name
    generation            one row, as `GenerationRow`
    engine_cores          cores that the processes of the engine kept busy during these rows, on average
    load_s                seconds to decode a change of 2 % of the elements, write it into the engine and hash that
    sample_s              processor seconds of this process for a sample, beside the engine
    engine_memory_bytes   most memory of the device, or of the host without one

Nothing here knows of a gateway, of leases that a ledger gave, or of a trainer.

    measurement   the process: which engines are built, and what is measured with each
    engine_bench  rows of generation, and the loading of weights
    sample_cost   the worker's own part of a sample
    stand_ins     weights and a tokenizer for a model of which only the configuration is known

It is a package so that vLLM's processes, which import the main module of this one unless it is a `__main__`, do not.
"""
