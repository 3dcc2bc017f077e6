"""The operator's side: commands that talk to a coordinator over gRPC."""
