"""Connections between regions of which the one that is called cannot be dialled, by way of a third region's gateway.

    switchboard  in the gateway that relays: joins the two ends of each connection, and passes bytes on
    paths        in the two regions: listens at the relay, and gives whoever dials a local address in place of the other
                 region's gateway
    pipe         one end of a connection: a call of the relay and a TCP connection, and the bytes between them

The bytes are those of a connection between two gateways, with its TLS from end to end: nothing here knows what they
mean, and the relay could not read them. Which region relays for which is the coordinator's decision.
"""
