"""What every service needs for gRPC: servers, channels, deadlines and error translation.

Addresses and protobuf messages come in; calls with deadlines, and the product's own values and errors, go out. `rpc`
has servers, channels and errors; `convert` converts the messages that several services share, `resolver` finds the
address to dial, and `attempt` runs one attempt of a loop that connects again. Nothing here knows what a service does.
"""
