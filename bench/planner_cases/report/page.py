"""The dated record: what was run, figures against targets, a section for each part of the benchmark, in Markdown.

What stands around the tables is either true of every record (what is re-implemented, simulated, guessed) or counted
from this one. A section that was not run in full says so at its head; pictures are made of the rows that are there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.planner_cases.hetrl import MAX_GAP
from bench.planner_cases.report import (
    contradictions,
    fleet_tables,
    hetrl_tables,
    limits_tables,
    model_tables,
    speed_tables,
)
from bench.planner_cases.report.completeness import reach_table, run_table, score, sentence
from bench.planner_cases.report.guesses import guesses
from bench.planner_cases.report.markdown import bullets, counted, paragraph, percent
from bench.planner_cases.report.ratios_picture import ratios_svg
from bench.planner_cases.report.records import Part, Record
from bench.planner_cases.report.scatter_picture import has_pairs, scatter_svg
from bench.planner_cases.report.speed_picture import speed_svg
from bench.planner_cases.report.time_picture import time_svg

HONEST = (
    "HetRL and AReaL-Hex are **re-implemented from what is published**; nobody here has run their planners. What was "
    "chosen where the publications are silent: [planner-reimplementations.md](../planner-reimplementations.md).",
    "`verl` and `streamrl` are **our best of their family**: the best of all placements with the layout of verl's "
    "default configuration, and of StreamRL's two pools. Neither system was run.",
    "**Simulated throughput is simulated.** Seconds a step are the cost model's; the simulator shares the physics of "
    "devices with it and nothing else. No GPU was used.",
    "Published ranges were **measured on real clusters**, with baselines as their authors configured them; ours "
    "compare placements under one model. They stand side by side for orientation.",
    "A *certified upper bound* on a ratio is the family's best over the least that any placement of the plan space can "
    "have under this model. It says nothing beyond plan space and model ([planner-model.md](../planner-model.md)).",
    "Networks, lengths and batches that the publications leave open are **guesses**; each is named below.",
)

PICTURES = ("ratios", "time", "speed", "simulation")
"""What the files of pictures end with, as far as there are rows for them."""


@dataclass(slots=True)
class Page:
    """The text, and pictures by file name."""

    stem: str
    quick: bool
    pictures: dict[str, str] = field(default_factory=dict)

    def picture(self, name: str, words: str, svg: str) -> str:
        """Keeps it, and the line that shows it."""
        file = f"{self.stem}-{name}.svg"
        self.pictures[file] = svg
        return f"![{words}]({file})"

    def note(self, part: Part) -> str:
        """What a picture of this part has to say of itself; empty for a whole one."""
        said = [] if part.is_whole else [f"Only {len(part.rows)} of {counted(part.num_cells, 'piece')} were run."]
        return " ".join([*said, "Quick sizes."] if self.quick else said)


def page_of(record: Record, stem: str) -> tuple[str, dict[str, str]]:
    """The record's text, and its pictures by file name. `stem` is the date, and how pictures' names begin.

    Raises: ValueError for rows that are not of this benchmark.
    """
    page = Page(stem, record.quick)
    blocks = [
        f"# The planner, compared: {stem}",
        "Written by `python -m bench.planner_cases.record` from what `python -m bench.planner` printed; no figure was "
        "copied by hand. What is compared, and how: [planner-comparison.md](../planner-comparison.md).",
        "## What this says, and what it does not",
        bullets(HONEST),
        "## What was run",
        _provenance(record),
        run_table(record),
        "## Figures against targets",
        f"{score(record)} Figures are those of the worst case, except means.",
        reach_table(record),
    ]
    for name, (title, body) in _SECTIONS.items():
        part = record.parts.get(name)
        if part is None:
            continue
        blocks += [f"## {title}", sentence(part)]
        try:
            blocks += [*filter(None, [contradictions.sentence(part)]), *(body(part, page) if part.rows else [])]
        except KeyError as error:
            raise ValueError(f"{name}: rows without {error}, so of another version of the benchmark") from error
    blocks += ["## What was guessed", *guesses()]
    return "\n\n".join(map(paragraph, blocks)) + "\n", page.pictures


def _provenance(record: Record) -> str:
    machines = {
        f"{each['cpu']}, {counted(int(each['cpus']), 'core')}, Python {each['python']}" for each in record.machines
    }
    loads = [float(each["load_1min_before"]) for each in record.machines if "load_1min_before" in each]
    text = f"Machine: {'; '.join(sorted(machines))}." if machines else "The machine was not recorded with these rows."
    if loads:
        text += f" Load average before each run: {', '.join(f'{load:.1f}' for load in loads)}."
    text += f" Seed {record.seed}, one run of each piece."
    return text + (" **Quick sizes: fewer and smaller pieces than the benchmark has.**" if record.quick else "")


def _hetrl(part: Part, page: Page) -> list[str]:
    rows = list(part.rows.values())
    note = page.note(part)
    proved = sum(row["gap"] <= MAX_GAP for row in rows)
    return [
        "24 A100 of 40 GB, 24 L40S and 16 L4 in HetRL's four networks; Qwen3 of 4B, 8B and 14B, PPO and GRPO, "
        f"synchronous and not. Proved within one percent: {proved} of {counted(len(rows), 'case')}, largest gap "
        f"{percent(max(row['gap'] for row in rows), 2)} %.",
        page.picture("ratios", "ratios over static families beside HetRL's published ranges", ratios_svg(rows, note)),
        hetrl_tables.published_sentence(rows),
        hetrl_tables.families_sentence(rows),
        *filter(None, [hetrl_tables.cornered_sentence(rows)]),
        hetrl_tables.ratio_table(rows),
        "Each case. Ratios are of seconds a step, the family's best over ours; *at most* is the certified upper bound "
        "on the ratio, *error* that of the prediction against the simulation of our placement.",
        hetrl_tables.cases_table(part.rows),
        "### Methods over time",
        "Step time of each method's best placement over the best that any of the three ever found (geometric mean over "
        "the cases in which it has one); cases in which another method is ahead at that time; cases without a "
        "placement yet. `hetrl` and `areal_hex` are re-implemented.",
        page.picture("time", "quality of each method against thinking time", time_svg(rows, note)),
        hetrl_tables.time_table(rows),
    ]


def _areal_hex(part: Part, _: Page) -> list[str]:
    return [
        "H800 at 2.0 and H20 at 0.8 dollars an hour, more of both than the budget buys. *Throughput* is the best fleet "
        "of one type over both types at one budget, *cheaper* the same in dollars at the speed that the best fleet of "
        "one type reaches; all three are searched for the best. *Certified* is what bounds leave open.",
        f"Over the best fleet of one type: {fleet_tables.areal_hex_sentence(list(part.rows.values()))}",
        fleet_tables.areal_hex_table(part.rows),
    ]


def _speed(part: Part, page: Page) -> list[str]:
    rows = list(part.rows.values())
    return [
        "Qwen3-8B on generated fleets of measured links, `auto`. Seconds are from the "
        "question to the first valid plan and to a proof within one percent, prices and columns included.",
        page.picture("speed", "seconds to a proof against number of GPUs", speed_svg(rows, page.note(part))),
        "Other planners in the picture solve **other problems**, are given for context, and prove nothing.",
        speed_tables.speed_table(part.rows),
    ]


def _real(part: Part, _: Page) -> list[str]:
    return [
        "Regions, links, prices and egress are measured or listed, numbers of machines are drawn. GRPO of 8B, "
        "asynchronous (eta 2), weights as deltas of one percent. Gap and seconds stand beside each of the two "
        "questions; a single region's answer has a gap of its own.",
        fleet_tables.real_sentence(list(part.rows.values())),
        fleet_tables.real_table(part.rows),
    ]


def _simulation(part: Part, page: Page) -> list[str]:
    blocks = [
        f"{model_tables.simulation_sentence(list(part.rows.values()))} *Bias* is the median of predicted over "
        "simulated.",
    ]
    if has_pairs(part.rows):
        svg = scatter_svg(part.rows, page.note(part))
        blocks.append(page.picture("simulation", "predicted against simulated seconds a step", svg))
    else:
        blocks.append("These rows have no single placements, so there is no picture.")
    return [*blocks, model_tables.simulation_table(part.rows)]


def _cost(part: Part, _: Page) -> list[str]:
    (row,) = part.rows.values()
    return [
        "Device physics against profiles that nobody here measured. `cost_time_error_mean` is the mean over *layer "
        "times* of two rows: without the model, and without the device type.",
        model_tables.time_means_table(row),
        model_tables.time_kinds_table(row),
        "Memory, where nothing is fitted:",
        model_tables.memory_table(row),
    ]


def _brute_force(part: Part, _: Page) -> list[str]:
    return [
        "The exact method, at gap 0, against a program that tries every placement and shares only the cost oracle with "
        f"it. {speed_tables.wrong_sentence(part.rows)}",
        speed_tables.brute_force_table(part.rows),
    ]


def _oracle(part: Part, _: Page) -> list[str]:
    return [
        "Placements that the oracle judges a second, in one process; each batch was held against the oracle first.",
        speed_tables.oracle_table(part.rows),
    ]


def _limits(part: Part, _: Page) -> list[str]:
    rows = list(part.rows.values())
    return [
        "Plans under a limit of seconds a step or of dollars an hour, made within the limit less the margin of "
        "`planner/problem/margins.py` and played for forty steps: `bench/planner_cases/limits.py`. *Error* is "
        "simulated over predicted seconds a step, less one. A margin of `0` is of rows that were measured to set the "
        "margins, or of budgets in one region, where only rent counts.",
        limits_tables.limits_sentence(rows),
        limits_tables.limits_table(part.rows),
        "The plans that came nearest to their limit of seconds:",
        limits_tables.nearest_table(part.rows),
    ]


_SECTIONS: dict[str, tuple[str, Callable[[Part, Page], list[str]]]] = {
    "hetrl": ("HetRL's setting", _hetrl),
    "areal_hex": ("AReaL-Hex's setting", _areal_hex),
    "speed": ("Speed at 64, 1,024 and 10,000 GPUs", _speed),
    "real": ("Twenty fleets of measured links and listed prices", _real),
    "limits": ("Limits in simulation", _limits),
    "simulation": ("Prediction against simulation", _simulation),
    "cost": ("The cost model against foreign profiles", _cost),
    "bruteforce": ("Against trying all placements", _brute_force),
    "oracle": ("The oracle's rate", _oracle),
}
