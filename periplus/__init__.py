"""The shared kernel of Periplus: values, codecs, errors, transport. It imports none of the services, and no torch."""
