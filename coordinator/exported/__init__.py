"""What a coordinator tells other systems than its own: samples for Prometheus and messages for an MQTT broker.

States and events of the fleet come in; samples and messages go out. Nothing here changes the state, and what those
systems do, or whether they can be reached, changes nothing of the runtime.
"""
