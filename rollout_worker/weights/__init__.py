"""The worker's side of weight updates: from the gateway's stream of publications to the engine.

In come records of publications; out come the policy that the engine may serve, and a report of each version. Nothing
here decides what is sampled, or knows of gRPC.

    reader               follows the publications, and brings the host copy to the newest version
    incoming, host_copy  decode and prove a version
    engine_updater       brings the engine to the newest proven version while it samples
    engine_check         checks what the engine holds and computes
    serving              what the engine may serve as, and which results are in doubt
    proven_weights       what reader and updater share
    subscription         what to ask for next; pure
    pending_versions     what to write next; pure
    version_report       what became of a version
    compile              compiles the decoder early
"""
