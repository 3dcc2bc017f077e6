import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planner_cases.fleets.published_workloads import hetrl_workload
from periplus.errors import ConfigError
from periplus.job.algorithm import AlgorithmSection
from planner.cost.tables.network import payload_bytes
from planner.devices.catalogue import architectures
from planner.files.loaders import load_workload
from planner.files.workload_entries import WorkloadFile
from planner.files.workload_file import SCHEMA, Sources, to_tree, workload_of, workload_schema
from planner.problem.architecture import Architecture, Shape
from planner.problem.workload import TASKS, Lengths, Task, WeightTransfer, Workload

EXAMPLES = Path(__file__).parents[3] / "examples"
SCHEMAS = Path(__file__).parents[3] / "periplus" / "schemas"
GRPO = (Task.GENERATION, Task.ACTOR_TRAINING)


def tree(**changes: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "algorithm": "grpo",
        "model": "Qwen3-8B",
        "eta": 1,
        "prompts_per_step": 8,
        "group_size": 4,
        "prompt_tokens": {"constant": 100},
        "completion_tokens": {"constant": 500},
    } | changes


def nothing(path: str) -> Any:
    raise AssertionError(path)


NONE = Sources(config_json=nothing, rows=nothing)


def read(sources: Sources = NONE, **changes: Any) -> Workload:
    return workload_of(tree(**changes), "workload.yaml", sources)


def test_a_workload_is_what_its_file_says() -> None:
    workload = read()
    assert (workload.eta, workload.samples_per_step, workload.tokens_per_sample) == (1, 32, 600.0)
    assert workload.models[Task.GENERATION] == architectures()["Qwen3-8B"]
    assert workload.weights == WeightTransfer(bytes_per_param=2.0, is_delta=False)
    assert workload.train_state_bytes_per_param == 16.0


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        ({}, GRPO),
        ({"reward": "model"}, (Task.GENERATION, Task.REWARD, Task.ACTOR_TRAINING)),
        ({"reference": True}, (Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING)),
        ({"algorithm": "ppo"}, TASKS),
        ({"algorithm": "ppo", "reward": "rule"}, tuple(task for task in TASKS if task is not Task.REWARD)),
        ({"algorithm": "ppo", "reference": False}, tuple(task for task in TASKS if task is not Task.REFERENCE)),
    ],
)
def test_roles_follow_from_the_algorithm_unless_the_file_says_otherwise(
    changes: dict[str, Any], tasks: tuple[Task, ...]
) -> None:
    assert read(**changes).tasks == tasks


def test_each_role_may_have_a_model_of_its_own() -> None:
    models = read(algorithm="ppo", models={"critic": "Qwen3-4B", "reward": "Qwen3-1.7B"}).models
    assert [models[task].name for task in TASKS] == [
        "Qwen3-8B",
        "Qwen3-1.7B",
        "Qwen3-8B",
        "Qwen3-4B",
        "Qwen3-8B",
        "Qwen3-4B",
    ]


def test_a_delta_costs_its_changes_and_the_optimizer_decides_the_state() -> None:
    workload = read(weights={"kind": "delta", "density": 0.02, "bits_per_change": 10}, optimizer="adamw8bit")
    assert workload.weights == WeightTransfer(bytes_per_param=0.025, is_delta=True)
    assert workload.train_state_bytes_per_param == 10.0


def test_adapters_alone_are_published() -> None:
    shape = architectures()["Qwen3-8B"]
    ends = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim + shape.hidden_size  # hidden to q, k, v
    ends += shape.num_heads * shape.head_dim + shape.hidden_size  # and back
    ends += 3 * (shape.hidden_size + shape.intermediate_size)
    adapters = 16 * ends * shape.num_layers
    assert payload_bytes(read(lora_rank=16)) == pytest.approx(2 * adapters)
    assert payload_bytes(read(lora_rank=16, weights={"bytes_per_param": 1.5})) == pytest.approx(1.5 * adapters)
    deltas = {"kind": "delta", "density": 0.5, "bits_per_change": 4}
    assert payload_bytes(read(lora_rank=16, weights=deltas)) == pytest.approx(0.25 * adapters)


def test_models_may_be_defined_by_shape_by_config_or_by_its_path() -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 99,
    }
    shape = {
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 99,
        "tied_embeddings": False,
        "qk_norm": True,
    }
    asked: list[str] = []

    def config_json(path: str) -> object:
        asked.append(path)
        return config

    sources = Sources(config_json=config_json, rows=nothing)
    ways: tuple[dict[str, Any], ...] = ({"shape": shape}, {"config": config}, {"config_path": "x/config.json"})
    read_back = [read(sources, architectures=[{"name": "m"} | way], model="m").models[Task.GENERATION] for way in ways]
    assert read_back[0] == read_back[1] == read_back[2]
    assert asked == ["x/config.json"]


def test_lengths_come_as_a_formula_as_quantiles_or_as_a_measurement() -> None:
    rows = [{"dataset": "x", "n": str(n)} for n in range(1, 101)] + [{"dataset": "y", "n": "9999"}]
    sources = Sources(config_json=nothing, rows=lambda path: rows)
    measured = {"csv": {"path": "l.csv", "column": "n", "where": {"dataset": "x"}, "cap_tokens": 90}}
    lengths = read(sources, completion_tokens=measured).completion_tokens
    assert lengths.largest == 90
    assert lengths.mean == pytest.approx(50, abs=1)
    assert read(completion_tokens={"quantiles": [1, 2, 7]}).completion_tokens == Lengths(quantiles=(1.0, 2.0, 7.0))
    formula = {"lognormal": {"median_tokens": 100, "sigma": 1, "cap_tokens": 400}}
    lengths = read(completion_tokens=formula).completion_tokens
    assert lengths.at(0.5) == pytest.approx(100, rel=0.05)
    assert lengths.largest == 400


CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 99,
}


def shaped(**sizes: int) -> dict[str, Any]:
    shape = {
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 99,
        "tied_embeddings": False,
    } | sizes
    return {"architectures": [{"name": "m", "shape": shape}], "model": "m"}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model": ({"model": "Qwen3-9B"}, "'Qwen3-9B' is no known model; nearest: Qwen3-"),
    "unknown algorithm": ({"algorithm": "dpo"}, r"algorithm is \"dpo\", but must be one of grpo,"),
    "two lengths": (
        {"prompt_tokens": {"constant": 1, "quantiles": [1]}},
        "prompt_tokens has constant and quantiles; give exactly one of constant,",
    ),
    "no length": ({"prompt_tokens": {}}, "prompt_tokens has nothing"),
    "quantiles fall": ({"prompt_tokens": {"quantiles": [2, 1]}}, r"prompt_tokens\.quantiles must ascend"),
    "NaN": ({"prompt_tokens": {"constant": math.nan}}, r"prompt_tokens\.constant is NaN"),
    "dense with a density": ({"weights": {"density": 0.1}}, r"weights\.density and .* set weights\.kind: delta"),
    "delta without": ({"weights": {"kind": "delta", "density": 0.1}}, "need density and bits_per_change, or"),
    "critic without ppo": ({"models": {"critic": "Qwen3-4B"}}, r"models\.critic is set, .* only ppo"),
    "reward model of a rule": ({"models": {"reward": "Qwen3-4B"}}, r"models\.reward is set, .* set reward: model"),
    "defined twice": (
        {"architectures": [{"name": "m", "config_path": "x"}] * 2, "model": "m"},
        "the architecture m is there 2 times",
    ),
    "defined in two ways": (
        {"architectures": [{"name": "m", "config_path": "x", "config": {}}]},
        "m needs exactly one of shape, config and config_path",
    ),
    "unknown key": ({"staleness": 1}, "unknown key staleness"),
    "too many prompts": ({"prompts_per_step": 10**12}, r"prompts_per_step is 1000000000000, .* from 1 to 1000000"),
    "too many samples": (
        {"prompts_per_step": 10**6, "group_size": 1000},
        "prompts_per_step 1,000,000 times group_size 1,000 are 1,000,000,000 samples a step, but there may be",
    ),
    "more minibatches than samples": ({"minibatches_per_step": 99}, "minibatches_per_step is 99, .* only 32 samples"),
    "more heads of keys than heads": (shaped(num_kv_heads=8), "m: num_kv_heads is 8, but must divide num_heads, .* 4"),
    "heads of keys that do not divide": (shaped(num_kv_heads=3), "m: num_kv_heads is 3, but must divide num_heads"),
    "an absurd width": (shaped(hidden_size=10**9), r"hidden_size is 1000000000, .* from 1 to 1048576"),
    "an absurd model": (
        shaped(hidden_size=10**6, intermediate_size=10**7, num_layers=10**4),
        "m: has 3.* parameters, but may have 1e",
    ),
    "heads that do not divide the width": (
        {"architectures": [{"name": "m", "config": CONFIG | {"num_attention_heads": 7}}], "model": "m"},
        "m: hidden_size 64 is no multiple of its 7 heads",
    ),
    "adapters wider than the model": ({"lora_rank": 5000}, "lora_rank is 5,000, but Qwen3-8B is only 4,096 wide"),
    "a sample of less than a token": ({"prompt_tokens": {"constant": 1e-300}}, r"constant is 1e-300, .* from 1 to 1e"),
    "no sample of a token": ({"prompt_tokens": {"quantiles": [0, 0.5]}}, "quantiles are all below one token"),
    "a tiny density": (
        {"weights": {"kind": "delta", "density": 1e-300, "bits_per_change": 8}},
        r"density is 1e-300, .* from 1e-09",
    ),
    "a name of two lines": ({"model": "a\nb"}, r"model is \"a\\nb\", .* without control characters"),
    "unknown kind of model": (
        {"architectures": [{"name": "m", "config": {"model_type": "mamba"}}], "model": "m"},
        "m: model_type is 'mamba', whose shape is not known here; known: gemma, gemma2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_workload_is_refused_with_what_is_wrong(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(ConfigError, match=message) as caught:
        read(**changes)
    assert all(line.startswith("workload.yaml: ") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column": "m"}, "l.csv has no column m; it has n, where_from"),
        ({"where": {"where_from": "z"}}, "l.csv has no row with"),
        ({"where": {"where_from": "y"}}, "l.csv, column n: .*'many'"),
        ({"where": {"where_from": "zero"}}, "l.csv, column n: .* not all 0"),
        ({"where": {"where_from": "nan"}}, "l.csv, column n: .* finite"),
    ],
)
def test_a_bad_measurement_is_refused_with_its_file_and_column(changes: dict[str, Any], message: str) -> None:
    rows = [{"where_from": x, "n": n} for x, n in (("x", "1"), ("y", "many"), ("zero", "0"), ("nan", "nan"))]
    measured = {"csv": {"path": "l.csv", "column": "n", "where": {"where_from": "x"}} | changes}
    with pytest.raises(ConfigError, match=message):
        read(Sources(config_json=nothing, rows=lambda path: rows), completion_tokens=measured)


_RATE = st.floats(0.01, 60)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    def shape(name: str) -> Architecture:
        num_kv_heads = draw(st.integers(1, 99))
        return Architecture(
            name=name,
            num_kv_heads=num_kv_heads,
            tied_embeddings=draw(st.booleans()),
            qkv_bias=draw(st.booleans()),
            qk_norm=draw(st.booleans()),
            is_fused=draw(st.booleans()),
            num_mlp_matrices=draw(st.integers(2, 3)),
            **{
                field.name: draw(st.integers(1, 99)) * {"num_heads": num_kv_heads, "num_experts": 99}.get(field.name, 1)
                for field in fields(Shape)
                if field.name
                not in ("num_kv_heads", "tied_embeddings", "qkv_bias", "qk_norm", "is_fused", "num_mlp_matrices")
            },
        )

    actor, algorithm = shape("actor"), draw(st.sampled_from(["ppo", "grpo", "dapo"]))
    models = {Task.GENERATION: actor}
    models |= {Task.REWARD: shape("judge")} if draw(st.booleans()) else {}
    models |= {Task.REFERENCE: actor} if draw(st.booleans()) else {}
    critic = {Task.CRITIC_INFERENCE: actor} if algorithm == "ppo" else {}
    models |= {**critic, Task.ACTOR_TRAINING: actor}
    models |= {Task.CRITIC_TRAINING: actor} if critic else {}
    tokens = st.lists(st.floats(1, 1e5), min_size=1, max_size=5).map(
        lambda values: Lengths(quantiles=tuple(sorted(values)))
    )
    return Workload(
        algorithm=algorithm,
        models=models,
        eta=draw(st.integers(0, 9)),
        prompts_per_step=draw(st.integers(99, 9999)),
        group_size=draw(st.integers(1, 99)),
        prompt_tokens=draw(tokens),
        completion_tokens=draw(tokens),
        epochs_per_step=draw(st.integers(1, 9)),
        minibatches_per_step=draw(st.integers(1, 99)),
        train_state_bytes_per_param=draw(st.floats(4, 64)),
        gradient_bytes_per_param=draw(st.floats(0.125, 8)),
        lora_rank=draw(st.integers(0, actor.hidden_size)),
        weights=WeightTransfer(bytes_per_param=draw(_RATE), is_delta=draw(st.booleans())),
        trajectory_bytes_per_token=draw(_RATE),
    )


@given(workloads())
@settings(deadline=None)
def test_every_workload_survives_its_text(workload: Workload) -> None:
    assert workload_of(json.loads(json.dumps(to_tree(workload))), "w", NONE) == workload


def test_two_models_of_one_name_cannot_be_written() -> None:
    workload = hetrl_workload("Qwen3-4B", "ppo", is_async=False).workload
    other = replace(workload.models[Task.REWARD], num_layers=1)
    with pytest.raises(ValueError, match="two different models of this workload have the same name"):
        to_tree(replace(workload, models={**workload.models, Task.REWARD: other}))


@pytest.mark.parametrize("path", sorted((EXAMPLES / "workloads").glob("*.yaml")), ids=lambda path: path.name)
def test_each_example_is_a_workload_and_points_editors_to_the_schema(path: Path) -> None:
    assert load_workload(path).samples_per_step > 0
    assert path.read_text().startswith("# yaml-language-server: $schema=../../periplus/schemas/workload.schema.json\n")
    assert json.loads((SCHEMAS / "workload.schema.json").read_text()) == workload_schema()


def test_each_key_says_what_it_means() -> None:
    schema = workload_schema()
    sections: dict[str, Any] = {"file": schema, **schema["$defs"]}
    keys = {
        f"{name}.{key}": field
        for name, section in sections.items()
        for key, field in section.get("properties", {}).items()
    }
    assert not [key for key, field in keys.items() if not field.get("description") and key != "file.schema"]


def test_a_file_names_the_algorithms_that_a_job_names() -> None:
    ours, theirs = WorkloadFile.model_fields["algorithm"], AlgorithmSection.model_fields["name"]
    assert get_args(ours.annotation) == get_args(theirs.annotation)


def test_files_are_found_beside_the_workload(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"intermediate_size": 128, "vocab_size": 99}))
    (tmp_path / "l.csv").write_text("tokens\n10\n20\n")
    said = tree(
        architectures=[{"name": "m", "config_path": "model"}],
        model="m",
        completion_tokens={"csv": {"path": "l.csv", "column": "tokens"}},
    )
    (tmp_path / "w.yaml").write_text(json.dumps(said))
    workload = load_workload(tmp_path / "w.yaml")
    assert workload.models[Task.GENERATION].num_layers == 2
    assert workload.completion_tokens.largest <= 20
