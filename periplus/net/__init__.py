"""What every service needs to speak gRPC: servers, channels and deadlines (`rpc`), and protobuf to values (`convert`).

In come addresses and messages; out come calls with deadlines and the product's own values and errors. Nothing here
knows what a service does.
"""
