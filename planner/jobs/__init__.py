"""How a job of this runtime is planned: processes on hosts.

`needs` says what a job's processes take, `hosts` turns the offered regions into the planner's devices, `refusals`
names what no search needs to look for, `polish` gives the best placement every worker that costs no time, and `static`
is the closed form for models that cannot be seen from here. `planner.solve.plan_job` puts them together.
"""
