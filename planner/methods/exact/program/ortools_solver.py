"""The only module that calls OR-Tools: a linear model goes in, a point and a valid lower bound come out.

Solvers run with one thread, a fixed seed and no limit but time, so the same model gives the same answer unless time
ends it. Linear programs go to GLOP. Their bound is computed here from the dual values by weak duality, so it holds
whatever tolerances the solver used. Integer programs go to HiGHS; their bound is its dual bound less `_SLACK`.
"""

from datetime import timedelta

import numpy as np
from ortools.math_opt import callback_pb2, model_parameters_pb2, model_pb2, parameters_pb2, result_pb2
from ortools.math_opt.core.python import solver
from ortools.math_opt.python import mathopt
from ortools.math_opt.python.solve import StatusNotOk

from planner.methods.exact.program.linear_model import INFINITE, Floats, LinearModel, Solution

_SLACK = 2e-6
"""Relative margin below the dual bound of an integer program. Solvers accept points that violate rows or integrality by
1e-6, and rows are scaled to about 1."""
_REASON = result_pb2.TerminationReasonProto
_INVALID = 3
"""Abseil's status code of an invalid argument."""
_BASE_SEED = 1
"""Random seed of the solver, to which the caller's seed is added."""
_RELAXED = parameters_pb2.SolveParametersProto(
    lp_algorithm=parameters_pb2.LP_ALGORITHM_DUAL_SIMPLEX, presolve=parameters_pb2.EMPHASIS_OFF
)
"""Parameters of linear programs. Most relaxations are small and infeasible, which the dual simplex detects first, and
presolving costs more than it saves (of some 1,700 on fleets of 48 to 10,000 devices: 1.6 s instead of 3.3 s)."""


def solve_relaxed(model: LinearModel) -> Solution:
    """Solve the linear relaxation (integrality dropped).

    If GLOP gives up, the result is not infeasible but has no values and the bound -inf.
    """
    if model.is_crossed:
        return Solution(values=None, objective=INFINITE, bound=INFINITE, is_infeasible=True, is_complete=True)
    proto = _proto(model, relaxed=True)
    try:
        result = _call(proto, "GLOP", _RELAXED)
    except StatusNotOk:
        # GLOP gives up on some bases. Then nothing is known.
        return Solution(values=None, objective=INFINITE, bound=-INFINITE, is_infeasible=False, is_complete=False)
    # Objectives are bounded below, so the combined reason can only mean infeasible.
    reason = result.termination.reason
    if reason == _REASON.TERMINATION_REASON_INFEASIBLE or reason == _REASON.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED:
        return Solution(values=None, objective=INFINITE, bound=INFINITE, is_infeasible=True, is_complete=True)
    if reason != _REASON.TERMINATION_REASON_OPTIMAL or not result.solutions:
        return Solution(values=None, objective=INFINITE, bound=-INFINITE, is_infeasible=False, is_complete=False)
    best = result.solutions[0]
    values = _dense(best.primal_solution.variable_values, model.num_variables)
    # The bound is computed from the duals, whatever tolerances GLOP used.
    duals = _dense(best.dual_solution.dual_values, len(model.row_low))
    return Solution(
        values=values,
        objective=float(values @ np.asarray(model.cost)),
        bound=dual_bound(model, duals),
        is_infeasible=False,
        is_complete=True,
    )


def dual_bound(model: LinearModel, duals: Floats) -> float:
    """Return the lower bound that these dual values prove; -inf if they prove none.

    Weak duality: for any duals y of the right sign, y b + sum over x of min over its range of (c - y A) x is a lower
    bound.
    """
    low, high = np.asarray(model.low), np.asarray(model.high)
    row_low, row_high = np.asarray(model.row_low), np.asarray(model.row_high)
    # A dual whose sign needs a side that the row does not have is set to 0.
    duals = np.where((duals > 0) & np.isinf(row_low), 0.0, duals)
    duals = np.where((duals < 0) & np.isinf(row_high), 0.0, duals)
    # Reduced costs c - y A, [num_variables].
    reduced = np.asarray(model.cost, dtype=np.float64).copy()
    rows, variables = (np.asarray(each, dtype=np.int64) for each in (model.row_at, model.entry_at))
    np.subtract.at(reduced, variables, duals[rows] * np.asarray(model.entry, dtype=np.float64))
    # The side of each row that its dual counts, and the end of each variable's range that minimises its term.
    sides = np.where(duals > 0, np.where(np.isinf(row_low), 0.0, row_low), np.where(np.isinf(row_high), 0.0, row_high))
    tiny = np.abs(reduced) < 1e-12
    ends = np.where(reduced > 0, low, np.where(tiny, 0.0, high))
    if np.any(np.isinf(ends) & ~tiny):
        return -INFINITE
    return float(np.sum(duals * sides) + np.sum(np.where(tiny, 0.0, reduced * np.where(np.isinf(ends), 0.0, ends))))


def solve_whole(
    model: LinearModel,
    *,
    limit_s: float,
    gap: float,
    seed: int = 0,
    hint: Floats | None = None,
) -> Solution:
    """Solve the integer program to a relative `gap` of its own optimum, or until `limit_s` seconds are over.

    `hint` is a start point that need not be feasible.
    """
    if model.is_crossed:
        return Solution(values=None, objective=INFINITE, bound=INFINITE, is_infeasible=True, is_complete=True)
    # One thread and a fixed seed make the result repeatable.
    parameters = parameters_pb2.SolveParametersProto(
        relative_gap_tolerance=gap, absolute_gap_tolerance=0.0, random_seed=_BASE_SEED + seed
    )
    parameters.time_limit.FromTimedelta(timedelta(seconds=max(limit_s, 1e-3)))
    parameters.highs.string_options["parallel"] = "off"
    parameters.highs.double_options["mip_feasibility_tolerance"] = 1e-7
    settings = model_parameters_pb2.ModelSolveParametersProto()
    if hint is not None:
        start = settings.solution_hints.add()
        start.variable_values.ids.extend(range(model.num_variables))
        start.variable_values.values.extend(hint.tolist())
    proto = _proto(model, relaxed=False)
    try:
        result = _call(proto, "HIGHS", parameters, settings)
    except StatusNotOk:
        # HiGHS's presolve gives up on some models; it is tried once more without.
        parameters.highs.string_options["presolve"] = "off"
        try:
            result = _call(proto, "HIGHS", parameters, settings)
        except StatusNotOk:
            return Solution(values=None, objective=INFINITE, bound=-INFINITE, is_infeasible=False, is_complete=False)
    reason = result.termination.reason
    if reason == _REASON.TERMINATION_REASON_INFEASIBLE or reason == _REASON.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED:
        return Solution(values=None, objective=INFINITE, bound=INFINITE, is_infeasible=True, is_complete=True)
    # The dual bound holds even if time ended the search.
    bound = result.termination.objective_bounds.dual_bound
    # Time may have ended before a solution was found; the bound alone is still of use.
    values = None
    objective = INFINITE
    if result.solutions and result.solutions[0].HasField("primal_solution"):
        primal = result.solutions[0].primal_solution
        values = _dense(primal.variable_values, model.num_variables)
        objective = primal.objective_value
    return Solution(
        values=values,
        objective=objective,
        bound=bound - _SLACK * abs(bound),
        is_infeasible=False,
        is_complete=reason == _REASON.TERMINATION_REASON_OPTIMAL,
    )


def _call(
    proto: model_pb2.ModelProto,
    kind: str,
    parameters: parameters_pb2.SolveParametersProto,
    settings: model_parameters_pb2.ModelSolveParametersProto | None = None,
) -> result_pb2.SolveResultProto:
    """Call a solver; a model that it cannot read is a `ValueError`, any other failure is `StatusNotOk`."""
    try:
        result: result_pb2.SolveResultProto = solver.solve(
            proto,
            getattr(parameters_pb2, f"SOLVER_TYPE_{kind}"),
            mathopt.StreamableSolverInitArguments().to_proto(),
            parameters,
            settings or model_parameters_pb2.ModelSolveParametersProto(),
            None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            None,
        )
    except StatusNotOk as error:
        if error.code == _INVALID:
            # The model is wrong, which is our error and not a solver that gives up.
            raise ValueError(f"{kind} cannot read the model: {error.message}") from error
        raise
    return result


def _proto(model: LinearModel, *, relaxed: bool) -> model_pb2.ModelProto:
    """Return the model in the solver's format."""
    proto = model_pb2.ModelProto()
    at, variables = range(model.num_variables), proto.variables
    variables.ids.extend(at)
    variables.lower_bounds.extend(model.low)
    variables.upper_bounds.extend(model.high)
    variables.integers.extend([False] * model.num_variables if relaxed else model.whole)
    # The format is sparse: variables without a cost and entries of 0 are left out, and ids ascend.
    paid = [i for i in at if model.cost[i] != 0.0]
    proto.objective.linear_coefficients.ids.extend(paid)
    proto.objective.linear_coefficients.values.extend(model.cost[i] for i in paid)
    rows = proto.linear_constraints
    rows.ids.extend(range(len(model.row_low)))
    rows.lower_bounds.extend(model.row_low)
    rows.upper_bounds.extend(model.row_high)
    entries = proto.linear_constraint_matrix
    entries.row_ids.extend(model.row_at)
    entries.column_ids.extend(model.entry_at)
    entries.coefficients.extend(model.entry)
    return proto


def _dense(sparse: object, size: int) -> Floats:
    """Return a sparse vector of the solver as an array with `size` entries."""
    found = np.zeros(size)
    ids = np.asarray(sparse.ids, dtype=np.int64)  # type: ignore[attr-defined]
    found[ids] = np.asarray(sparse.values)  # type: ignore[attr-defined]
    return found
