"""Generation with vLLM: requests and weights go in, completions with the policy of each token come out.

vLLM is started below the worker's process, or runs as a server. What decides needs no vLLM and is tested without it.
The rest imports it: async_llm_backend here, checkpoint_names and worker_extension in vLLM's own processes. Nothing here
knows leases, versions of other workers, or how weights travel to this machine.

    vllm_engine        the engine: which request begins, which policy a token is of, what happens at a swap
    open_requests      the requests under way, and the labels of weights
    backend            what the engine needs of a vLLM
    async_llm_backend  a vLLM below this process
    http_backend       a vLLM server, and http_routes what its routes are asked
    served             the engine of a job that names servers
    transfer_engine    the weight-transfer backend inside a server
    worker_extension   what runs inside vLLM's workers, and worker_description what they say of themselves
    checkpoint_names   finds the checkpoint's tensors inside a model of vLLM
    shards             which part of a tensor a rank holds
    shard_memory       writes and hashes that part
    transfer_buffer    the memory that arrays go through
    gathered_digest    the digest of what several ranks hold
"""
