ATTACKS = {}


def attacks_refused(): ...
