"""Runs statements about a program's functions, in the process of the program: the text of this file is sent there.

A statement has passed if it raises nothing. What passed is told by a word that is drawn anew for each statement.
Everything that is called after the program has run is bound here before, since the program may replace it.

Comparisons are not left to the program's objects, whose `__eq__` could answer what it likes. Before each comparison
both sides are made *plain*: numbers, texts and containers of Python become objects of the builtin types, by methods of
these types, also if their class is a subclass. An object of any other class is equal to nothing that is plain. Only two
of them are compared by their own methods, as a test asks for that makes objects of the program's classes itself.

It needs the standard library alone, and must not import anything of this package.
"""

# mypy: ignore-errors
# Its functions have no types: they take whatever a program returns, and whatever replaces it.

import ast
import importlib
import operator
import os
import sys
import types
from collections import deque

PLAIN_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...))
"""Classes whose objects compare rightly by themselves. Their subclasses may not."""

LIBRARY = {"decimal": ("Decimal",), "fractions": ("Fraction",), "datetime": ("date", "datetime", "time", "timedelta")}
"""Further such classes, by module. A module is imported only if the program or a test names it: that takes 10 ms."""

SCALARS = ((int, int.__int__), (float, float.__float__), (str, str.__str__))
"""Builtin classes whose subclasses count as them, with what makes a plain object."""

VIEWS = (type({}.keys()), type({}.items()))
"""What compares as a set does."""

SEQUENCES = (list, tuple, set, frozenset, deque)
"""Containers whose subclasses count as them."""

MAX_DEPTH = 200
"""Containers in containers that are made plain."""


def run(source, tests):
    """Run the program and then each of the tests, pairs of a word and a statement; write the words of what passed."""
    call, build, failure, write, out = exec, compile, BaseException, os.write, os.dup(1)
    parse, transform, fix = ast.parse, _Comparisons().visit, ast.fix_missing_locations
    compared = _comparing((*PLAIN_AS_THEY_ARE, *_library_classes(source + repr(tests))))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # A module, since dataclasses and pickle look for the one that a class names.
    module = sys.modules["program"] = types.ModuleType("program")
    names = module.__dict__
    call(build(source, "program", "exec"), names)
    for word, test in tests:
        try:
            tree = fix(transform(parse(test)))
            names[NAME] = compared
            call(build(tree, "test", "exec"), names)
        except failure:
            continue
        write(out, word)


NAME = "_compared_" + os.urandom(8).hex()
"""Under which the tests find the function that compares; the program does not know it."""


class _Comparisons(ast.NodeTransformer):
    """Replaces `a == b < c` by a call of the function that compares, with the operators' names and all operands."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        names = ast.Tuple([ast.Constant(type(each).__name__) for each in node.ops], ast.Load())
        operands = ast.Tuple([node.left, *node.comparators], ast.Load())
        return ast.copy_location(ast.Call(ast.Name(NAME, ast.Load()), [names, operands], []), node)


def _library_classes(text):
    modules = [name for name in LIBRARY if name in text]
    return [getattr(importlib.import_module(name), each) for name in modules for each in LIBRARY[name]]


def _comparing(plain_as_they_are):
    """Return the function that compares. It uses nothing that a program could replace."""
    class_of, is_a, each_of, scalars, sequences, views = type, isinstance, zip, SCALARS, SEQUENCES, VIEWS
    dictionary, items_of, of_set, iterated = dict, dict.items, set, {each: each.__iter__ for each in SEQUENCES}
    opaque, every = object(), all
    ordered = {"Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge}
    same, contains, equal = operator.is_, operator.contains, operator.eq

    def plain(value, depth=0):
        kind = class_of(value)
        if kind in plain_as_they_are:
            return value
        for base, made in scalars:
            if is_a(value, base):
                return made(value)
        if depth > MAX_DEPTH:
            return opaque
        if is_a(value, dictionary):
            found = dictionary()
            for key, held in items_of(value):
                name, content = plain(key, depth + 1), plain(held, depth + 1)
                if name is opaque or content is opaque:
                    return opaque
                found[name] = content
            return found
        if kind in views:
            value = of_set(value)
        for base in sequences:
            if is_a(value, base):
                parts = [plain(part, depth + 1) for part in iterated[base](value)]
                return opaque if [1 for part in parts if part is opaque] else base(parts)
        return opaque

    def one(name, left, right):
        if name in ("Is", "IsNot"):
            return same(left, right) == (name == "Is")
        of_left, of_right = plain(left), plain(right)
        num_opaque = (of_left is opaque) + (of_right is opaque)
        if name in ("Eq", "NotEq"):
            if num_opaque == 1:
                return name == "NotEq"
            found = equal(left, right) if num_opaque else equal(of_left, of_right)
            return found if name == "Eq" else not found
        if name in ("In", "NotIn"):
            if of_right is opaque:
                found = contains(right, left)
            elif of_left is opaque:
                found = False
            else:
                found = contains(of_right, of_left)
            return bool(found) == (name == "In")
        if num_opaque:
            return ordered[name](left, right)
        return ordered[name](of_left, of_right)

    def compared(names, operands):
        return every([one(name, left, right) for name, left, right in each_of(names, operands, operands[1:])])

    return compared
