from planner.commands.options import JOB_METHODS, METHODS
from planner.methods.portfolio import METHODS as IMPLEMENTED


def test_the_methods_that_the_options_name_are_those_that_there_are() -> None:
    assert tuple(IMPLEMENTED) == METHODS
    assert set(JOB_METHODS) == {*METHODS, "static"}
